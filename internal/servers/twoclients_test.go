package servers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend"
	"holdfast/backend/process"
	"holdfast/backend/remote"
	"holdfast/internal/config"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/internal/servers"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// A ground is a Holdfast, in front of loose servers or of an mcp.Server, that two clients use. All clients
// describe themselves alike and have no principal, so that modern clients share a conversation with the server.
type ground struct {
	url  string // the URL of the endpoint
	tool string // the prefix of the tools' names
}

// grounds are the ways in which Holdfast may serve, by name.
var grounds = map[string]func(t testing.TB) *ground{
	"shared": func(t testing.TB) *ground {
		return newGround(t, share(t, ownProcess(t, "loose")))
	},
	"process": func(t testing.TB) *ground { return newGround(t, ownProcess(t, "loose")) },
	"modern":  func(t testing.TB) *ground { return newGround(t, ownProcess(t, "loose modern")) },
	"remote": func(t testing.TB) *ground {
		return newGround(t, far(newGround(t, ownProcess(t, "loose"))))
	},
	"sdk":    newSDKGround,
	"merged": func(t testing.TB) *ground { return newSetGround(t, "/mcp", "a_", "loose", `"prefix": "a_"`) },
	"merged shared": func(t testing.TB) *ground {
		return newSetGround(t, "/mcp", "a_", "loose", `"prefix": "a_", "share": true`)
	},
	"path": func(t testing.TB) *ground { return newSetGround(t, "/a/mcp", "", "loose modern", `"prefix": ""`) },
	"denied": func(t testing.TB) *ground {
		return newSetGround(t, "/a/mcp", "", "loose", `"tools": {"deny": ["write_*", "caf\u00e9"]}`)
	},
}

// quiet returns the options of a ground's handlers.
func quiet() *holdfast.Options {
	return &holdfast.Options{Logger: slog.New(slog.DiscardHandler), MaxShare: 1, Eras: holdfast.ErasBoth}
}

// ownProcess runs this program as a stand-in of a kind, with more variables in its environment.
func ownProcess(t testing.TB, kind string, env ...string) *process.Backend {
	t.Helper()
	exe := mcptest.Must(os.Executable())(t)
	o := &process.Options{Env: append(append(os.Environ(), standIn+"="+kind), env...), Logger: slog.New(slog.DiscardHandler)}
	b := mcptest.Must(process.New([]string{exe}, o))(t)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// share lets all clients share one conversation with a server.
func share(t testing.TB, b backend.Backend) backend.Backend {
	all, stop := servers.Share(b, slog.New(slog.DiscardHandler))
	t.Cleanup(stop)
	return all
}

// far is the server of a ground, as a remote server.
func far(s *ground) backend.Backend {
	return remote.New(s.url, &remote.Options{Logger: slog.New(slog.DiscardHandler)})
}

func newGround(t testing.TB, b backend.Backend) *ground {
	t.Helper()
	return serveGround(t, holdfast.NewBackendHandler(b, quiet()))
}

func serveGround(t testing.TB, h *holdfast.Handler) *ground {
	url := mcptest.Serve(t, h)
	mcptest.ShutDownAtEnd(t, h, time.Second)
	return &ground{url: url + "/mcp"}
}

// newSetGround serves a configuration of two loose servers. The first of them has settings.
func newSetGround(t testing.TB, path, tool, kind, settings string) *ground {
	t.Helper()
	exe := mcptest.Must(os.Executable())(t)
	text := fmt.Sprintf(`{"mcpServers": {"a": {"command": %q, "env": {%q: %q}, "holdfast": {%s}}, "b": {"command": %[1]q, "env": {%[2]q: "loose"}}}, "holdfast": {"merge": true}}`, exe, standIn, kind, settings)
	s := newFileGround(t, path, text)
	s.tool = tool
	return s
}

// newFileGround serves a configuration. Its endpoint is at path.
func newFileGround(t testing.TB, path, text string) *ground {
	t.Helper()
	file := mcptest.Must(config.Parse("test.json", []byte(text), config.Options{}))(t)
	set := servers.New(file, slog.New(slog.DiscardHandler))
	return &ground{url: serveSet(t, set, quiet()) + path}
}

func newSDKGround(t testing.TB) *ground {
	s := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "work"}, func(ctx context.Context, r *mcp.CallToolRequest, in struct {
		Text  string `json:"text"`
		Steps int    `json:"steps"`
	}) (*mcp.CallToolResult, any, error) {
		for i := range min(in.Steps, 10) {
			if token := r.Params.GetProgressToken(); token != nil {
				_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(i + 1), Message: in.Text})
			}
			select {
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}}}, nil, nil
	})
	return serveGround(t, holdfast.NewHandler(func(*http.Request) *mcp.Server { return s }, quiet()))
}

// modernMeta has the members that describe the client in each modern request.
const modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`

// An errand is a message on its way to the ground, with the headers of its request.
type errand struct {
	session string // "": the message is a modern client's
	method  string // the method in the header of a modern request
	name    string // the name in the header of a modern request; "": none
	body    string
}

// post makes a request, and returns the answer. It ends with ctx.
func (s *ground) post(ctx context.Context, e errand) (status int, text string, head http.Header, err error) {
	var all strings.Builder
	status, head, err = s.postTo(ctx, e, &all)
	return status, all.String(), head, err
}

// postTo makes a request, and writes the answer to a writer.
func (s *ground) postTo(ctx context.Context, e errand, answer io.Writer) (status int, head http.Header, err error) {
	header := []string{protocol.HeaderSession, e.session}
	if e.session == "" && e.method != "" {
		header = []string{protocol.HeaderVersion, protocol.V20260728, protocol.HeaderMethod, e.method, protocol.HeaderName, protocol.EncodeHeader(e.name)}
	}
	res, err := mcptest.Send(ctx, http.MethodPost, s.url, e.body, header...)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	_, err = io.Copy(answer, res.Body)
	return res.StatusCode, res.Header, err
}

// begin begins a legacy session.
func (s *ground) begin(t testing.TB) (session string) {
	t.Helper()
	_, text, head, err := s.post(t.Context(), errand{body: hello})
	if err != nil || head.Get(protocol.HeaderSession) == "" {
		t.Fatalf("initialize: %s %v", text, err)
	}
	session = head.Get(protocol.HeaderSession)
	if _, _, _, err := s.post(t.Context(), errand{session: session, body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}); err != nil {
		t.Fatal(err)
	}
	return session
}

// dial begins a session over a WebSocket.
func (s *ground) dial(t testing.TB) *mcptest.Socket {
	t.Helper()
	c := mcptest.MustDial(t, t.Context(), s.url)
	for _, text := range []string{hello, mcptest.Initialized} {
		c.Say(t, text)
	}
	if _, text, err := c.Read(t.Context()); err != nil || !strings.Contains(string(text), `"result"`) {
		t.Fatalf("initialize: %s %v", text, err)
	}
	return c
}

// messagesOf returns the messages of an answer.
func messagesOf(text string) (all []string) {
	if strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[") {
		return []string{text}
	}
	for line := range strings.Lines(text) {
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok && data != "" {
			all = append(all, data)
		}
	}
	return all
}

// toolCall returns a call of a tool. meta are members of its _meta.
func (s *ground) toolCall(id, tool, arguments, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{%s}}}`, id, s.tool+tool, arguments, meta)
}

// callOf returns a toolCall as the client of a session sends it, or, without a session, a modern client.
// meta are members of its _meta.
func (s *ground) callOf(session, id, tool, arguments, meta string) errand {
	e := errand{session: session, method: "tools/call", name: s.tool + tool}
	if session == "" {
		if meta != "" {
			meta = "," + meta
		}
		meta = modernMeta + meta
	}
	e.body = s.toolCall(id, tool, arguments, meta)
	return e
}

// textOf returns the text in the result of a call.
func textOf(message string) string {
	content := jsonrpc.Field([]byte(message), "result", "content")
	_, rest, _ := strings.Cut(string(content), `"text":"`)
	text, _, _ := strings.Cut(rest, `"`)
	return text
}

const steps = 4

// A victim makes calls, and checks that each ends rightly, with its own result and progress.
type victim struct {
	s       *ground
	session string          // the session of a legacy victim
	socket  *mcptest.Socket // nil: the victim uses HTTP
	calls   int
}

// call makes one call, and returns an error if its answer is wrong.
func (v *victim) call(ctx context.Context) error {
	v.calls++
	id, own := fmt.Sprint(v.calls%20), fmt.Sprintf("own-%p-%d", v, v.calls)
	return v.begin(ctx, id, id, own).end()
}

// errand returns a call of a tool as the victim sends it. meta are members of its _meta.
func (v *victim) errand(id, tool, arguments, meta string) errand {
	if v.socket != nil {
		return errand{body: v.s.toolCall(id, tool, arguments, meta)}
	}
	return v.s.callOf(v.session, id, tool, arguments, meta)
}

// release ends a call that is held, and returns an error if the server does not answer.
func (v *victim) release(ctx context.Context, text string) error {
	e := v.errand(`"r"`, "release", fmt.Sprintf(`{"text":%q}`, text), "")
	if v.socket != nil {
		return v.socket.Write(ctx, websocket.MessageText, []byte(e.body))
	}
	_, answer, _, err := v.s.post(ctx, e)
	if err == nil && !strings.Contains(answer, `"result"`) {
		err = errors.New(answer)
	}
	return err
}

// An ownCall is a call of a victim in flight.
type ownCall struct {
	id, token, text string
	said            []string      // its messages so far
	read            chan struct{} // closed after all progress
	ended           chan error    // receives a value at the end of the call
}

// begin makes a call of the tool "work".
func (v *victim) begin(ctx context.Context, id, token, text string) *ownCall {
	c := &ownCall{id: id, token: token, text: text, read: make(chan struct{}), ended: make(chan error, 1)}
	e := v.errand(id, "work", fmt.Sprintf(`{"text":%q,"steps":%d}`, text, steps), `"progressToken":`+token)
	go func() {
		if v.socket != nil {
			c.ended <- c.overSocket(ctx, v.socket, e)
		} else {
			c.ended <- c.overHTTP(ctx, v.s, e)
		}
	}()
	return c
}

// took takes a message.
func (c *ownCall) took(message string) {
	if c.said = append(c.said, message); len(c.said) == steps {
		close(c.read)
	}
}

func (c *ownCall) overSocket(ctx context.Context, socket *mcptest.Socket, e errand) error {
	if err := socket.Write(ctx, websocket.MessageText, []byte(e.body)); err != nil {
		return err
	}
	for {
		_, message, err := socket.Read(ctx)
		if err != nil {
			return err
		}
		id := string(jsonrpc.Field(message, "id"))
		if id != `"r"` || !strings.HasPrefix(c.text, "held") { // else it is the response to the call of "release"
			c.took(string(message))
		}
		if id == c.id {
			return nil
		}
	}
}

func (c *ownCall) overHTTP(ctx context.Context, s *ground, e errand) error {
	pipe, out := io.Pipe()
	go func() {
		status, _, err := s.postTo(ctx, e, out)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		_ = out.CloseWithError(err)
	}()
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		for _, message := range messagesOf(lines.Text()) {
			c.took(message)
		}
	}
	return lines.Err()
}

// progressed waits until the call has emitted all its progress.
func (c *ownCall) progressed(t *testing.T) {
	t.Helper()
	select {
	case <-c.read:
	case <-time.After(patience):
		t.Fatalf("the call %s does not begin", c.text)
	}
}

// end waits for the end of the call, and returns an error if it has ended wrongly.
func (c *ownCall) end() error {
	select {
	case err := <-c.ended:
		if err != nil {
			return fmt.Errorf("call %s: %w; got %q", c.text, err, c.said)
		}
		return c.check()
	case <-time.After(patience):
		return fmt.Errorf("call %s hangs", c.text)
	}
}

// check checks the messages of the call.
func (c *ownCall) check() error {
	told := 0
	for i, message := range c.said {
		m, err := jsonrpc.Parse([]byte(message))
		last := i == len(c.said)-1
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", message, err)
		case m.Method == protocol.MethodProgress && !last:
			told++
			if string(jsonrpc.Field(m.Params, "progressToken")) != c.token || jsonrpc.String(jsonrpc.Field(m.Params, "message")) != c.text ||
				string(jsonrpc.Field(m.Params, "progress")) != fmt.Sprint(told) {
				return fmt.Errorf("call %s with the token %s is told %s", c.text, c.token, message)
			}
		case last && m.Kind == jsonrpc.Response && string(m.ID) == c.id && textOf(message) == c.text:
		default:
			return fmt.Errorf("call %s with the id %s is told %s", c.text, c.id, message)
		}
	}
	if told != steps {
		return fmt.Errorf("call %s is told of %d steps: %q", c.text, told, c.said)
	}
	return nil
}

// victims returns a victim of each kind.
func (s *ground) victims(t testing.TB) map[string]*victim {
	t.Helper()
	return map[string]*victim{
		"legacy": {s: s, session: s.begin(t)},
		"modern": {s: s},
		"socket": {s: s, socket: s.dial(t)},
	}
}

// Without a second client all calls end rightly, on each ground.
func TestTwoClientsAlone(t *testing.T) {
	t.Parallel()
	for name, begin := range grounds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kind, v := range begin(t).victims(t) {
				for range 3 {
					if err := v.call(t.Context()); err != nil {
						t.Errorf("%s: %v", kind, err)
					}
				}
			}
		})
	}
}

// refusals are messages with which a client could reach a request of another client, for an id. A message's kind
// is decided before its method, and members that look like others are refused.
func refusals(id int) []string {
	n := fmt.Sprint(id)
	all := []string{
		`{"jsonrpc":"2.0","id":"a` + n + `","method":"notifications/cancelled","params":{"requestId":` + n + `}}`,
		`{"jsonrpc":"2.0","id":"p` + n + `","method":"notifications/progress","params":{"progressToken":` + n + `,"progress":99}}`,
		`{"jsonrpc":"2.0","id":"c` + n + `","method":"Notifications/Cancelled","params":{"requestId":` + n + `}}`,
	}
	for _, name := range []string{"RequestId", "REQUESTID", `\u0052equestId`, `reque\u017ftId`, "reque\u017ftId"} {
		all = append(all,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"`+name+`":`+n+`}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"mine","`+name+`":`+n+`}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"`+name+`":`+n+`,"requestId":"mine"}}`)
	}
	all = append(all, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"mine","requestId":`+n+`}}`)
	for _, name := range []string{"ProgressToken", `progressTo\u212aen`, "progressTo\u212aen", `progres\u0073Token":"x","progressToken`, "PROGRESSTOKEN"} {
		all = append(all,
			`{"jsonrpc":"2.0","id":"t`+n+`","method":"tools/call","params":{"name":"TOOLwork","arguments":{"text":"theirs","steps":1},"_meta":{"`+name+`":`+n+`}}}`,
			`{"jsonrpc":"2.0","id":"u`+n+`","method":"vendor/thing","params":{"_meta":{"progressToken":"x","`+name+`":`+n+`}}}`)
	}
	for _, name := range []string{"_Meta", "_META", `\u005fMeta`} {
		all = append(all, `{"jsonrpc":"2.0","id":"m`+n+`","method":"tools/call","params":{"name":"TOOLwork","arguments":{"text":"theirs","steps":1},"_meta":{},"`+name+`":{"progressToken":`+n+`}}}`)
	}
	return all
}

// A message that the server could take for one about another client's call is refused, however it is spelled, and the
// other call ends rightly. The client of a refused request gets an answer.
func TestTwoClientsRefused(t *testing.T) {
	t.Parallel()
	for name, begin := range grounds {
		if name == "sdk" || name == "denied" {
			continue // a call cannot be held there, or another test has this ground
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			victims := s.victims(t)
			for _, kind := range []string{"socket", "legacy", "modern"} { // the socket comes first, as a WebSocket that is not read for long is cut
				v := victims[kind]
				own := v.begin(t.Context(), "7", "7", "held-"+kind)
				own.progressed(t)
				hostile := s.begin(t)
				socket := s.dial(t)
				for _, body := range refusals(7) {
					body = strings.ReplaceAll(body, "TOOL", s.tool)
					s.refuses(t, errand{session: hostile, body: body})
					s.refuses(t, modernOf(body))
					s.refusesSocket(t, socket, body)
				}
				ids := 10
				if testlong.All() {
					ids = 30
				}
				for n := range ids { // the server may know the call by any of these ids
					for _, body := range refusals(n)[:5] {
						s.refuses(t, errand{session: hostile, body: body})
						s.refuses(t, modernOf(body))
					}
				}
				select {
				case err := <-own.ended:
					t.Errorf("%s: the call has ended: %v", kind, err)
				default:
					mcptest.Check(t, v.release(t.Context(), own.text))
					if err := own.end(); err != nil {
						t.Errorf("%s: %v", kind, err)
					}
				}
			}
		})
	}
}

// modernOf returns a message as a modern client sends it with headers that repeat members of the body.
func modernOf(body string) errand {
	e := errand{body: body}
	e.method = jsonrpc.String(jsonrpc.Field([]byte(body), "method"))
	e.name = jsonrpc.String(jsonrpc.Field([]byte(body), "params", "name"))
	if jsonrpc.Field([]byte(body), "id") != nil {
		e.body = strings.Replace(body, `"_meta":{`, `"_meta":{`+modernMeta+`,`, 1)
		if e.body == body {
			e.body = strings.Replace(body, `"params":{`, `"params":{"_meta":{`+modernMeta+`},`, 1)
		}
		e.body = strings.Replace(e.body, `,}`, `}`, 1)
	}
	return e
}

// refuses checks that a message is refused.
func (s *ground) refuses(t *testing.T, e errand) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	status, text, _, err := s.post(ctx, e)
	if err != nil || status != http.StatusBadRequest || !strings.Contains(text, `"error"`) {
		t.Errorf("%s is answered with %d %s %v", e.body, status, text, err)
	}
	if id := jsonrpc.Field([]byte(e.body), "id"); id != nil && string(jsonrpc.Field([]byte(text), "id")) != string(id) {
		t.Errorf("%s is answered with %s, which has another id", e.body, text)
	}
}

func (s *ground) refusesSocket(t *testing.T, c *mcptest.Socket, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Write(ctx, websocket.MessageText, []byte(body)); err != nil {
		t.Errorf("%s: %v", body, err)
		return
	}
	want := `"error"`
	if jsonrpc.Field([]byte(body), "id") == nil { // a notification has no answer
		want = `{"jsonrpc":"2.0","id":"ping","result":{}}`
		if err := c.Write(ctx, websocket.MessageText, []byte(`{"jsonrpc":"2.0","id":"ping","method":"ping"}`)); err != nil {
			t.Errorf("%s: %v", body, err)
			return
		}
	}
	if _, text, err := c.Read(ctx); err != nil || !strings.Contains(string(text), want) {
		t.Errorf("%s is answered with %s %v", body, text, err)
	}
}

// A tool's name must be a string, and a name that looks like a denied one is denied, whatever name a loose server would
// take it for. The server gets none of these calls.
func TestNamesRefused(t *testing.T) {
	t.Parallel()
	s := grounds["denied"](t)
	session := s.begin(t)
	for name, code := range map[string]string{
		`"write_file"`:           "-32602",
		`"write\u005ffile"`:      "-32602",
		`["write_file"]`:         "-32602",
		`{"x":"write_file"}`:     "-32602",
		`7`:                      "-32602",
		`null`:                   "-32602",
		`true`:                   "-32602",
		`"write_file\u0000"`:     "-32602",
		`"caf\u00e9"`:            "-32602",
		`"cafe\u0301"`:           "-32602",
		`"\uff57rite_file"`:      "-32602",
		`"write\ud800_file"`:     "-32602",
		`"work","Name":"seen"`:   "-32600",
		`"work","name":"seen"`:   "-32600",
		`"work","\u004eame":"x"`: "-32600",
	} {
		for _, where := range []string{"legacy", "modern", "socket"} {
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":` + name + `,"arguments":{"text":"x"}}}`
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			var text string
			var err error
			switch where {
			case "legacy":
				_, text, _, err = s.post(ctx, errand{session: session, body: body})
			case "modern":
				_, text, _, err = s.post(ctx, modernOf(body))
			default:
				c := s.dial(t)
				if err = c.Write(ctx, websocket.MessageText, []byte(body)); err == nil {
					var answer []byte
					_, answer, err = c.Read(ctx)
					text = string(answer)
				}
			}
			cancel()
			all := messagesOf(text)
			if err != nil || len(all) == 0 {
				t.Fatalf("%s of %s: %q %v", name, where, text, err)
			}
			if got := string(jsonrpc.Field([]byte(all[len(all)-1]), "error", "code")); got != code {
				t.Errorf("%s of %s: %s, want an error %s", name, where, text, code)
			}
		}
	}
	for _, session := range []string{session, ""} { // each session has a process
		_, text, _, err := s.post(t.Context(), s.callOf(session, "2", "seen", `{}`, ""))
		all := messagesOf(text)
		if err != nil || len(all) == 0 || textOf(all[len(all)-1]) != "seen" {
			t.Errorf("the server has seen %s %v", text, err)
		}
	}
}

// A merged server emits messages with any ids and tokens of another merged server: no client gets them.
func TestMergedServersApart(t *testing.T) {
	t.Parallel()
	for _, session := range []string{"legacy", "modern"} {
		t.Run(session, func(t *testing.T) {
			t.Parallel()
			s := grounds["merged"](t)
			v := &victim{s: s}
			if session == "legacy" {
				v.session = s.begin(t)
			}
			own := v.begin(t.Context(), "7", `"mine"`, "held")
			own.progressed(t)
			var lines []string
			for id := range 30 {
				for _, of := range []string{fmt.Sprint(id), fmt.Sprintf("%q", fmt.Sprint(id))} {
					lines = append(lines,
						`{"jsonrpc":"2.0","id":`+of+`,"result":{"content":[{"type":"text","text":"theirs"}]}}`,
						`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+of+`}}`,
						`{"jsonrpc":"2.0","id":`+of+`,"method":"notifications/cancelled","params":{"requestId":`+of+`}}`,
						`{"jsonrpc":"2.0","method":"tools/call","params":{"name":`+of+`}}`,
						`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+of+`,"progress":50}}`)
				}
			}
			lines = append(lines,
				`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":50}}`,
				`{"jsonrpc":"2.0","method":"notifications/progress","params":{"ProgressToken":"mine","progressToken":"other","progress":51}}`,
				`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"x","status":"failed"}}`,
				`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"x"}}`)
			quoted := make([]string, len(lines))
			for i, line := range lines {
				quoted[i] = string(jsonrpc.Quote(line))
			}
			other := *s
			other.tool = "b_"
			if _, text, _, err := s.post(t.Context(), other.callOf(v.session, `"spray"`, "spray", `{"text":"sprayed","lines":[`+strings.Join(quoted, ",")+`]}`, "")); err != nil || !strings.Contains(text, `"result"`) || strings.Contains(text, "notifications/") {
				t.Errorf("%s %v", text, err)
			}
			mcptest.Check(t, v.release(t.Context(), own.text))
			if err := own.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

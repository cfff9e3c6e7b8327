package servers_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/backend"
	"holdfast/backend/remote"
	"holdfast/internal/config"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/internal/servers"
	"holdfast/internal/sse"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// These tests show that a client cannot read, hear or end anything of another client. For every
// transport, every kind of server and every way in which two clients may differ, one client makes all
// kinds of requests and keeps them in flight. Meanwhile another client makes the same requests with the
// same ids, keys and params, and further requests with all that it could guess of the first.

// A diary is a server that keeps, in each conversation, the notes that its clients have written there, and puts
// all of them into each of its messages. So a client that shares a conversation gets the other client's notes.
//
//	write  answers
//	hold   emits progress, and answers when the test releases it
//	ask    asks the client, and answers with the client's answer
//	touch  emits a change of the resource "test://x", and answers
type diary struct {
	stateless bool // it keeps no notes, as a shared server
	anybody   bool // it gets no tokens, and asks for none

	mu      sync.Mutex
	pages   []*diaryPage
	held    map[string]func() // ends held calls, by their notes
	strange []string          // requests that came in a conversation begun with another Authorization
}

// A diaryPage is a conversation.
type diaryPage struct {
	d     *diary
	owner string // the Authorization with which the conversation began
	sink  backend.Sink

	// Guarded by diary.mu.
	notes []string
	asked map[string]func(answer []byte)
}

func (d *diary) Open(_ context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	p := &diaryPage{d: d, sink: sink, asked: make(map[string]func([]byte))}
	if start.HTTP != nil {
		p.owner = start.HTTP.Header.Get("Authorization")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pages = append(d.pages, p)
	return p, nil
}

// release ends a held call.
func (d *diary) release(note string) bool {
	d.mu.Lock()
	say := d.held[note]
	d.mu.Unlock()
	if say == nil {
		return false
	}
	say()
	return true
}

// mixed returns the notes of two clients that are in one conversation.
func (d *diary) mixed() (all []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pages {
		who := ""
		for _, note := range p.notes {
			name, _, ok := strings.Cut(note, ":")
			if ok && who != "" && name != who {
				all = append(all, fmt.Sprint(p.notes))
			}
			if ok {
				who = name
			}
		}
	}
	return append(all, d.strange...)
}

func (p *diaryPage) Close() error { return nil }

func (p *diaryPage) Deliver(in backend.Inbound) error {
	d := p.d
	note := jsonrpc.String(jsonrpc.Field(in.Params, "arguments", "note"))
	d.mu.Lock()
	defer d.mu.Unlock()
	if in.Kind == jsonrpc.Request && in.Header != nil && !d.stateless && in.Header.Get("Authorization") != p.owner {
		d.strange = append(d.strange, fmt.Sprintf("%s with %q in the conversation of %q", in.Method, in.Header.Get("Authorization"), p.owner))
	}
	if note != "" && !d.stateless {
		p.notes = append(p.notes, note)
	}
	said := func() string { // the notes of this conversation, so far
		if d.stateless {
			return note
		}
		return strings.Join(p.notes, "|")
	}
	say := func(result string) {
		p.sink.Emit(in.Call, mcptest.Parse(string(jsonrpc.AppendResult(nil, in.ID, []byte(result)))))
	}
	text := func(said string) string {
		return fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, said)
	}
	switch tool := jsonrpc.String(jsonrpc.Field(in.Params, "name")); {
	case in.Kind == jsonrpc.Response:
		if answered := p.asked[string(in.ID)]; answered != nil {
			delete(p.asked, string(in.ID))
			go answered(in.Result)
		}
	case in.Kind != jsonrpc.Request:
	case in.Method == "initialize":
		say(fmt.Sprintf(`{"protocolVersion":%s,"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"serverInfo":{"name":"diary","version":"1"},"instructions":"for %s"}`,
			jsonrpc.Field(in.Params, "protocolVersion"), p.owner))
	case in.Method == "tools/list":
		list := `{"tools":[`
		for i, name := range []string{"write", "hold", "ask", "touch"} {
			list += ","[:min(i, 1)] + fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object"}}`, name, said())
		}
		say(list + `]}`)
	case tool == "hold":
		if token := jsonrpc.Field(in.Params, "_meta", "progressToken"); token != nil {
			p.sink.Emit(in.Call, mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":%q}}`, token, said())))
		}
		d.held[note] = func() { say(text(said())) }
	case tool == "ask":
		id := fmt.Sprintf(`"ask %d"`, len(p.notes))
		p.asked[id] = func(answer []byte) { say(text("answered " + string(answer))) }
		p.sink.Emit(in.Call, mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"message":%q,"requestedSchema":{"type":"object","properties":{}}}}`, id, said())))
	case tool == "touch":
		p.sink.EmitUnrelated(mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"test://x","note":%q}}`, said())))
		say(text(said()))
	case in.Method == "tools/call":
		say(text(said()))
	default:
		say(`{}`)
	}
	return nil
}

// runDiary runs a diary on stdio.
func runDiary() {
	var mu sync.Mutex
	page, _ := newDiary().Open(context.Background(), backend.Start{}, toClient(func(_ backend.Call, m jsonrpc.Message) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(string(m.Raw))
	}))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if m, err := jsonrpc.Parse(bytes.Clone(lines.Bytes())); err == nil {
			_ = page.Deliver(backend.Inbound{Message: m})
		}
	}
}

// toClient is a sink as a function. A message that belongs to no call has none.
type toClient func(call backend.Call, m jsonrpc.Message)

func (f toClient) Emit(call backend.Call, m jsonrpc.Message) { f(call, m) }
func (f toClient) EmitUnrelated(m jsonrpc.Message)           { f(nil, m) }
func (toClient) Closed(error, bool)                          {}

func newDiary() *diary { return &diary{held: make(map[string]func())} }

// A stage is a kind of server on which the tests run.
type stage struct {
	endpoint, pair string // paths
	prefix         string // the prefix of its tools
	shared         bool   // all clients share one conversation: no notes are kept, and no client is asked
	checks         bool   // the server gets the clients' tokens, and checks them
	process        bool   // the server is a process of its own, which the test cannot look into
	ownTasks       bool   // the server has tasks of its own, one list for each token
	begin          func(t *testing.T, d *diary, o *holdfast.Options) http.Handler
}

// stages returns the kinds of server. In a configuration "$" stands for the URL of a server, and "!" for a command.
func stages() map[string]stage {
	all := map[string]stage{
		"upstream": {endpoint: "/mcp", pair: "/sse", checks: true, begin: func(t *testing.T, d *diary, o *holdfast.Options) http.Handler {
			return alone(t, remote.New(upstream(t, d), &remote.Options{PassAuthorization: true, Logger: o.Logger}), o)
		}},
		"process": {endpoint: "/mcp", pair: "/sse", begin: func(t *testing.T, d *diary, o *holdfast.Options) http.Handler {
			return alone(t, d, o)
		}},
		"shared": {endpoint: "/mcp", pair: "/sse", shared: true, begin: func(t *testing.T, d *diary, o *holdfast.Options) http.Handler {
			d.stateless = true
			return alone(t, share(t, d), o)
		}},
		"config path": {endpoint: "/a/mcp", pair: "/a/sse", checks: true, begin: configured(`{"mcpServers": {"a": {"url": "$", "holdfast": {"auth": "passthrough"}}}}`)},
		"path without tokens": {endpoint: "/a/mcp", pair: "/a/sse", begin: func(t *testing.T, d *diary, o *holdfast.Options) http.Handler {
			d.anybody = true
			return configured(`{"mcpServers": {"a": {"url": "$"}}}`)(t, d, o)
		}},
		"merged": {endpoint: "/mcp", pair: "/sse", prefix: "a_", checks: true, begin: configured(
			`{"mcpServers": {"a": {"url": "$", "holdfast": {"auth": "passthrough"}}, "b": {"url": "$", "holdfast": {"auth": "passthrough"}}}, "holdfast": {"merge": true}}`)},
	}
	if testlong.Wanted() {
		all["command of a path"] = stage{endpoint: "/a/mcp", pair: "/a/sse", process: true, begin: configured(`{"mcpServers": {"a": !}}`)}
		all["merged command"] = stage{endpoint: "/mcp", pair: "/sse", prefix: "a_", process: true, begin: configured(`{"mcpServers": {"a": !}, "holdfast": {"merge": true}}`)}
		all["shared path"] = stage{endpoint: "/a/mcp", pair: "/a/sse", shared: true, begin: configured(`{"mcpServers": {"a": {"url": "$", "holdfast": {"share": true}}}}`)}
		all["socket"] = stage{endpoint: "/mcp", pair: "/sse", checks: true, ownTasks: true, begin: func(t *testing.T, d *diary, o *holdfast.Options) http.Handler {
			return alone(t, remote.New(socket(t, d), &remote.Options{PassAuthorization: true, Logger: o.Logger}), o)
		}}
	}
	return all
}

// upstream serves a diary over Streamable HTTP, to clients with a token that is not "wrong".
func upstream(t *testing.T, d *diary) string {
	t.Helper()
	all := &diaryHTTP{d: d, sessions: make(map[string]*diarySession)}
	return mcptest.Serve(t, all)
}

// A diaryHTTP is a diary over Streamable HTTP. It supports no tasks and no resuming.
type diaryHTTP struct {
	d        *diary
	mu       sync.Mutex
	sessions map[string]*diarySession
}

// A diarySession is a conversation with a diaryHTTP.
type diarySession struct {
	conn backend.Conn
	said chan []byte // messages that belong to no request
}

// A diaryCall is a request in flight.
type diaryCall struct {
	backend.Call
	said chan []byte
}

func (all *diaryHTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); (token == "" || token == "wrong") && !all.d.stateless && !all.d.anybody {
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m, _ := jsonrpc.Parse(body)
	all.mu.Lock()
	id := r.Header.Get("Mcp-Session-Id")
	if m.Method == "initialize" {
		id = fmt.Sprint("session-", len(all.sessions))
		s := &diarySession{said: make(chan []byte, 1000)}
		s.conn, _ = all.d.Open(r.Context(), backend.Start{HTTP: r}, toClient(func(call backend.Call, m jsonrpc.Message) {
			if of, ok := call.(*diaryCall); ok {
				of.said <- m.Raw
			} else {
				s.said <- m.Raw
			}
		}))
		all.sessions[id] = s
	}
	s := all.sessions[id]
	all.mu.Unlock()
	switch {
	case m.Method == "server/discover":
		w.WriteHeader(http.StatusBadRequest) // the server supports no modern clients
	case s == nil:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodDelete:
	case r.Method == http.MethodGet:
		pour(w, r, s.said, false)
	case m.Kind == jsonrpc.Request:
		w.Header().Set("Mcp-Session-Id", id)
		call := &diaryCall{said: make(chan []byte, 1000)}
		_ = s.conn.Deliver(backend.Inbound{Message: m, Call: call, Header: r.Header})
		pour(w, r, call.said, true)
	default:
		_ = s.conn.Deliver(backend.Inbound{Message: m, Header: r.Header})
		w.WriteHeader(http.StatusAccepted)
	}
}

// pour writes messages as events until the client leaves, or, with ends, until a response.
func pour(w http.ResponseWriter, r *http.Request, said chan []byte, ends bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case text := <-said:
			_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
			_ = http.NewResponseController(w).Flush()
			if m := mcptest.Parse(string(text)); ends && m.Kind == jsonrpc.Response {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// socket serves a diary over a WebSocket.
func socket(t *testing.T, d *diary) string {
	t.Helper()
	h := holdfast.NewBackendHandler(d, &holdfast.Options{Logger: slog.New(slog.DiscardHandler), Eras: holdfast.ErasLegacy, Principal: func(r *http.Request) string { return r.Header.Get("Authorization") }})
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token := r.Header.Get("Authorization"); token == "" || token == "Bearer wrong" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { shutdown(h) })
	return "ws" + strings.TrimPrefix(url, "http")
}

func shutdown(h *holdfast.Handler) {
	ctx, stop := context.WithCancel(context.Background())
	stop() // calls are in flight that no test ends
	_ = h.Shutdown(ctx)
}

// alone serves one backend.
func alone(t *testing.T, b backend.Backend, o *holdfast.Options) http.Handler {
	h := holdfast.NewBackendHandler(b, o)
	t.Cleanup(func() { shutdown(h) })
	return mcptest.Endpoints(h)
}

// configured serves the servers of a configuration.
func configured(text string) func(*testing.T, *diary, *holdfast.Options) http.Handler {
	return func(t *testing.T, d *diary, o *holdfast.Options) http.Handler {
		t.Helper()
		exe := mcptest.Must(os.Executable())(t)
		d.stateless = strings.Contains(text, `"share"`)
		text := text
		if strings.Contains(text, "$") {
			text = strings.ReplaceAll(text, "$", upstream(t, d))
		}
		text = strings.ReplaceAll(text, "!", fmt.Sprintf(`{"command": %q, "env": {%q: "diary"}}`, exe, standIn))
		file := mcptest.Must(config.Parse("test.json", []byte(text), config.Options{}))(t)
		set := servers.New(file, o.Logger)
		h := holdfast.NewBackendHandler(set, o)
		t.Cleanup(func() {
			shutdown(h)
			_ = set.Close()
		})
		return set.Handler(h, true)
	}
}

// An identity is the name and the token of a client.
type identity struct{ who, token string }

func (id identity) String() string { return fmt.Sprintf("%s with token %q", id.who, id.token) }

// A party is a client.
type party struct {
	t         *testing.T
	is        identity
	name      string // its notes begin with this name
	transport string
	at        *stage
	base      string
	ctx       context.Context
	in        bool // the server has not refused the client

	session  string          // the session's id
	endpoint string          // the path to which it posts
	socket   *mcptest.Socket // or nil
	ids      int             // the number of its requests, so far

	mu     sync.Mutex
	heard  []jsonrpc.Message // the received messages, also HTTP responses without one
	all    bytes.Buffer      // all received bytes
	change chan struct{}     // closed when a message has come
}

// transports are the ways in which clients connect.
var transports = []string{"legacy", "modern", "WebSocket", "HTTP+SSE"}

func (p *party) modern() bool { return p.transport == "modern" }

// hear records received data.
func (p *party) hear(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all.Write(append(bytes.Clone(data), '\n'))
	if m, err := jsonrpc.Parse(bytes.Clone(data)); err == nil {
		p.heard = append(p.heard, m)
	}
	close(p.change)
	p.change = make(chan struct{})
}

// has reports whether the party received a text.
func (p *party) has(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Contains(p.all.Bytes(), []byte(text))
}

// await waits for a message.
func (p *party) await(what string, is func(*jsonrpc.Message) bool) jsonrpc.Message {
	p.t.Helper()
	return p.awaitMore(what, 1, is)
}

// awaitMore waits for the n-th message for which is returns true.
func (p *party) awaitMore(what string, n int, is func(*jsonrpc.Message) bool) (found jsonrpc.Message) {
	p.t.Helper()
	late := time.After(patience)
	for {
		p.mu.Lock()
		changed := p.change
		seen := 0
		for i := 0; i < len(p.heard) && seen < n; i++ {
			if is(&p.heard[i]) {
				seen, found = seen+1, p.heard[i]
			}
		}
		p.mu.Unlock()
		if seen == n {
			return found
		}
		select {
		case <-changed:
		case <-late:
			p.mu.Lock()
			defer p.mu.Unlock()
			p.t.Fatalf("%s (%v) over %s: no %s in %s", p.name, p.is, p.transport, what, p.all.Bytes())
		}
	}
}

// response waits for the response to a request.
func (p *party) response(id string) jsonrpc.Message {
	p.t.Helper()
	return p.await("response "+id, func(m *jsonrpc.Message) bool { return m.Kind == jsonrpc.Response && string(m.ID) == id })
}

// headers returns the headers of a request, in pairs.
func (p *party) headers(more ...string) []string {
	h := []string{"Who", p.is.who, "Mcp-Session-Id", p.session}
	if p.is.token != "" {
		h = append(h, "Authorization", "Bearer "+p.is.token)
	}
	return append(h, more...)
}

// do makes an HTTP request, and reads a stream of events in the background. The status is that of the HTTP response.
func (p *party) do(method, path, body string, header ...string) (status int, head http.Header) {
	p.t.Helper()
	header = p.headers(header...)
	res, err := mcptest.Send(p.ctx, method, p.base+path, body, header...) //nolint:bodyclose // it is closed where it has ended
	if err != nil {
		p.t.Fatal(err)
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		all := mcptest.Must(mcptest.Read(res, nil))(p.t)
		p.hear([]byte(all.Body))
		return all.Status, all.Header
	}
	go p.reads(res, path, header)
	return res.StatusCode, res.Header
}

// reads reads a stream of events. It comes back when the server ends a stream for a while, as it does for a call that waits for input.
func (p *party) reads(res *http.Response, path string, header []string) {
	for last := ""; ; {
		for events := sse.NewReader(res.Body, 1<<20); ; {
			ev, err := events.Next()
			if err != nil {
				break
			}
			last = cmp.Or(ev.ID, last)
			if ev.Name == "endpoint" {
				ev.Data = jsonrpc.AppendRequest(nil, nil, "endpoint", jsonrpc.Object("at", string(ev.Data)))
			}
			p.hear(ev.Data)
		}
		_ = res.Body.Close()
		if last == "" || p.transport != "legacy" {
			return
		}
		var err error
		if res, err = mcptest.Send(p.ctx, http.MethodGet, p.base+path, "", append(header, "Last-Event-ID", last)...); err != nil || res.StatusCode != http.StatusOK {
			return
		}
	}
}

// send sends a message. It does not wait for the response to a request.
func (p *party) send(text string, key string) {
	p.t.Helper()
	if p.socket != nil {
		if key != "" {
			set, _ := jsonrpc.Set([]byte(text), jsonrpc.Quote(key), "params", "_meta", "holdfast/idempotencyKey")
			text = string(set)
		}
		p.socket.Say(p.t, text)
		return
	}
	if key != "" {
		key = strconv.Quote(key)
	}
	if p.modern() {
		m := mcptest.Parse(text)
		meta := jsonrpc.Field(m.Params, "_meta")
		if meta == nil {
			meta = []byte(`{}`)
		}
		meta, _ = jsonrpc.Set(meta, []byte(`"2026-07-28"`), "io.modelcontextprotocol/protocolVersion")
		if jsonrpc.Field(meta, "io.modelcontextprotocol/clientCapabilities") == nil {
			meta, _ = jsonrpc.Set(meta, []byte(`{"elicitation":{}}`), "io.modelcontextprotocol/clientCapabilities")
		}
		set, _ := jsonrpc.Set([]byte(text), meta, "params", "_meta")
		text = string(set)
	}
	p.do(http.MethodPost, p.endpoint, text, "Idempotency-Key", key)
}

// ask makes a request, and returns its id. All parties use the same ids.
func (p *party) ask(method, params, key string) (id string) {
	p.t.Helper()
	p.ids++
	id = fmt.Sprint(p.ids)
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params), key)
	return id
}

// tool calls a tool. All parties use some of the same params.
func (p *party) tool(name, note, more, key string) (id string) {
	p.t.Helper()
	return p.ask("tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"note":%q}%s,"_meta":{"progressToken":1}}`, p.at.prefix+name, note, more), key)
}

// join begins the party's session.
func (p *party) join() {
	p.t.Helper()
	p.endpoint = p.at.endpoint
	hello := fmt.Sprintf(`{"protocolVersion":"%s","capabilities":{"elicitation":{},"resumableRequests":{}},"clientInfo":{"name":"same","version":"1"}}`,
		map[string]string{"legacy": "2025-11-25", "WebSocket": "2025-11-25", "HTTP+SSE": "2024-11-05"}[p.transport])
	if p.is.who == "" { // without a principal the ids of questions can be guessed
		hello = strings.Replace(hello, `,"resumableRequests":{}`, "", 1)
	}
	switch p.transport {
	case "modern":
		id := p.ask("server/discover", `{"_meta":{}}`, "")
		p.in = p.response(id).Result != nil
		return
	case "legacy":
		p.ids++
		status, head := p.do(http.MethodPost, p.endpoint, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"initialize","params":%s}`, p.ids, hello))
		if p.in = status == http.StatusOK && p.response(fmt.Sprint(p.ids)).Result != nil; !p.in {
			return
		}
		p.session = head.Get("Mcp-Session-Id")
	case "WebSocket":
		p.socket = mcptest.MustDial(p.t, p.ctx, p.base+p.endpoint, p.headers()...)
		go func() {
			for {
				_, data, err := p.socket.Read(p.ctx)
				if err != nil {
					return
				}
				p.hear(data)
			}
		}()
	case "HTTP+SSE":
		if status, _ := p.do(http.MethodGet, p.at.pair, ""); status != http.StatusOK {
			return
		}
		beside := strings.TrimSuffix(p.at.pair, "sse")
		p.endpoint = beside + jsonrpc.String(jsonrpc.Field(p.await("endpoint", func(m *jsonrpc.Message) bool { return m.Method == "endpoint" }).Params, "at"))
	}
	if p.transport != "legacy" {
		p.in = p.response(p.ask("initialize", hello, "")).Result != nil
	}
	if !p.in {
		return
	}
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "")
	if p.transport == "legacy" {
		p.do(http.MethodGet, p.endpoint, "")
	}
}

// listen subscribes the party to changes.
func (p *party) listen() {
	p.t.Helper()
	if p.modern() {
		p.ask("subscriptions/listen", `{"notifications":{"resourceSubscriptions":["test://x"],"toolsListChanged":true}}`, "")
		p.await("acknowledgement", func(m *jsonrpc.Message) bool { return m.Method == "notifications/subscriptions/acknowledged" })
		return
	}
	p.response(p.ask("resources/subscribe", `{"uri":"test://x"}`, ""))
}

// touch makes the server emit a change in the party's conversation, and waits until the party has it.
func (p *party) touch(note string) {
	p.t.Helper()
	p.response(p.tool("touch", p.name+":"+note, "", ""))
	p.await("change "+note, func(m *jsonrpc.Message) bool {
		return m.Method == "notifications/resources/updated" && bytes.Contains(m.Params, []byte(p.name+":"+note))
	})
}

// asked waits for a question to the party. It returns the question or, in the modern era, the result with the question.
func (p *party) asked(call string) (question jsonrpc.Message) {
	p.t.Helper()
	if p.modern() {
		return p.response(call)
	}
	return p.await("question", func(m *jsonrpc.Message) bool { return m.Method == "elicitation/create" })
}

// answer answers a question.
func (p *party) answer(question jsonrpc.Message, note string) (call string) {
	p.t.Helper()
	if !p.modern() {
		p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"by":%q}}}`, question.ID, p.name), "")
		return ""
	}
	answers := []byte(`{}`)
	jsonrpc.Each(jsonrpc.Field(question.Result, "inputRequests"), func(name, _ []byte) {
		answers, _ = jsonrpc.Set(answers, fmt.Appendf(nil, `{"action":"accept","content":{"by":%q}}`, p.name), string(bytes.Clone(name)))
	})
	return p.tool("ask", note, fmt.Sprintf(`,"requestState":%s,"inputResponses":%s`, jsonrpc.Field(question.Result, "requestState"), answers), "")
}

// task begins a call that is a task, and returns the task's id, if there is one.
func (p *party) task(note string) (id string) {
	p.t.Helper()
	switch p.transport {
	case "HTTP+SSE":
		return ""
	case "modern":
		more := `{"name":%q,"arguments":{"note":%q},"_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}`
		m := p.response(p.ask("tools/call", fmt.Sprintf(more, p.at.prefix+"hold", note), ""))
		return jsonrpc.String(jsonrpc.Field(m.Result, "taskId"))
	}
	m := p.response(p.tool("hold", note, `,"task":{"ttl":60000}`, ""))
	return jsonrpc.String(jsonrpc.Field(m.Result, "task", "taskId"))
}

// about makes a request about a task.
func (p *party) about(method, task string) jsonrpc.Message {
	p.t.Helper()
	return p.response(p.ask(method, fmt.Sprintf(`{"taskId":%q,"_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}`, task), ""))
}

// keyed is the id of the request that all parties make under the same key.
const keyed = "100"

// underKey makes the request keyed for the n-th time, and returns the response.
func (p *party) underKey(n int) jsonrpc.Message {
	p.t.Helper()
	last := p.ids
	p.ids = 99
	p.tool("write", "same", "", "key")
	p.ids = max(p.ids, last)
	return p.awaitMore("response under the key", n, func(m *jsonrpc.Message) bool { return m.Kind == jsonrpc.Response && string(m.ID) == keyed })
}

// known has the facts that another party could have found out of the first, or guess.
type known struct {
	call, asking string // the ids of the first party's requests
	question     jsonrpc.Message
	task         string
	session      string
}

// begins lets the first party make all kinds of requests, and leaves them in flight.
func (p *party) begins() (k known) {
	p.t.Helper()
	if p.join(); !p.in {
		p.t.Fatalf("%s is refused over %s: %s", p.name, p.transport, p.all.Bytes())
	}
	p.response(p.tool("write", p.name+":secret", "", ""))
	p.response(p.ask("tools/list", `{"_meta":{}}`, ""))
	p.underKey(1)
	k.call = p.tool("hold", p.name+":held", "", "held")
	p.await("progress", func(m *jsonrpc.Message) bool { return m.Method == "notifications/progress" })
	if !p.at.shared {
		p.listen()
		if !p.at.process || !p.modern() { // on stdio a question does not name its call
			k.asking = p.tool("ask", p.name+":asks", "", "")
			k.question = p.asked(k.asking)
		}
		if !p.at.ownTasks {
			k.task = p.task(p.name + ":task")
		}
	}
	k.session = p.session
	return k
}

// tries lets another party make the same requests, and further ones with its knowledge of the first party.
// knows says that it knows the first party's secrets, too: those of a principal are useless to others.
func (p *party) tries(k *known, knows bool) {
	p.t.Helper()
	if p.join(); !p.in && !p.modern() {
		return // the party has no session
	}
	p.in = p.response(p.tool("write", p.name+":mine", "", "")).Result != nil
	p.response(p.ask("tools/list", `{"_meta":{}}`, ""))
	p.underKey(1)
	cancels := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, k.call)
	p.send(cancels, "held")
	if k.asking != "" {
		p.send(strings.Replace(cancels, k.call, k.asking, 1), "")
	}
	if !p.modern() {
		p.response(p.ask("requests/getStatus/all", `{}`, ""))
		for id := range 5 {
			p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"action":"accept","content":{"by":%q}}}`, id, p.name), "")
		}
		if !p.at.shared && !p.at.ownTasks && p.transport != "HTTP+SSE" {
			p.response(p.ask("tasks/list", `{}`, ""))
		}
	}
	if p.in && !p.at.shared {
		p.listen()
	}
	if !knows {
		return
	}
	if k.asking != "" {
		p.answer(k.question, "victim:asks")
	}
	if k.task != "" {
		for _, method := range []string{"tasks/get", "tasks/cancel"} {
			if m := p.about(method, k.task); m.Error == nil {
				p.t.Errorf("%s of another's: %s", method, m.Raw)
			}
		}
	}
	if k.session != "" {
		for method, body := range map[string]string{http.MethodGet: "", http.MethodPost: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, http.MethodDelete: ""} {
			if status, _ := p.do(method, p.endpoint, body, "Mcp-Session-Id", k.session); status != http.StatusNotFound {
				p.t.Errorf("%s with another's session id: %d", method, status)
			}
		}
	}
}

// ends checks the ends of all requests of the first party.
func (p *party) ends(d *diary, k *known) {
	p.t.Helper()
	if !p.at.process {
		mcptest.Eventually(p.t, "the call to be held", patience, func() bool { return d.release(p.name + ":held") })
		if m := p.response(k.call); !bytes.Contains(m.Result, []byte(p.name+":held")) {
			p.t.Errorf("%s: the call ends with %s", p.name, m.Raw)
		}
	}
	first := p.response(keyed)
	if again := p.underKey(2); p.transport != "HTTP+SSE" && (again.Result == nil || !bytes.Equal(again.Result, first.Result)) {
		p.t.Errorf("%s: under the key %s, and first %s", p.name, again.Raw, first.Raw)
	}
	if p.at.shared {
		return
	}
	if call := k.asking; call != "" {
		if again := p.answer(k.question, p.name+":asks"); again != "" {
			call = again
		}
		m := p.await("result", func(m *jsonrpc.Message) bool {
			return string(m.ID) == call && bytes.Contains(m.Result, []byte("answered"))
		})
		if !bytes.Contains(m.Result, []byte(p.name)) {
			p.t.Errorf("%s: its question was answered: %s", p.name, m.Raw)
		}
	}
	if k.task != "" {
		if m := p.about("tasks/get", k.task); !bytes.Contains(m.Result, []byte(`"working"`)) {
			p.t.Errorf("%s: its task: %s", p.name, m.Raw)
		}
	}
}

// TestApart runs the test on all stages, over all transports, with all pairs of identities.
func TestApart(t *testing.T) {
	t.Parallel()
	firsts := map[identity][]identity{
		{"", "victim"}:      {{"", ""}, {"", "wrong"}, {"", "other"}, {"mallory", "other"}},
		{"alice", "victim"}: {{"", "other"}, {"", "victim"}, {"mallory", "other"}, {"trudy", "victim"}},
	}
	for name, on := range stages() {
		for _, transport := range transports {
			for first, others := range firsts {
				t.Run(fmt.Sprintf("%s, %s, %v", name, transport, first), func(t *testing.T) {
					t.Parallel()
					testlong.Part(t)
					play(t, &on, transport, first, others)
				})
			}
		}
	}
}

// Two clients of one principal with two tokens count as one client. Where the server gets the tokens
// each has a conversation of its own: a message to one of them may be beyond the rights of the other.
func TestApartByToken(t *testing.T) {
	t.Parallel()
	for name, on := range stages() {
		if !on.checks {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDiary()
			in := enter(t, &on, d, "modern")
			for _, token := range []string{"victim", "other", "victim"} {
				p := in(token, identity{"alice", token})
				p.join()
				p.response(p.tool("write", token+":mine", "", ""))
				for _, other := range []string{"victim", "other"} {
					if other != token && p.has(other) {
						t.Errorf("%v: %s", p.is, p.all.Bytes())
					}
				}
			}
			for _, what := range d.mixed() {
				t.Errorf("in one conversation: %s", what)
			}
		})
	}
}

// A request that the server refused for the client's token may be made again under its key with
// another token. A request that the server took may have run.
func TestApartRefreshed(t *testing.T) {
	t.Parallel()
	for name, on := range stages() {
		if !on.checks {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDiary()
			in := enter(t, &on, d, "modern")
			p := in("client", identity{"", "wrong"})
			p.endpoint = on.endpoint
			if m := p.response(p.tool("write", "same", "", "key")); m.Error == nil {
				t.Fatalf("with a token that has expired: %s", m.Raw)
			}
			p.is.token = "new"
			first := p.response(p.tool("write", "same", "", "key"))
			again := p.response(p.tool("write", "same", "", "key"))
			if first.Result == nil || !bytes.Equal(first.Result, again.Result) {
				t.Errorf("with a new token: %s, and again: %s", first.Raw, again.Raw)
			}
			p.is.token = "newer"
			if m := p.response(p.tool("write", "same", "", "key")); string(jsonrpc.Field(m.Error, "code")) != fmt.Sprint(protocol.CodeOutcomeUnknown) {
				t.Errorf("with a newer token: %s", m.Raw)
			}
			p.is.token = "new"
			if m := p.response(p.tool("write", "same", "", "key")); !bytes.Equal(first.Result, m.Result) {
				t.Errorf("with the token that it was made with: %s", m.Raw)
			}
			if n := strings.Count(fmt.Sprint(d.written()), "same"); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}

// written returns all notes that clients have written.
func (d *diary) written() (all []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pages {
		all = append(all, p.notes...)
	}
	return all
}

// enter begins a stage. in makes a client of the stage.
func enter(t *testing.T, on *stage, d *diary, transport string) (in func(name string, is identity) *party) {
	t.Helper()
	front := mcptest.Serve(t, on.begin(t, d, &holdfast.Options{
		Eras:   holdfast.ErasBoth,
		Logger: slog.New(slog.DiscardHandler), TaskAfter: time.Millisecond, Principal: func(r *http.Request) string { return r.Header.Get("Who") },
	}))
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	return func(name string, is identity) *party {
		return &party{t: t, is: is, name: name, transport: transport, at: on, base: front, ctx: ctx, change: make(chan struct{})}
	}
}

func play(t *testing.T, on *stage, transport string, first identity, others []identity) {
	d := newDiary()
	in := enter(t, on, d, transport)
	one := in("victim", first)
	k := one.begins()
	var all []*party
	for i, is := range others {
		p := in(fmt.Sprint("other", i), is)
		all = append(all, p)
		p.tries(&k, first.who != "")
	}
	if !on.shared { // each party reads its own change after any change of another party
		one.touch("secret change")
		for _, p := range all {
			if p.in {
				p.touch("own change")
			}
		}
	}
	one.ends(d, &k)
	for _, p := range all {
		if p.has("victim:") {
			t.Errorf("%v has got what is another's: %s", p.is, p.all.Bytes())
		}
		if may := !on.checks || p.is.token != "" && p.is.token != "wrong"; p.in != may {
			t.Errorf("%v has begun: %v; %s", p.is, p.in, p.all.Bytes())
		}
		if one.has(p.name) {
			t.Errorf("the first has got what is of %v: %s", p.is, one.all.Bytes())
		}
	}
	for _, what := range d.mixed() {
		t.Errorf("in one conversation: %s", what)
	}
}

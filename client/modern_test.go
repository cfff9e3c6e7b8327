package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// meta has the members that describe the client in each modern request.
const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

// A modernServer answers modern requests as a script says.
type modernServer struct {
	url string

	mu   sync.Mutex
	seen []modernRequest
}

// A modernRequest is a request that a modernServer got.
type modernRequest struct {
	jsonrpc.Message
	header http.Header
}

// An answer writes the answer to a request, the nth of its method, from 1 on.
type answer func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, n int)

func newModernServer(t *testing.T, script answer) *modernServer {
	t.Helper()
	s := &modernServer{}
	s.url = mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		m, err := jsonrpc.Parse(body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.seen = append(s.seen, modernRequest{m, r.Header})
		n := 0
		for _, old := range s.seen {
			if old.Method == m.Method {
				n++
			}
		}
		s.mu.Unlock()
		script(w, r, m, n)
	}))
	return s
}

// got returns the requests of a method.
func (s *modernServer) got(method string) (list []modernRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.seen {
		if m.Method == method {
			list = append(list, m)
		}
	}
	return list
}

// answerJSON answers with a status and a body.
func answerJSON(w http.ResponseWriter, status int, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, format, args...)
}

// event sends a message as an event.
func event(w http.ResponseWriter, format string, args ...any) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "id: 1\ndata: %s\n\n", fmt.Sprintf(format, args...))
	_ = http.NewResponseController(w).Flush()
}

// cut ends the connection.
func cut() { panic(http.ErrAbortHandler) }

// The headers of each modern request repeat members of its body. When the server refuses the
// headers of a call, the client lists the tools: the tool was never listed, or has changed.
func TestModernHeaders(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, _ int) {
		switch {
		case m.Method == "tools/list" && jsonrpc.Field(m.Params, "cursor") == nil:
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","nextCursor":"2","tools":[`+
				`{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"}}}},`+
				`{"name":"good","inputSchema":{"type":"object"}}]}}`, m.ID)
		case m.Method == "tools/list":
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[`+
				`{"name":"größe","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"}}}}]}}`, m.ID)
		case m.Method == "tools/call" && r.Header.Get("Mcp-Param-Region") == "":
			answerJSON(w, 400, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32020,"message":"header mismatch"}}`, m.ID)
		default:
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
		}
	})
	c := newRaw(t, s.url, client.Options{})
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"größe","arguments":{"region":" a","n":null},` + meta + `}}`)
	if m := c.answer("1"); m.Error != nil {
		t.Fatalf("%s", m.Raw)
	}
	calls := s.got("tools/call")
	if len(calls) != 2 || len(s.got("tools/list")) != 2 {
		t.Fatalf("%d calls, %d lists", len(calls), len(s.got("tools/list")))
	}
	for name, want := range map[string]string{
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "=?base64?Z3LDtsOfZQ==?=",
		"Mcp-Param-Region": "=?base64?IGE=?=", "Mcp-Param-N": "", "Mcp-Session-Id": "", "Idempotency-Key": "", "Last-Event-Id": "",
	} {
		if got := calls[1].header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if _, there := calls[1].header["Mcp-Param-N"]; there {
		t.Error("null has a header")
	}
	if got := jsonrpc.Field(s.got("tools/list")[1].Params, "_meta", "io.modelcontextprotocol/clientInfo", "name"); string(got) != `"raw"` {
		t.Errorf("the tools were listed by %s", got)
	}

	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{` + meta + `}}`)
	if m := c.answer("2"); strings.Contains(string(m.Raw), "bad") || !strings.Contains(string(m.Raw), `"good"`) || string(jsonrpc.Field(m.Result, "nextCursor")) != `"2"` {
		t.Errorf("the list is %s", m.Raw)
	}
	for i, tt := range []struct{ method, params, name string }{
		{"resources/read", `"uri":"file:///a b"`, "file:///a b"},
		{"prompts/get", `"name":"p"`, "p"},
		{"tasks/get", `"taskId":"t1"`, "t1"},
		{"completion/complete", `"name":"x"`, ""},
	} {
		c.send(`{"jsonrpc":"2.0","id":"m%d","method":%q,"params":{%s,%s}}`, i, tt.method, tt.params, meta)
		c.answer(fmt.Sprintf(`"m%d"`, i))
		h := s.got(tt.method)[0].header
		if h.Get("Mcp-Method") != tt.method || h.Get("Mcp-Name") != tt.name {
			t.Errorf("%s: %v", tt.method, h)
		}
	}
}

// When the server refuses the headers of a call for good, the client makes the call twice.
func TestModernHeaderMismatch(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, _ int) {
		if m.Method == "tools/list" {
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"x","inputSchema":{}}]}}`, m.ID)
			return
		}
		answerJSON(w, 400, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32020,"message":"header mismatch"}}`, m.ID)
	})
	c := newRaw(t, s.url, client.Options{})
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x",` + meta + `}}`)
	if m := c.answer("1"); string(m.Error) != `{"code":-32020,"message":"header mismatch"}` || len(s.got("tools/call")) != 2 {
		t.Errorf("%s after %d calls", m.Raw, len(s.got("tools/call")))
	}
}

// Errors of a modern server come to the host unchanged.
func TestModernErrors(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, _ int) {
		switch m.Method {
		case "a/b":
			answerJSON(w, 404, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
		case "tools/call":
			answerJSON(w, 400, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32021,"message":"no","data":{"requiredCapabilities":{"sampling":{}}}}}`, m.ID)
		case "resources/read":
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"unknown","data":{"uri":"x"}}}`, m.ID)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	c := newRaw(t, s.url, client.Options{})
	for method, want := range map[string]string{
		"a/b":            `{"code":-32601,"message":"no such method"}`,
		"tools/call":     `{"code":-32021,"message":"no","data":{"requiredCapabilities":{"sampling":{}}}}`,
		"resources/read": `{"code":-32602,"message":"unknown","data":{"uri":"x"}}`,
		"prompts/get":    `{"code":-32000,"message":"HTTP 404 Not Found"}`,
	} {
		c.send(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s}}`, method, meta)
		if m := c.answer("1"); string(m.Error) != want {
			t.Errorf("%s: %s, want %s", method, m.Error, want)
		}
		if n := len(s.got(method)); n != 1 {
			t.Errorf("%s was sent %d times", method, n)
		}
	}
}

// A modern call is cancelled by the end of its exchange, and by nothing else.
func TestModernCancel(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	s := newModernServer(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, _ int) {
		if m.Method != "tools/call" {
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
			return
		}
		event(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`)
		<-r.Context().Done()
		close(ended)
	})
	c := newRaw(t, s.url, client.Options{})
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x",` + meta + `}}`)
	c.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	select {
	case <-ended:
	case <-time.After(soon):
		t.Fatal("the exchange goes on")
	}
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`)
	c.answer("1")
	if n := len(s.got("notifications/cancelled")); n > 0 {
		t.Errorf("%d cancellations were sent", n)
	}
}

// A modern call under an idempotency key is cancelled by the key.
func TestModernCancelKeyed(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, _ int) {
		switch m.Method {
		case "server/discover":
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"experimental":{"holdfast/idempotencyKey":{}}}}}`, m.ID)
		case "tools/call":
			event(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`)
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
	c := newRaw(t, s.url, client.Options{})
	c.send(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + meta + `}}`)
	c.answer("0")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x",` + meta + `}}`)
	c.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	mcptest.Eventually(t, "the cancellation", soon, func() bool { return len(s.got("notifications/cancelled")) == 1 })
	key := jsonrpc.String(jsonrpc.Field(s.got("notifications/cancelled")[0].Params, "_meta", "holdfast/idempotencyKey"))
	if was := s.got("tools/call")[0].header.Get("Idempotency-Key"); key == "" || was != `"`+key+`"` {
		t.Errorf("cancelled by the key %q, and called under %s", key, was)
	}
}

// The fate of a modern call after a cut depends on the call and on the server.
func TestModernCut(t *testing.T) {
	t.Parallel()
	const progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`
	for _, tt := range []struct {
		name, method string
		keys         bool
		sends        int
		sameID       bool
		unknown      bool
	}{
		{name: "call", method: "tools/call", sends: 1, unknown: true},
		{name: "call under a key", method: "tools/call", keys: true, sends: 3, sameID: true},
		{name: "retry-safe", method: "resources/read", sends: 3},
		{name: "retry-safe, keys", method: "resources/read", keys: true, sends: 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, n int) {
				switch {
				case m.Method == "server/discover" && tt.keys:
					answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"experimental":{"holdfast/idempotencyKey":{}}}}}`, m.ID)
				case m.Method == "server/discover":
					answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}`, m.ID)
				case n == 1: // the cut is within the stream
					event(w, progress)
					cut()
				case n == 2: // the cut is before the answer
					cut()
				default:
					event(w, progress)
					event(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":2}}`)
					event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
				}
			})
			c := newRaw(t, s.url, client.Options{})
			c.send(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + meta + `}}`)
			c.answer("0")
			c.send(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"name":"x","uri":"x",%s}}`, tt.method, strings.Replace(meta, "{", `{"progressToken":"p",`, 1))
			m := c.answer("1")
			if tt.unknown != strings.Contains(string(m.Error), "outcome unknown") || !tt.unknown && m.Error != nil {
				t.Errorf("%s", m.Raw)
			}
			got := s.got(tt.method)
			if len(got) != tt.sends {
				t.Fatalf("sent %d times, want %d", len(got), tt.sends)
			}
			for _, again := range got[1:] {
				if (string(again.ID) == string(got[0].ID)) != tt.sameID || again.header.Get("Idempotency-Key") != got[0].header.Get("Idempotency-Key") {
					t.Errorf("sent again as %s under the key %q", again.ID, again.header.Get("Idempotency-Key"))
				}
			}
			if key := got[0].header.Get("Idempotency-Key"); (key != "") != (tt.keys && tt.sameID) {
				t.Errorf("the key is %q", key)
			}
			if n := c.heard["notifications/progress"]; n != min(tt.sends, 2) {
				t.Errorf("%d progress notifications", n)
			}
		})
	}
}

// A subscription is opened again after a cut. The host does not see the cut, but gets a
// notification that the subscribed lists and resources may have changed.
func TestModernSubscription(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, n int) {
		if n == 3 {
			answerJSON(w, 503, "")
			return
		}
		event(w, `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{"toolsListChanged":true,"resourceSubscriptions":["a:b"]}}}`, m.ID)
		for range 2 { // equal notifications are not repetitions
			event(w, `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed","params":{}}`)
		}
		if n < 4 {
			cut()
		}
		event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
	})
	c := newRaw(t, s.url, client.Options{})
	c.send(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + meta + `}}`)
	if m := c.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/tools/list_changed" }); string(jsonrpc.Field(m.Params, "_meta", "io.modelcontextprotocol/subscriptionId")) != `"l"` {
		t.Errorf("%s", m.Raw)
	}
	c.until(func(m jsonrpc.Message) bool {
		return m.Method == "notifications/resources/updated" && jsonrpc.String(jsonrpc.Field(m.Params, "uri")) == "a:b"
	})
	if m := c.answer(`"l"`); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	for method, want := range map[string]int{
		"notifications/subscriptions/acknowledged": 1, "notifications/prompts/list_changed": 6,
		"notifications/tools/list_changed": 2, "notifications/resources/updated": 2,
	} {
		if got := c.heard[method]; got != want {
			t.Errorf("%d %s, want %d", got, method, want)
		}
	}
	for _, m := range s.got("subscriptions/listen") {
		if string(m.ID) != `"l"` {
			t.Errorf("opened as %s", m.ID)
		}
	}
}

// When the server does not take a subscription any more, the subscription ends with the server's error.
func TestModernSubscriptionRefused(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, n int) {
		if n > 1 {
			answerJSON(w, 400, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no more"}}`, m.ID)
			return
		}
		event(w, `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{}}}`)
		cut()
	})
	c := newRaw(t, s.url, client.Options{})
	c.send(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{},` + meta + `}}`)
	if m := c.answer("1"); !strings.Contains(string(m.Error), "no more") {
		t.Errorf("%s", m.Raw)
	}
}

// When a server has both eras, the client takes the era with sessions. It does not leave a pinned era.
func TestEra(t *testing.T) {
	t.Parallel()
	stateless := officialServer(t, newServer(), &mcp.StreamableHTTPOptions{Stateless: true})
	var sessions atomic.Int32
	both := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, _ int) {
		switch m.Method {
		case "server/discover":
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{"tools":{}}}}`, m.ID)
		case "initialize":
			w.Header().Set("Mcp-Session-Id", fmt.Sprint(sessions.Add(1)))
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"both","version":"1"}}}`, m.ID)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
	for _, tt := range []struct {
		name, url, era, want string
	}{
		{"holdfast", holdfastServer(t, nil), client.AnyEra, "2025-11-25"},
		{"no modern revision", officialServer(t, newServer(), nil), client.AnyEra, "2025-11-25"},
		{"no sessions", stateless, client.AnyEra, "2026-07-28"},
		{"no sessions, modern", stateless, client.Modern, "2026-07-28"},
		{"no sessions, legacy", stateless, client.Legacy, "2025-11-25"},
		{"both", both.url, client.AnyEra, "2025-11-25"},
		{"both, modern", both.url, client.Modern, "2026-07-28"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := connect(t, tt.url, &client.Options{Era: tt.era}, nil)
			if got := s.InitializeResult().ProtocolVersion; got != tt.want {
				t.Errorf("the revision is %s, want %s", got, tt.want)
			}
		})
	}
	c := newRaw(t, both.url, client.Options{Era: client.Modern})
	c.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	if m := c.answer("1"); !strings.Contains(string(m.Error), "initialize is not used") {
		t.Errorf("%s", m.Raw)
	}
}

// An official client works with an official server of the modern revision: progress, a
// question, a tool with headers, a subscription, a cancellation.
func TestModernOfficial(t *testing.T) {
	t.Parallel()
	server := newServer()
	server.AddTool(&mcp.Tool{Name: "region", InputSchema: json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`)},
		func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if req.Params.InputResponses["name"] == nil {
				return &mcp.CallToolResult{RequestState: "s", InputRequests: mcp.InputRequestMap{"name": &mcp.ElicitParams{
					Message: "name?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)}}}, nil
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "region " + string(req.Params.Arguments) + req.Params.RequestState}}}, nil
		})
	blocked, released := make(chan struct{}), make(chan struct{})
	mcp.AddTool(server, &mcp.Tool{Name: "block"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		close(blocked)
		<-ctx.Done()
		close(released)
		return nil, nil, ctx.Err()
	})
	url := officialServer(t, server, &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
	progress, changed := make(chan float64, 10), make(chan struct{}, 10)
	s := connect(t, url, nil, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { progress <- req.Params.Progress },
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "bob"}}, nil
		},
	})
	if got := s.InitializeResult().ProtocolVersion; got != "2026-07-28" {
		t.Fatalf("the revision is %s", got)
	}
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	p := &mcp.CallToolParams{Name: "add", Arguments: map[string]any{"A": 2, "B": 4}}
	p.SetProgressToken("t")
	if res, err := s.CallTool(ctx, p); err != nil || res.StructuredContent != 6.0 {
		t.Fatalf("%v %v", res, err)
	}
	for i := range 2 {
		if got := <-progress; got != float64(i+1) {
			t.Errorf("progress %v", got)
		}
	}
	// The client has not listed the tool, and the server wants its header.
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "region", Arguments: map[string]any{"region": "ö"}})
	if err != nil || len(res.Content) != 1 || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "ö") {
		t.Errorf("%v %v", res, err)
	}
	// The official client does not wait until the server has its subscription.
	for told := false; !told && ctx.Err() == nil; {
		server.RemoveTools("ask")
		select {
		case <-changed:
			told = true
		case <-time.After(100 * time.Millisecond):
			mcp.AddTool(server, &mcp.Tool{Name: "ask"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
				return nil, nil, nil
			})
		case <-ctx.Done():
			t.Error("no notification")
		}
	}
	cctx, cancel := context.WithCancel(ctx)
	go func() { <-blocked; cancel() }()
	if _, err := s.CallTool(cctx, &mcp.CallToolParams{Name: "block", Arguments: map[string]any{}}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	select {
	case <-released:
	case <-ctx.Done():
		t.Error("the server was not told of the cancellation")
	}
	if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "none", Arguments: map[string]any{}}); err == nil || holdfast.OutcomeUnknown(err) {
		t.Errorf("%v", err)
	}
}

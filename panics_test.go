package holdfast_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend"
	"holdfast/backend/message"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A trap holds the place where a user's code panics; "": nowhere.
type trap struct {
	at  atomic.Value
	hit atomic.Int32
}

func (p *trap) set(at string) { p.at.Store(at); p.hit.Store(0) }

func (p *trap) here(at string) {
	if p.at.Load() == at {
		p.hit.Add(1)
		panic("hunter2")
	}
}

// trapped is a backend that panics at its trap.
type trapped struct {
	*trap
	backend.Backend
}

func (b trapped) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	b.here("Open")
	conn, err := b.Backend.Open(ctx, start, sink)
	return trappedConn{b.trap, conn, sink}, err
}

type trappedConn struct {
	*trap
	backend.Conn
	sink backend.Sink
}

func (c trappedConn) Deliver(in backend.Inbound) error {
	if in.Method == "die" {
		c.sink.Closed(fmt.Errorf("it has died"), true)
		return nil
	}
	c.here("Deliver " + in.Method)
	return c.Conn.Deliver(in)
}

func (c trappedConn) Close() error {
	c.here("Close")
	return c.Conn.Close()
}

// rawServer answers raw messages.
type rawServer struct {
	*trap
	held chan *message.Exchange
}

func (s rawServer) Serve(x *message.Exchange) {
	s.here("Serve " + x.Method)
	switch x.Method {
	case "initialize":
		x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`))
	case "tools/list":
		x.Result([]byte(`{"tools":[{"name":"safe","inputSchema":{},"annotations":{"readOnlyHint":true}}]}`))
	default:
		if jsonrpc.String(jsonrpc.Field(x.Params, "arguments", "hold")) != "" {
			s.held <- x
			return
		}
		if x.ID != nil {
			x.Result([]byte(`{"content":[]}`))
		}
	}
}

func (s rawServer) Closed(backend.Sink) { s.here("Closed") }

// bitter is a value that panics at the trap when it is encoded as JSON.
type bitter struct{ *trap }

func (b bitter) MarshalJSON() ([]byte, error) {
	b.here("MarshalJSON")
	return []byte("{}"), nil
}

// sdkServer is an official server that panics in each of its functions.
func sdkServer(p *trap) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ServerOptions{
		InitializedHandler: func(context.Context, *mcp.InitializedRequest) { p.here("InitializedHandler") },
	})
	server.AddTool(&mcp.Tool{Name: "safe", InputSchema: map[string]any{"type": "object"}}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		p.here("tool")
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "x"})
		return &mcp.CallToolResult{StructuredContent: bitter{p}}, nil
	})
	server.AddPrompt(&mcp.Prompt{Name: "prompt"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		p.here("prompt")
		return &mcp.GetPromptResult{Meta: mcp.Meta{"x": bitter{p}}}, nil
	})
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			p.here("receiving " + method)
			return next(ctx, method, req)
		}
	})
	server.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			p.here("sending " + method)
			return next(ctx, method, req)
		}
	})
	return server
}

// panicNodes are handlers that share an engine, and a trap.
type panicNodes struct {
	*trap
	t        *testing.T
	held     chan *message.Exchange
	log      mcptest.Log
	handlers []*holdfast.Handler
	urls     []string
	ended    []bool
	ids      int
}

func newPanicNodes(t *testing.T, kind string) *panicNodes {
	n := &panicNodes{trap: &trap{}, t: t, held: make(chan *message.Exchange, 10)}
	n.set("")
	engine := logtest.New(logtest.Options{})
	raw := message.New(rawServer{n.trap, n.held})
	server := sdkServer(n.trap)
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{UserID: token, Expiration: time.Now().Add(time.Hour), Extra: map[string]any{"x": bitter{n.trap}}}, nil
	}
	for range 2 {
		o := &holdfast.Options{
			Eras:   holdfast.ErasBoth,
			Store:  durable.New(engine.Open(), durable.Options{Logger: slog.New(slog.DiscardHandler)}),
			Logger: slog.New(slog.NewTextHandler(&n.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Principal: func(r *http.Request) string {
				n.here("Principal")
				return auth.TokenInfoFromContext(r.Context()).UserID
			},
			Safe: func(tool string) bool {
				n.here("Safe")
				return tool == "safe"
			},
		}
		var h *holdfast.Handler
		switch kind {
		case "backend":
			h = holdfast.NewBackendHandler(trapped{n.trap, raw}, o)
		case "raw":
			h = holdfast.NewBackendHandler(raw, o)
		case "sdk":
			h = holdfast.NewHandler(func(*http.Request) *mcp.Server {
				n.here("getServer")
				return server
			}, o)
		}
		web := httptest.NewServer(auth.RequireBearerToken(verify, nil)(h))
		t.Cleanup(func() {
			web.Close()
			if err := o.Store.Close(); err != nil {
				t.Error(err)
			}
		})
		n.handlers, n.urls, n.ended = append(n.handlers, h), append(n.urls, web.URL), append(n.ended, false)
	}
	t.Cleanup(func() { n.end(time.Minute, 0, 1) })
	return n
}

// logged counts the panics that were logged with a stack.
func (n *panicNodes) logged() int32 { return int32(len(n.log.Lines("(*trap).here"))) }

// end shuts handlers down, within a time.
func (n *panicNodes) end(within time.Duration, which ...int) {
	n.t.Helper()
	for _, i := range which {
		if n.ended[i] {
			continue
		}
		n.ended[i] = true
		ctx, stop := context.WithTimeout(context.Background(), within)
		defer stop()
		if err := n.handlers[i].Shutdown(ctx); err != nil && within >= time.Minute {
			n.t.Errorf("handler %d: %v", i, err)
		}
	}
}

// send sends a request, and returns its response, or "".
func (n *panicNodes) send(node int, session, method, params string) (id, response string) {
	n.t.Helper()
	text, body := n.open(node, session, method, params)
	defer body.Close()
	all, err := io.ReadAll(body)
	if err != nil {
		n.t.Errorf("%s: %v", method, err)
	}
	for line := range strings.Lines(string(all)) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "data: ")
		if m, err := jsonrpc.Parse([]byte(line)); strings.HasPrefix(line, "{") && (err != nil || m.Kind == jsonrpc.Response) {
			response = line
		}
	}
	return text, response
}

// open sends a request, or a notification, and returns its session's id and the body of the answer.
func (n *panicNodes) open(node int, session, method, params string) (id string, body io.ReadCloser) {
	n.t.Helper()
	n.ids++
	text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, n.ids, method, params)
	if strings.HasPrefix(method, "notifications/") {
		text = fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
	}
	ctx, stop := context.WithTimeout(n.t.Context(), time.Minute)
	n.t.Cleanup(stop)
	c := &mcptest.Client{URL: n.urls[node], Session: session, Header: []string{"Authorization", "Bearer alice"}, HTTP: mcptest.Unpooled}
	res, err := c.Send(ctx, http.MethodPost, text)
	if err != nil {
		n.t.Fatalf("%s: %v", method, err)
	}
	return res.Header.Get("Mcp-Session-Id"), res.Body
}

const initializeParams = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`

// begin begins a session.
func (n *panicNodes) begin(node int) string {
	n.t.Helper()
	id, response := n.send(node, "", "initialize", initializeParams)
	if id == "" || !strings.Contains(response, `"result"`) {
		n.t.Fatalf("initialize: %q", response)
	}
	n.send(node, id, "notifications/initialized", "{}")
	return id
}

const (
	callSafe   = `{"name":"safe","arguments":{}}`
	callUnsafe = `{"name":"other","arguments":{}}`
)

// works checks that a session still answers calls.
func (n *panicNodes) works(node int, session string) {
	n.t.Helper()
	if _, response := n.send(node, session, "tools/call", callSafe); !strings.Contains(response, `"result"`) {
		n.t.Errorf("a call afterwards: %q", response)
	}
}

// fails checks that a request gets an internal error without the panic's value,
// and that the panic was logged once.
func (n *panicNodes) fails(node int, session, method, params string) {
	n.t.Helper()
	before := n.logged()
	_, response := n.send(node, session, method, params)
	if !strings.Contains(response, `"code":-32603`) || strings.Contains(response, "hunter2") {
		n.t.Errorf("%s: %q", method, response)
	}
	if hit, logged := n.hit.Load(), n.logged()-before; hit != 1 || logged != 1 {
		n.t.Errorf("%s: panicked %d times, logged %d", method, hit, logged)
	}
}

// TestUserPanics lets a user's code panic wherever it is called: while a session is begun, in its
// life, after its backend has died, and where the session is taken over. The call ends with an
// error, and the session, its node and all other sessions go on. This is failure 17.
func TestUserPanics(t *testing.T) {
	t.Parallel()
	const prompt = `{"name":"prompt"}`
	for _, c := range []struct{ kind, at, method, params, phases string }{
		{"backend", "Open", "initialize", initializeParams, "begin"},
		{"backend", "Open", "tools/call", callSafe, "dead taken"},
		{"backend", "Deliver initialize", "initialize", initializeParams, "begun"},
		{"backend", "Deliver initialize", "tools/call", callUnsafe, "dead taken"},
		{"backend", "Deliver notifications/initialized", "tools/call", callSafe, "dead taken"},
		{"backend", "Deliver tools/call", "tools/call", callSafe, "life dead taken forward"},
		{"raw", "Serve initialize", "initialize", initializeParams, "begun"},
		{"raw", "Serve initialize", "tools/call", callUnsafe, "taken"},
		{"raw", "Serve tools/call", "tools/call", callSafe, "life taken forward"},
		{"raw", "Serve tools/call", "tools/call", callUnsafe, "life taken forward"},
		{"raw", "Principal", "initialize", initializeParams, "begin"},
		{"raw", "Principal", "tools/call", callSafe, "life taken forward"},
		{"raw", "Safe", "tools/call", callSafe, "life taken forward"},
		{"sdk", "getServer", "initialize", initializeParams, "begin"},
		{"sdk", "getServer", "tools/call", callSafe, "taken"},
		{"sdk", "receiving initialize", "initialize", initializeParams, "begun"},
		{"sdk", "receiving tools/call", "tools/call", callSafe, "life taken forward"},
		{"sdk", "receiving tools/call", "tools/call", `{"name":"safe","arguments":{},"extra":1}`, "life taken forward"}, // not a direct call, but one that goes through the SDK
		{"sdk", "tool", "tools/call", callSafe, "life taken forward"},
		{"sdk", "prompt", "prompts/get", prompt, "life taken forward"},
		{"sdk", "MarshalJSON", "tools/call", callSafe, "life taken"},
		{"sdk", "MarshalJSON", "prompts/get", prompt, "life taken"},
	} {
		for phase := range strings.FieldsSeq(c.phases) {
			t.Run(strings.Join([]string{c.kind, c.at, c.method, phase}, "/"), func(t *testing.T) {
				t.Parallel()
				n := newPanicNodes(t, c.kind)
				other := n.begin(1)
				node, id := 0, ""
				if !strings.HasPrefix(phase, "beg") {
					id = n.begin(0)
					n.works(0, id)
				}
				switch phase {
				case "dead":
					n.send(0, id, "die", "{}")
				case "forward":
					node = 1
				case "taken":
					node = 1
					n.end(time.Minute, 0)
				}
				n.set(c.at)
				n.fails(node, id, c.method, c.params)
				n.set("")
				if id == "" {
					id = n.begin(0)
				}
				n.works(node, id)
				n.works(1, other)
			})
		}
	}
}

// TestQuietPanics lets code panic that does not answer a request.
func TestQuietPanics(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, at string }{
		{"backend", "Deliver tools/list"},
		{"backend", "Deliver notifications/progress"},
		{"backend", "Close"},
		{"raw", "Closed"},
		{"raw", "Serve tools/list"},
		{"sdk", "InitializedHandler"},
		{"sdk", "receiving notifications/initialized"},
		{"sdk", "sending notifications/progress"},
	} {
		t.Run(c.kind+"/"+c.at, func(t *testing.T) {
			t.Parallel()
			n := newPanicNodes(t, c.kind)
			n.set(c.at)
			id := n.begin(0)
			n.send(0, id, "tools/call", callUnsafe) // its tools are listed first
			n.send(0, id, "notifications/progress", `{"progressToken":"x","progress":1}`)
			n.works(0, id)
			n.send(1, id, "tools/call", callSafe)
			n.end(time.Minute, 0)
			n.works(1, id)
			for end := time.Now().Add(time.Minute); n.hit.Load() != n.logged() && time.Now().Before(end); {
				time.Sleep(time.Millisecond) // polling: a panic outside of a call is logged at any time
			}
			if hit := n.hit.Load(); hit == 0 || hit != n.logged() {
				t.Errorf("panicked %d times, logged %d", hit, n.logged())
			}
		})
	}
}

// TestTakeOverPanics leaves calls to another node, where the backend panics. The calls
// end there with an error for their clients, and the node lives. This is failure 17.
func TestTakeOverPanics(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, at string }{
		{"backend", "Open"}, {"backend", "Deliver initialize"}, {"raw", "Serve tools/call"},
	} {
		t.Run(c.kind+"/"+c.at, func(t *testing.T) {
			t.Parallel()
			n := newPanicNodes(t, c.kind)
			other := n.begin(1)
			var read sync.WaitGroup
			const sessions = 3
			for range sessions {
				id := n.begin(0)
				_, body := n.open(1, id, "tools/call", `{"name":"safe","arguments":{"hold":"it"}}`)
				<-n.held
				read.Go(func() {
					defer body.Close()
					all, err := io.ReadAll(body)
					const want = `"code":-32010,"message":"outcome unknown: `
					if err != nil || strings.Count(string(all), `"error":`) != 1 || !strings.Contains(string(all), want) {
						t.Errorf("got %s, %v", all, err)
					}
				})
			}
			n.set(c.at)
			n.end(time.Millisecond, 0) // the calls are left to the other node
			read.Wait()
			if hit, logged := n.hit.Load(), n.logged(); hit != sessions || logged != sessions {
				t.Errorf("panicked %d times, logged %d", hit, logged)
			}
			n.set("")
			n.works(1, other)
			n.works(1, n.begin(1))
		})
	}
}

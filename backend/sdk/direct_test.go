package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdkrpc "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"holdfast/backend"
	"holdfast/jsonrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A heard is a message from a server, with the call that it belongs to.
type heard struct {
	call backend.Call
	jsonrpc.Message
}

// sink receives the messages of a server.
type sink chan heard

func (s sink) Emit(c backend.Call, m jsonrpc.Message) { s <- heard{c, m} }
func (s sink) EmitUnrelated(m jsonrpc.Message)        { s <- heard{nil, m} }
func (s sink) Closed(error, bool)                     {}

// client drives one session of a server.
type client struct {
	t    *testing.T
	conn backend.Conn
	sink
}

// open begins a session, and returns after the answer to initialize.
func open(t *testing.T, server *mcp.Server) *client {
	c := &client{t: t, sink: make(sink, 100)}
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	conn, err := New(func(*http.Request) *mcp.Server { return server }).
		Open(t.Context(), backend.Start{HTTP: r}, c.sink)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	c.conn = conn
	c.send(nil, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25",`+
		`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	if m := c.next(); m.Error != nil {
		t.Fatalf("initialize: %s", m.Error)
	}
	return c
}

const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// initialized ends the handshake, and waits until the server has handled the notification.
func (c *client) initialized() {
	c.send(nil, initialized)
	c.send(nil, `{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	c.next()
}

func (c *client) send(call backend.Call, text string) {
	c.t.Helper()
	m, err := jsonrpc.Parse([]byte(text))
	if err == nil {
		err = c.conn.Deliver(backend.Inbound{Message: m, Call: call, Context: c.t.Context(), Header: http.Header{"X": {"y"}}})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) next() heard {
	c.t.Helper()
	select {
	case m := <-c.sink:
		return m
	case <-time.After(time.Minute):
		c.t.Fatal("the server says nothing")
		return heard{}
	}
}

func toolCall(id int, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`, id, params)
}

type handler = func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error)

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func serverWith(o *mcp.ServerOptions, tools map[string]handler) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, o)
	for name, h := range tools {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	return s
}

// A handler gets the same request on the direct way and through the SDK, and the
// answers are the same. An unknown member of params takes a call off the direct way.
func TestBothWaysAreOne(t *testing.T) {
	s := serverWith(nil, map[string]handler{
		"echo": func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return text(fmt.Sprintf("%s %s %v %v <&>", r.Params.Name, r.Params.Arguments, r.Params.Meta, r.Extra.Header)), nil
		},
		"raw": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{StructuredContent: json.RawMessage("{\n\"a\":\"<\"}")}, nil
		},
		"wire": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, &sdkrpc.Error{Code: -32055, Message: "wire", Data: json.RawMessage(`{"a":1}`)}
		},
		"wrapped": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, fmt.Errorf("around: %w", &sdkrpc.Error{Code: -32055, Message: "wire"})
		},
		"plain": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, errors.New("plain")
		},
		"nothing": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return nil, nil },
		"no JSON": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{StructuredContent: json.RawMessage("{")}, nil
		},
	})
	c := open(t, s)
	c.initialized()
	for _, params := range []string{
		`{"name":"echo"}`,
		`{"name":"echo","arguments":{"a":[1,"ä\u00e4"],"b":null}}`,
		`{"name":"ec\u0068o","arguments":{},"_meta":{"progressToken":7,"x":{"y":[1.5]}}}`,
		`{"name":"echo","name":"raw"}`,
		`{"name":"echo","_meta":null}`,
		`{"name":"echo","_meta":{"a":1},"_meta":{"b":2}}`,
		`{"name":"raw","arguments":{}}`,
		`{"name":"wire"}`, `{"name":"wrapped"}`, `{"name":"plain"}`, `{"name":"nothing"}`,
		`{"name":"unknown"}`, `{"name":""}`, `{}`,
	} {
		c.send(nil, toolCall(1, params))
		direct := c.next()
		c.send(nil, toolCall(1, strings.Replace(params, "{", `{"unheard":1`+comma(params), 1)))
		around := c.next()
		if string(direct.Raw) != string(around.Raw) {
			t.Errorf("%s:\n directly %s\n   else   %s", params, direct.Raw, around.Raw)
		}
	}
	// The SDK does not answer this call at all.
	c.send(nil, toolCall(1, `{"name":"no JSON"}`))
	if m := c.next(); m.Error == nil {
		t.Errorf("what cannot be encoded is answered with %s", m.Raw)
	}
}

func comma(params string) string {
	if params == "{}" {
		return ""
	}
	return ","
}

func TestPlainCall(t *testing.T) {
	for params, want := range map[string]bool{
		`{"name":"a","arguments":{},"_meta":{"progressToken":1}}`: true,
		`{}`:                               true,
		`{"name":1}`:                       false,
		`{"name":null}`:                    false,
		`{"name":"a","arguments":null}`:    false,
		`{"name":"a","arguments":[]}`:      false,
		`{"name":"a","_meta":1}`:           false,
		`{"name":"a","task":{}}`:           false,
		`{"name":"a","inputResponses":{}}`: false,
		`{"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`: false,
		`["a"]`: false,
		``:      false,
	} {
		if _, ok := plainCall([]byte(params), nil); ok != want {
			t.Errorf("plainCall(%s) is %v", params, ok)
		}
	}
}

// Calls go through a middleware that is added while sessions are open, from then on.
func TestMiddlewareIsNeverPassedBy(t *testing.T) {
	s := serverWith(nil, map[string]handler{
		"echo": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text("echo"), nil },
	})
	c := open(t, s)
	c.initialized()
	for i := range 3 {
		c.send(nil, toolCall(1, `{"name":"echo"}`))
		if m := c.next(); (m.Error != nil) != (i > 0) {
			t.Errorf("with %d middlewares: %s", i, m.Raw)
		}
		s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == "tools/call" {
					return nil, fmt.Errorf("refused by %d", i)
				}
				return next(ctx, method, req)
			}
		})
	}
}

// fakeCall is a call that only its identity distinguishes.
type fakeCall struct{ _ byte }

func (*fakeCall) Disconnect(time.Duration) {}

// A handler's notifications go to its call, and its requests are answered.
func TestHandlerSpeaksAboutItsCall(t *testing.T) {
	s := serverWith(nil, map[string]handler{
		"talk": func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken()})
			if err == nil {
				err = r.Session.Ping(ctx, nil)
			}
			return text("done"), err
		},
	})
	c := open(t, s)
	c.initialized()
	call := new(fakeCall)
	c.send(call, toolCall(5, `{"name":"talk","_meta":{"progressToken":"p"}}`))
	if m := c.next(); m.call != call || m.Method != "notifications/progress" || string(jsonrpc.Field(m.Params, "progressToken")) != `"p"` {
		t.Errorf("got %s of call %v, want progress of %p", m.Raw, m.call, call)
	}
	m := c.next()
	if m.call != call || m.Method != "ping" {
		t.Fatalf("got %s of call %v, want a ping of %p", m.Raw, m.call, call)
	}
	c.send(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID))
	if m := c.next(); m.call != call || string(m.ID) != "5" || !strings.Contains(string(m.Result), "done") {
		t.Errorf("got %s of call %v, want the answer of %p", m.Raw, m.call, call)
	}
}

// A call waits until the server has handled the notification before it.
func TestCallWaitsForNotification(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	see := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, what)
	}
	goOn := make(chan struct{})
	s := serverWith(&mcp.ServerOptions{InitializedHandler: func(context.Context, *mcp.InitializedRequest) {
		<-goOn
		see("initialized")
	}}, map[string]handler{
		"echo": func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			see("call")
			return text("echo"), nil
		},
	})
	c := open(t, s)
	c.send(nil, initialized)
	c.send(nil, toolCall(1, `{"name":"echo"}`))
	c.send(nil, toolCall(2, `{"name":"echo"}`))
	close(goOn)
	c.next()
	c.next()
	if got := fmt.Sprint(seen); got != "[initialized call call]" {
		t.Errorf("the server saw %s", got)
	}
}

// When a call is cancelled, or its session closed, the handler's context ends.
func TestDirectCallIsCancelled(t *testing.T) {
	began := make(chan struct{})
	s := serverWith(nil, map[string]handler{
		"wait": func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			began <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	c := open(t, s)
	c.initialized()
	c.send(nil, toolCall(1, `{"name":"wait"}`))
	<-began
	c.send(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if m := c.next(); m.Error == nil {
		t.Errorf("a cancelled call ends with %s", m.Raw)
	}
	c.send(nil, toolCall(2, `{"name":"wait"}`))
	<-began
	if err := c.conn.Close(); err != nil { // waits for the handler's end
		t.Error(err)
	}
	select {
	case m := <-c.sink:
		t.Errorf("after the end the server says %s", m.Raw)
	default:
	}
}

// A client's answer with an error that is not as JSON-RPC defines it ends the handler's question, with what can be read of it.
func TestAnswerWithOddError(t *testing.T) {
	server := serverWith(nil, map[string]handler{"ask": func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_, err := req.Session.ListRoots(ctx, nil) //nolint:staticcheck // older revisions have it
		var said *sdkrpc.Error
		if !errors.As(err, &said) {
			return text(fmt.Sprint("no error of the client: ", err)), nil
		}
		return text(fmt.Sprint(said.Code, " ", said.Message)), nil
	}})
	c := open(t, server)
	c.initialized()
	for answer, want := range map[string]string{
		`{"code":-1,"message":"no"}`:   "-1 no",
		`{"code":-1.0,"message":"no"}`: "-1 no",
		`{"code":"x","message":"no"}`:  "0 no",
		`{"code":-2,"message":[]}`:     `-2 {\"code\":-2,\"message\":[]}`,
	} {
		c.send(nil, toolCall(7, `{"name":"ask"}`))
		c.send(nil, `{"jsonrpc":"2.0","id":`+string(c.next().ID)+`,"error":`+answer+`}`)
		if m := c.next(); !strings.Contains(string(m.Result), `"text":"`+want+`"`) {
			t.Errorf("%s: %s", answer, m.Raw)
		}
	}
}

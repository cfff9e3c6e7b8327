package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"holdfast"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A call that is resumed over a WebSocket has its position in State like any other, and gets its
// response, even an error that looks like a refusal of requests/resume.
func TestWebSocketResume(t *testing.T) {
	t.Parallel()
	url, _ := wsServer(t, func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		switch {
		case m.Method == "requests/getStatus":
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{"requestId":7,"status":"failed","hasPendingMessage":false,"hasInputRequest":false}}`, m.ID)
		case m.Method == "requests/resume" && string(m.ID) == "7":
			utter(ws, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"no such tool"}}`)
		case m.Method == "requests/resume":
			utter(ws, `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":%s,"resumeToken":"u","_meta":{"holdfast/eventId":"c.1.1"}}}`, m.ID)
			utter(ws, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x","_meta":{"holdfast/eventId":"c.1.2"}}}`)
		}
		return true
	})
	r := newRaw(t, url, client.Options{NoListen: true})
	r.open()
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	m, err := r.Resume(ctx, client.CallState{ID: []byte("7"), Method: "tools/call", Token: "t"})
	if err != nil || !strings.Contains(string(m.Error), "no such tool") || strings.Contains(string(m.Error), "unknown") {
		t.Errorf("%s, %v", m.Error, err)
	}
	resumed, leave := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := r.Resume(resumed, client.CallState{ID: []byte("8"), Method: "tools/call", Token: "t"})
		ended <- err
	}()
	r.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/message" })
	if s := r.State(); s.LastEventID != "" {
		t.Errorf("%s is taken for an event of the standalone stream", s.LastEventID)
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// On a connection that all calls share, a resumed call and a new one must not have the same
// id: the second is refused, and the first is not disturbed.
func TestWebSocketResumeSameID(t *testing.T) {
	t.Parallel()
	resumed, on := make(chan struct{}, 1), make(chan struct{})
	url, _ := wsServer(t, func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		switch m.Method {
		case "ping":
			close(on)
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
			utter(ws, `{"jsonrpc":"2.0","id":1,"result":{"made":"here"}}`)
			utter(ws, `{"jsonrpc":"2.0","id":2,"result":{"made":"elsewhere"}}`)
		case "requests/resume":
			resumed <- struct{}{}
		}
		return true
	})
	r := newRaw(t, url, client.Options{NoListen: true})
	r.open()
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	if m, err := r.Resume(ctx, client.CallState{ID: []byte("1"), Method: "tools/call", Token: "t"}); !errors.Is(err, client.ErrDuplicate) {
		t.Errorf("resumed, though the id is in flight: %s, %v", m.Raw, err)
	}
	ended := make(chan string, 1)
	go func() {
		m, err := r.Resume(ctx, client.CallState{ID: []byte("2"), Method: "tools/call", Token: "t"})
		if err != nil {
			ended <- err.Error()
			return
		}
		ended <- string(m.Raw)
	}()
	<-resumed
	r.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"x"}}`)
	if m := r.answer("2"); !strings.Contains(string(m.Error), "not sent") {
		t.Errorf("sent under an id that is in flight: %s", m.Raw)
	}
	r.send(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	if m := r.answer("1"); !strings.Contains(string(m.Result), "here") {
		t.Errorf("%s", m.Raw)
	}
	if got := <-ended; !strings.Contains(got, "elsewhere") {
		t.Error(got)
	}
	<-on
}

// A request that was not sent, because there was no connection, is sent again over another, also
// where the server offers no way back.
func TestUnsentIsSentAgain(t *testing.T) {
	t.Parallel()
	var hang atomic.Bool
	never := make(chan struct{})
	defer close(never)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if hang.CompareAndSwap(true, false) {
			<-never
			return nil, errors.New("never")
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	url := mcptest.Serve(t, mcptest.Methods{})
	r := newRaw(t, url, client.Options{
		NoListen: true, HTTPClient: &http.Client{Transport: transport}, AnswerTimeout: time.Second,
	})
	r.open()
	hang.Store(true)
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	if m := r.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Error)
	}
}

// A call that one official client began is finished by another. That one has only the
// CallState, in a process, a session and with ids of its own.
func TestResumeOfficial(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	began := make(chan struct{}, 1)
	first := holdfast.NewClientTransport(g.url, nil)
	a, err := mcp.NewClient(impl, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { began <- struct{}{} },
	}).Connect(ctx, first, nil)
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: "wait", Arguments: map[string]any{}}
		p.SetProgressToken("p")
		_, err := a.CallTool(ctx, p)
		left <- err
	}()
	<-began
	call := first.State().Calls[0]
	first.Detach()
	if err := <-left; err == nil {
		t.Error("the call ended here")
	}

	progress := make(chan float64, 10)
	second := holdfast.NewClientTransport(g.url, nil)
	b, err := mcp.NewClient(impl, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { progress <- req.Params.Progress },
	}).Connect(ctx, second, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	close(g.open)
	text := mcptest.Must(second.Resume(ctx, call))(t)
	var result mcp.CallToolResult
	if err := json.Unmarshal(text, &result); err != nil || result.StructuredContent != 1.0 {
		t.Errorf("%s: %v", text, err)
	}
	if got := <-progress; got != 2 {
		t.Errorf("progress %v: what was told before is told again", got)
	}
	if _, err := second.Resume(ctx, client.CallState{ID: call.ID, Method: call.Method, Token: "wrong"}); !holdfast.OutcomeUnknown(err) {
		t.Errorf("a wrong token: %v", err)
	}
	if err := b.Ping(ctx, nil); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// A Conn with a session of its own resumes a call of another session. It looks for the call in that
// session: there the event id has its meaning, and under its key the tool does not run a second time.
func TestResumeForeign(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		withheld withheld
		forget   func(*client.CallState)
	}{
		"event id": {withheld{}, func(c *client.CallState) { c.Stream, c.Token, c.Key = "", "", "" }},
		"key":      {withheld{link: true, ids: true, policy: true}, func(*client.CallState) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			at := g.behind(t, test.withheld)
			a, b := newRaw(t, at, client.Options{}), newRaw(t, at, client.Options{})
			a.open()
			b.open()
			a.send(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
			a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
			call := a.State().Calls[0]
			a.Detach()
			test.forget(&call)
			close(g.open)
			ctx, stop := context.WithTimeout(t.Context(), soon)
			defer stop()
			m, err := b.Resume(ctx, call)
			if err != nil || m.Error != nil || g.runs.Load() != 1 {
				t.Errorf("%s, %v, after %d runs", m.Raw, err, g.runs.Load())
			}
			// The end of the call's session does not end the session of the Conn's other calls.
			call.Session = "gone"
			before := b.SessionID()
			if m, err := b.Resume(ctx, call); err != nil || !strings.Contains(string(m.Error), "outcome unknown") {
				t.Errorf("of a session that is gone: %s, %v", m.Raw, err)
			}
			b.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			if m := b.answer("1"); m.Error != nil || b.SessionID() != before || g.runs.Load() != 1 {
				t.Errorf("after that: %s, after %d runs", m.Raw, g.runs.Load())
			}
		})
	}
}

// An official client over a WebSocket resumes another one's call by its token alone. A client
// over HTTP+SSE cannot, and returns an error. A State among its options changes nothing.
func TestTransportResumesOverMux(t *testing.T) {
	t.Parallel()
	server, open := mcp.NewServer(impl, nil), make(chan struct{})
	mcp.AddTool(server, &mcp.Tool{Name: "wait"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: 1})
		select {
		case <-open:
		case <-ctx.Done():
		}
		return nil, "done", ctx.Err()
	})
	base := mcptest.Serve(t, mcptest.Endpoints(holdfastOf(t, server, nil)))
	url := base + "/mcp"
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	began := make(chan struct{}, 1)
	first := holdfast.NewClientTransport(url, nil)
	a, err := mcp.NewClient(impl, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { began <- struct{}{} },
	}).Connect(ctx, first, nil)
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: "wait", Arguments: map[string]any{}}
		p.SetProgressToken("p")
		_, err := a.CallTool(ctx, p)
		left <- err
	}()
	<-began
	state := first.State()
	first.Detach()
	if err := <-left; err == nil {
		t.Error("the call ended here")
	}
	call := state.Calls[0]
	old := holdfast.NewClientTransport(base+"/sse", nil)
	b := mcptest.Must(mcp.NewClient(impl, nil).Connect(ctx, old, nil))(t)
	defer b.Close()
	if _, err := old.Resume(ctx, client.CallState{ID: call.ID, Method: call.Method, Token: call.Token}); !holdfast.OutcomeUnknown(err) ||
		!strings.Contains(err.Error(), "Streamable HTTP") {
		t.Errorf("over HTTP+SSE: %v", err)
	}
	line := holdfast.NewClientTransport("ws"+strings.TrimPrefix(url, "http"), &holdfast.ClientOptions{Options: client.Options{State: &state}})
	c := mcptest.Must(mcp.NewClient(impl, nil).Connect(ctx, line, nil))(t)
	defer c.Close()
	close(open)
	if text, err := line.Resume(ctx, client.CallState{ID: call.ID, Method: call.Method, Token: call.Token}); err != nil || !strings.Contains(string(text), "done") {
		t.Errorf("over a WebSocket: %s, %v", text, err)
	}
}

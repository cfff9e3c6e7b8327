package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/client"
	"holdfast/jsonrpc"
)

// Who resumes a call over a WebSocket on which it was not made hears where it is in its
// stream as of any other, and how it ended, be that an error that looks like a refusal
// to resume it.
func TestSocketGuest(t *testing.T) {
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

// Over one connection for everything a call that is resumed and one that is made must
// not have the same id: the second of them is refused here, and the first unharmed.
func TestSocketGuestAlike(t *testing.T) {
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

// A request that is cancelled before there is a connection to send it over is not sent.
func TestSocketCancelledUnsent(t *testing.T) {
	t.Parallel()
	var began atomic.Int32
	url, _ := wsServer(t, func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool {
		switch m.Method {
		case "tools/call":
			began.Add(1)
		case "ping":
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		case "cut":
			return n > 1
		}
		return true
	})
	var shut atomic.Bool
	away := make(chan error, 100)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if shut.Load() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("shut")}
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	t.Cleanup(transport.CloseIdleConnections)
	r := newRaw(t, url, client.Options{
		NoListen: true, HTTPClient: &http.Client{Transport: transport}, Away: func(err error) { away <- err },
	})
	r.open()
	shut.Store(true)
	r.send(`{"jsonrpc":"2.0","id":1,"method":"cut"}`)
	if err := <-away; err == nil {
		t.Error("away for no reason")
	}
	const many = 10
	for i := range many {
		r.send(`{"jsonrpc":"2.0","id":"c%d","method":"tools/call","params":{"name":"x"}}`, i)
		r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c%d"}}`, i)
	}
	shut.Store(false)
	for i := range 3 * many { // those that were to be sent are by then
		r.send(`{"jsonrpc":"2.0","id":"p%d","method":"ping"}`, i)
		r.answer(fmt.Sprintf(`"p%d"`, i))
	}
	if n := began.Load(); n > 0 {
		t.Errorf("%d that were cancelled before have been sent", n)
	}
}

// A call that is in flight when a Conn is detached is part of its State after that, too:
// an answer that comes between the two would be nobody's.
func TestStateAfterDetach(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			url := scheme + strings.TrimPrefix(g.url, "http")
			a := newRaw(t, url, client.Options{})
			a.open()
			a.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
			a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
			a.Detach()
			s := a.State()
			if len(s.Calls) != 1 {
				t.Fatalf("%+v", s)
			}
			close(g.open)
			b := newRaw(t, url, client.Options{State: &s})
			if m := b.answer("7"); m.Error != nil || g.runs.Load() != 1 {
				t.Errorf("%s, after %d runs", m.Raw, g.runs.Load())
			}
		})
	}
}

// What a server has continued on the standalone stream, as it took the call's own
// connection for lost, is not told again when that is read after all.
func TestContinuedThenRead(t *testing.T) {
	t.Parallel()
	for name, hello := range map[string]string{"ours": keyedGreeting, "another": greeting} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			continuedThenRead(t, hello)
		})
	}
}

func continuedThenRead(t *testing.T, hello string) {
	t.Helper()
	heard, listens := make(chan struct{}), make(chan struct{})
	const progress = "id: c.1.%d\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":%d}}\n\n"
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Mcp-Session-Id", "s")
		id := jsonrpc.Field(body, "id")
		flush := func() { _ = http.NewResponseController(w).Flush() }
		switch method := jsonrpc.String(jsonrpc.Field(body, "method")); {
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Type", typeEvents)
			flush()
			<-listens
			fmt.Fprintf(w, progress, 1, 1)
			flush()
			<-r.Context().Done()
		case method == "initialize":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, hello, id)
		case method == "tools/call":
			w.Header().Set("Content-Type", typeEvents)
			flush()
			close(listens)
			<-heard
			fmt.Fprintf(w, progress+progress+"data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", 1, 1, 2, 2, id)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	r := newRaw(t, url, client.Options{})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	var told []string
	r.until(func(m jsonrpc.Message) bool {
		if m.Method == "notifications/progress" {
			if told = append(told, string(jsonrpc.Field(m.Params, "progress"))); len(told) == 1 {
				close(heard)
			}
		}
		return m.Kind == jsonrpc.Response
	})
	if got := strings.Join(told, " "); got != "1 2" {
		t.Errorf("progress came as %s", got)
	}
}

// A request that another Conn may have sent without an idempotency key is not sent again
// under a new one.
func TestUnsureUnderNoNewKey(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	url, _ := wsServer(t, func(_ *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		if m.Method == "tools/call" {
			calls.Add(1)
		}
		return true
	})
	http := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && jsonrpc.String(jsonrpc.Field(body, "method")) == "tools/call" {
			calls.Add(1)
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	for _, url := range []string{url, http} {
		r := newRaw(t, url, client.Options{NoListen: true, State: &client.State{
			URL: url, Session: "s", Revision: "2025-11-25", Keys: true, Ready: true, Calls: []client.CallState{{
				ID: []byte("1"), Method: "tools/call", Request: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`),
			}},
		}})
		if m := r.answer("1"); !strings.Contains(string(m.Error), "outcome unknown") || calls.Load() > 0 {
			t.Errorf("%s: %s, sent %d times", url, m.Raw, calls.Load())
		}
	}
}

// A call that the host has cancelled is on record until the server was told.
func TestCancelledOnRecord(t *testing.T) {
	t.Parallel()
	called, came, told := make(chan struct{}), make(chan struct{}), make(chan struct{})
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch id := jsonrpc.Field(body, "id"); jsonrpc.String(jsonrpc.Field(body, "method")) {
		case "initialize":
			fmt.Fprintf(w, greeting, id)
		case "tools/call":
			w.Header().Set("Content-Type", typeEvents)
			fmt.Fprint(w, ": \n\n")
			_ = http.NewResponseController(w).Flush()
			close(called)
			<-r.Context().Done()
		case "notifications/cancelled":
			close(came)
			<-told
			w.WriteHeader(http.StatusAccepted)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	left := make(chan struct{}, 1)
	r := newRaw(t, url, client.Options{NoListen: true, Changed: func() {
		select {
		case left <- struct{}{}:
		default:
		}
	}})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	<-called
	r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	<-came
	if s := r.State(); len(s.Calls) != 1 {
		t.Errorf("%+v", s.Calls)
	}
	close(told)
	for len(r.State().Calls) > 0 {
		select {
		case <-left:
		case <-time.After(soon):
			t.Fatal("it stays on record")
		}
	}
}

// What the host has cancelled is told to the server also if it leaves there and then.
func TestCancelAndLeave(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			a := newRaw(t, scheme+strings.TrimPrefix(g.url, "http"), client.Options{})
			a.open()
			a.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
			a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
			s := a.State()
			a.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
			a.Detach()
			b := newRaw(t, g.url, client.Options{State: &client.State{URL: g.url, Revision: s.Revision}, NoListen: true})
			for until := time.Now().Add(soon / 2); ; time.Sleep(time.Millisecond) {
				if got, err := b.StatusOf(t.Context(), s.Calls[0]); err != nil || got.Status != "processing" {
					break
				}
				if time.Now().After(until) {
					t.Fatal("the call goes on")
				}
			}
		})
	}
}

// A request that has not left, as its connection never came to be, is sent again over
// another, also where the server offers no way to ask for it.
func TestUnsentAgain(t *testing.T) {
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
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch id := jsonrpc.Field(body, "id"); {
		case id == nil:
			w.WriteHeader(http.StatusAccepted)
		case jsonrpc.String(jsonrpc.Field(body, "method")) == "initialize":
			fmt.Fprintf(w, greeting, id)
		default:
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		}
	}))
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

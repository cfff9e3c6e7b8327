package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A request that the host cancels is cancelled at the server, and gets no response.
func TestCancel(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	a := newRaw(t, g.url, client.Options{})
	a.open()
	a.send(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":"p"}}}`)
	a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/progress" })
	s := a.State()
	a.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	b := newRaw(t, s.URL, client.Options{State: &client.State{URL: s.URL, Revision: s.Revision}, NoListen: true})
	for {
		if got, err := b.Status(t.Context(), s.Calls[0]); err != nil || got.Status != "processing" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	a.send(`{"jsonrpc":"2.0","id":8,"method":"ping"}`)
	if m := a.answer("8"); m.Error != nil || string(m.Result) != "{}" {
		t.Errorf("%s", m.Raw)
	}
}

// A request that is cancelled before there is a connection is not sent.
func TestWebSocketCancelBeforeConnection(t *testing.T) {
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
	for i := range 3 * many { // requests that were to be sent are sent by then
		r.send(`{"jsonrpc":"2.0","id":"p%d","method":"ping"}`, i)
		r.answer(fmt.Sprintf(`"p%d"`, i))
	}
	if n := began.Load(); n > 0 {
		t.Errorf("%d that were cancelled before have been sent", n)
	}
}

// A call that the host has cancelled stays in State until the server has the cancellation.
func TestCancelledStaysInState(t *testing.T) {
	t.Parallel()
	called, came, told := make(chan struct{}), make(chan struct{}), make(chan struct{})
	url := mcptest.Serve(t, mcptest.Methods{
		"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			events(": \n\n")(w, r, m)
			close(called)
			<-r.Context().Done()
		},
		"notifications/cancelled": func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
			close(came)
			<-told
			w.WriteHeader(http.StatusAccepted)
		},
	})
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

// A cancellation reaches the server even if the Conn is detached at once.
func TestCancelThenDetach(t *testing.T) {
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
				if got, err := b.Status(t.Context(), s.Calls[0]); err != nil || got.Status != "processing" {
					break
				}
				if time.Now().After(until) {
					t.Fatal("the call goes on")
				}
			}
		})
	}
}

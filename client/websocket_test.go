package client_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/client"
	"holdfast/jsonrpc"
)

// A message of the server that is too large fails the call that it responds to, and no other call.
func TestWebSocketTooLarge(t *testing.T) {
	t.Parallel()
	url, dials := wsServer(t, func(ws *websocket.Conn, _ int32, m jsonrpc.Message) bool {
		if m.Kind != jsonrpc.Request {
			return true
		}
		long := strings.Repeat("x", 20000)
		switch jsonrpc.String(jsonrpc.Field(m.Params, "name")) {
		case "before":
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{"id":0,"\"id":"\\\"%s"}}`, m.ID, long)
		case "after":
			utter(ws, `{"jsonrpc":"2.0","result":[{"x":"%s","id":0}], "id" : %s}`, long, m.ID)
		case "other":
			utter(ws, `{"jsonrpc":"2.0","method":"x","params":{"x":"%s"}}`, long)
			utter(ws, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		}
		return true
	})
	r := newRaw(t, url, client.Options{MaxMessage: 10000})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":"held","method":"tools/call","params":{"name":"held"}}`)
	for i, name := range []string{"before", "after", "other"} {
		id := fmt.Sprint(i + 1)
		r.send(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q}}`, id, name)
		m := r.answer(id)
		if name == "other" && m.Error != nil ||
			name != "other" && !strings.Contains(string(m.Error), "outcome unknown: a message of the server is larger than 10000 bytes") {
			t.Errorf("%s: %s", name, m.Raw)
		}
	}
	if n, calls := dials.Load(), r.State().Calls; n != 1 || len(calls) != 1 {
		t.Errorf("%d connections, in flight %v", n, calls)
	}
}

// A request that is too large for the server fails, and other calls continue.
func TestWebSocketRequestTooLarge(t *testing.T) {
	t.Parallel()
	url := "ws" + strings.TrimPrefix(holdfastServer(t, &holdfast.Options{MaxBody: 64 << 10}), "http")
	r := newRaw(t, url, client.Options{})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask","arguments":{}}}`)
	question := r.until(func(m jsonrpc.Message) bool { return m.Method == "elicitation/create" })
	r.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"add","arguments":{"x":%q}}}`, strings.Repeat("x", 1<<20))
	if m := r.answer("2"); !strings.Contains(string(m.Error), "as large as this") || strings.Contains(string(m.Error), "outcome unknown") {
		t.Errorf("%.300s", m.Raw)
	}
	// A response of the host that is too large becomes an error.
	r.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"name":%q}}}`, question.ID, strings.Repeat("x", 1<<20))
	if m := r.answer("1"); !strings.Contains(string(m.Raw), "as large as this") {
		t.Errorf("%.300s", m.Raw)
	}
}

// Lost replies are written to a new connection while it is read: this server reads the second
// only after the client has read a message.
func TestWebSocketRepliesWhileRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		heard, done := 0, make(chan struct{}) // heard is used by one connection at a time
		s := &sockets{t: t, say: func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool {
			switch {
			case m.Method == "tools/call":
				utter(ws, `{"jsonrpc":"2.0","id":"a","method":"elicitation/create","params":{}}`)
				utter(ws, `{"jsonrpc":"2.0","id":"b","method":"elicitation/create","params":{}}`)
			case m.Kind == 0:
				return n > 1 // the first connection confirms none
			case m.Kind == jsonrpc.Response:
				if heard++; n == 1 {
					return heard < 2
				}
				utter(ws, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%d}}`, heard)
				if heard == 4 {
					close(done)
				}
			}
			return true
		}}
		url, hc := serveInside(t, s)
		r := newRaw(t, "ws"+strings.TrimPrefix(url, "http"), client.Options{HTTPClient: hc})
		r.open()
		r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
		for range 2 {
			m := r.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
			r.send(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		}
		<-done
		if n := s.dials.Load(); n != 2 {
			t.Errorf("%d connections", n)
		}
	})
}

// A lost reply is sent again, however many replies came before it. A reply that the server
// has is not sent again, and neither are replies to pings.
func TestWebSocketReplies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 1100
		// The client asks with pings, one after the other, which answers the server has. A
		// ping that comes after an answer may be about earlier answers. Each further
		// question waits for one more ping: the second of these is about all of the many
		// answers, and the third shows that the second question was answered.
		const more = 3
		var heard, again atomic.Int32
		asked, due := 0, false // used only by the goroutine that reads
		ask := func(ws *websocket.Conn) {
			id := "more"
			if due, asked = false, asked+1; asked > more {
				id = "last"
			}
			utter(ws, `{"jsonrpc":"2.0","id":%q,"method":"elicitation/create","params":{}}`, id)
		}
		done := make(chan struct{})
		url, hc := serveInside(t, &sockets{t: t, say: func(ws *websocket.Conn, n int32, m jsonrpc.Message) bool {
			switch id := jsonrpc.String(m.ID); {
			case m.Method == "tools/call" && n == 1:
				for i := range many {
					utter(ws, `{"jsonrpc":"2.0","id":"p%d","method":"ping"}`, i)
					utter(ws, `{"jsonrpc":"2.0","id":"e%d","method":"elicitation/create","params":{}}`, i)
				}
			case m.Kind == 0 && due:
				ask(ws)
			case m.Kind != jsonrpc.Response:
			case id == "last" && n == 1:
				return false // as if the answer had been lost with the connection
			case id == "last":
				close(done)
			case n > 1:
				again.Add(1)
			case id == "more":
				due = true
			case heard.Add(1) == 2*many:
				synctest.Wait() // until the client has noted that it wrote them
				ask(ws)
			}
			return true
		}})
		r := newRaw(t, "ws"+strings.TrimPrefix(url, "http"), client.Options{HTTPClient: hc})
		r.open()
		r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
		for range many + more + 1 { // the Conn answers pings itself
			m := r.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
			r.send(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		}
		select {
		case <-done:
		case <-time.After(soon):
			t.Fatal("the last answer was lost")
		}
		if n := again.Load(); n > 1 { // the answer before the last may not be confirmed yet
			t.Errorf("%d answers were sent again", n)
		}
	})
}

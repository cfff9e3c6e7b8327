package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// handshake lists the headers of a GET that asks for a WebSocket.
var handshake = []string{
	"Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
}

// TestHandshake checks the answers to valid and invalid handshakes of a WebSocket.
func TestHandshake(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Principal: bearer, AllowedOrigins: []string{"https://ok.example"}}})
	alice := n.connect("2025-11-25", http.Header{"Authorization": {"Bearer alice"}})
	with := func(extra ...string) []string { return append(append([]string{}, handshake...), extra...) }
	without := func(name string) (head []string) {
		for _, line := range handshake {
			if !strings.HasPrefix(line, name) {
				head = append(head, line)
			}
		}
		return head
	}
	for what, tc := range map[string]struct {
		head   []string
		status int
		id     string // session header
	}{
		"plain":                 {handshake, 101, ""},
		"a page allowed":        {with("Origin: https://ok.example"), 101, ""},
		"a page of this host":   {with("Origin: http://" + n.addr), 101, ""},
		"a page of another":     {with("Origin: https://evil.example"), 403, ""},
		"no page":               {with("Origin: null"), 403, ""},
		"another's name":        {with("Host: evil.example"), 403, ""},
		"an unknown revision":   {with("MCP-Protocol-Version: 1999-01-01"), 400, ""},
		"an unknown session":    {handshake, 404, "nobody"},
		"another's session":     {with("Authorization: Bearer bob"), 404, alice.id},
		"nobody's":              {handshake, 404, alice.id},
		"her own":               {with("Authorization: Bearer alice"), 101, alice.id},
		"her own, from nowhere": {with("Authorization: Bearer alice", "Last-Event-ID: nonsense"), 400, alice.id},
		"an old version":        {append(without("Sec-WebSocket-Version"), "Sec-WebSocket-Version: 8"), 400, ""},
		"no key":                {without("Sec-WebSocket-Key"), 400, ""},
		"no connection":         {without("Connection"), 426, ""},
	} {
		t.Run(what, func(t *testing.T) {
			sessions := n.sessions.Sessions()
			p := &peer{n: n, id: tc.id}
			var head strings.Builder
			host := "Host: " + n.addr
			for _, line := range tc.head {
				if strings.HasPrefix(line, "Host: ") {
					host = line
				} else {
					head.WriteString(line + "\r\n")
				}
			}
			if tc.id != "" {
				head.WriteString("Mcp-Session-Id: " + tc.id + "\r\n")
			}
			c, err := net.Dial("tcp", n.addr)
			if err != nil {
				t.Fatal(err)
			}
			w := &wire{t: t, c: c.(*net.TCPConn)}
			defer func() { _ = w.c.Close() }()
			if _, err := fmt.Fprintf(c, "GET /mcp HTTP/1.1\r\n%s\r\n%s\r\n", host, &head); err != nil {
				t.Fatal(err)
			}
			res := w.head()
			id := res.Header.Get("Mcp-Session-Id")
			if res.StatusCode != tc.status || (id != "") != (tc.status == 101) || tc.id != "" && id != "" && id != p.id {
				t.Fatalf("got %d with session %q, want %d", res.StatusCode, id, tc.status)
			}
			if id != "" && tc.id == "" {
				if n.sessions.Sessions() != sessions+1 {
					t.Error("there is no session")
				}
				_ = w.c.Close()
			}
			// The session of a client that has sent no message ends with its connection.
			mcptest.Eventually(t, "the session to end", time.Minute, func() bool { return n.sessions.Sessions() == sessions })
		})
	}
	alice.works("strangers")

	c, res, err := n.dialSocket(0)
	if err != nil || res.Header.Get("Sec-WebSocket-Protocol") != "mcp" {
		t.Errorf("subprotocol %q, %v", res.Header.Get("Sec-WebSocket-Protocol"), err)
	}
	c.begin("2025-11-25", "")

	p := &peer{n: newNode(t, config{server: server.Options{Shared: session.Shared{Stateless: true}}})}
	if r := p.open("GET", "/mcp", "", handshake...).all(); r.status != 405 {
		t.Errorf("stateless: %d", r.status)
	}
	if err := p.n.ServeConn(t.Context(), strings.NewReader(""), nil); err == nil {
		t.Error("stateless: pipes are served")
	}
}

// TestSocketBinary sends a frame that is not text: it is refused, and the connection goes on.
func TestSocketBinary(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	c, _, err := websocket.Dial(t.Context(), "ws://"+n.addr+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseNow() }()
	if err := c.Write(t.Context(), websocket.MessageBinary, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	if _, data, err := c.Read(t.Context()); err != nil || !strings.Contains(string(data), "text frames") {
		t.Errorf("got %s (%v)", data, err)
	}
	if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	if _, data, err := c.Read(t.Context()); err != nil || !strings.Contains(string(data), "first message") {
		t.Errorf("got %s (%v)", data, err)
	}
}

// TestSocketAttached opens a WebSocket to a session again: messages of no call that came
// meanwhile arrive once, after the client's event id, or after the last message written.
func TestSocketAttached(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{KeepAlive: 4 * time.Second}})
	c := openSocket(n, 0)
	c.begin("2025-11-25", "")
	p := &peer{n: n, id: c.id, version: "2025-11-25"}
	note := func(text string) {
		p.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"` + text + `"}}`)
	}
	note("one")
	c.hears("one")
	c.cut(fin)
	n.sessionsQuiet()
	note("two")
	d := openSocket(n, 0, "Mcp-Session-Id: "+c.id)
	d.reads()
	if d.id != c.id {
		t.Errorf("attached to %q, and not to %q", d.id, c.id)
	}
	d.hears("two")
	note("three")
	d.hears("three")
	d.say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	d.fails("1", codeInvalid, "initialized already")
	d.say(callAs("2", "echo", `{"text":"here"}`))
	d.hears("here")

	// Another connection supersedes the reader of the standalone stream. The old connection still
	// answers requests, until the session ends.
	get := p.open("GET", "/mcp", "")
	first, err := get.next()
	if err != nil {
		t.Fatal(err)
	}
	note("four")
	if ev := get.message(); !strings.Contains(string(ev.Data), "four") {
		t.Errorf("got %s", ev.Data)
	}
	get.c.Close()
	d.say(callAs("3", "echo", `{"text":"still here"}`))
	d.hears("still here")
	again := openSocket(n, 0, "Mcp-Session-Id: "+c.id, "Last-Event-ID: "+first.ID)
	again.reads()
	again.hears("four")
	d.say(callAs("4", "echo", `{"text":"and still"}`))
	d.hears("and still")
	w := p.open("POST", "/mcp", call("hold", `{}`))
	call, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	if _, res, err := n.dialSocket(0, "Mcp-Session-Id: "+c.id, "Last-Event-ID: "+call.ID); err == nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("a call's event id: %v", err)
	}
	n.end(p)
	again.ended(websocket.StatusNormalClosure, "the session ended")
	d.ended(websocket.StatusNormalClosure, "the session ended")
}

// TestSocketSilent is a client that sends nothing, not even a pong: its connection is ended. That
// of a client that answers pings is not.
func TestSocketSilent(t *testing.T) {
	t.Parallel()
	for tries := 0; ; tries++ {
		err := silentSocket(t, time.Duration(tries+1)*time.Second)
		if err == nil {
			break
		}
		if tries == 5 { // on a busy machine pings and pongs may be slow
			t.Fatal(err)
		}
	}
}

// silentSocket returns an error if the connection of a client that answers pings is ended, or that
// of a silent client is ended without a ping before.
func silentSocket(t *testing.T, keepAlive time.Duration) error {
	t.Helper()
	n := newNode(t, config{server: server.Options{KeepAlive: keepAlive}})
	c := openSocket(n, 0)
	if err := c.initialize("2025-11-25", ""); err != nil {
		return err
	}
	heard := outcome(func() error { _, err := c.recv(); return err }) // answers pings, as it reads
	p := &peer{n: n}
	w := p.open("GET", "/mcp", "", handshake...)
	w.head()
	if _, err := w.c.Write([]byte{0x81, 0x80, 0, 0, 0, 0}); err != nil { // an empty text frame
		t.Fatal(err)
	}
	pings := 0
	for r := w.r; ; pings++ {
		head := make([]byte, 2)
		if _, err := io.ReadFull(r, head); err != nil {
			break
		}
		if head[0] != 0x89 && head[0] != 0x81 {
			t.Fatalf("a frame that begins with %x", head)
		}
		if _, err := r.Discard(int(head[1])); err != nil {
			break
		}
	}
	if pings < 2 {
		return fmt.Errorf("%d frames before the end, want an error and a ping", pings)
	}
	select {
	case err := <-heard:
		return fmt.Errorf("who answers pings is let go of: %w", err)
	default:
	}
	if err := c.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`); err != nil {
		return err
	}
	return <-heard
}

// TestSocketUnbegun is a client that opens a WebSocket and sends no initialize: its connection is ended.
func TestSocketUnbegun(t *testing.T) {
	t.Parallel()
	var n *node
	var begun, c *talker
	for tries := 0; ; tries++ {
		n = newNode(t, config{server: server.Options{BodyTimeout: 2 * time.Second}})
		begun, c = openSocket(n, 0), openSocket(n, 0)
		err := begun.initialize("2025-11-25", "")
		if err == nil {
			break
		}
		if tries == 5 { // on a busy machine the initialize may come too late
			t.Fatal(err)
		}
	}
	c.ended(websocket.StatusPolicyViolation, "no initialize")
	mcptest.Eventually(t, "the session to end", time.Minute, func() bool { return n.sessions.Sessions() == 1 })
	begun.say(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	begun.hears(`"id":1`)
}

// TestSocketOutlivesTimeouts is an HTTP server with timeouts for requests: they do not end a
// WebSocket.
func TestSocketOutlivesTimeouts(t *testing.T) {
	t.Parallel()
	const short = time.Second
	n := newNode(t, config{http: func(s *http.Server) {
		s.ReadTimeout, s.WriteTimeout, s.IdleTimeout, s.ReadHeaderTimeout = short, short, short, short
	}})
	var c *talker
	for tries := 0; ; tries++ { // on a busy machine the header may come too late
		var err error
		if c, _, err = n.dialSocket(0); err == nil {
			break
		}
		if tries == 20 {
			t.Fatal(err)
		}
	}
	c.begin("2025-11-25", "")
	for i := range 2 {
		pass(t, 2*short)
		c.say(callAs(fmt.Sprint(i+1), "steps", `{"n":1,"pause":1}`))
		c.hears("notifications/progress")
		c.hears("done")
	}
}

// TestSocketDisconnectAfter ends a connection at its age if no call is in flight; else after the
// call's answer.
func TestSocketDisconnectAfter(t *testing.T) {
	t.Parallel()
	const age = time.Second
	n := newNode(t, config{server: server.Options{DisconnectAfter: age, Retry: 123 * time.Millisecond}})
	held := func() int {
		n.script.mu.Lock()
		defer n.script.mu.Unlock()
		return len(n.script.held)
	}
	var c *talker
	for tries := 0; ; tries++ { // on a busy machine the connection may end before
		c = openSocket(n, 0)
		if c.initialize("2025-11-25", "") == nil && c.send(callAs("1", "hold", `{}`)) == nil {
			end := time.Now().Add(2 * age)
			mcptest.Eventually(t, "the call to be held, or the connection to be too old", time.Minute, func() bool { return held() > 0 || time.Now().After(end) })
		}
		if held() > 0 {
			break
		}
		if tries == 10 {
			t.Fatal("the connection ends before anything is asked")
		}
	}
	pass(t, 2*age)
	n.release(1)[0].Result(result("late"))
	c.hears(`"id":1`, "late")
	c.ended(websocket.StatusGoingAway, "retry: 123")
	var d *talker
	for tries := 0; ; tries++ {
		d = openSocket(n, 0, "Mcp-Session-Id: "+c.id)
		_ = d.send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		if data, err := d.recv(); err == nil && strings.Contains(string(data), `"id":2`) {
			break
		} else if err == nil || tries == 10 {
			t.Fatalf("%s, %v", data, err)
		}
	}
	d.ended(websocket.StatusGoingAway, "retry: 123")

}

// TestPipesOutliveAge is a pair of pipes: DisconnectAfter does not end it.
func TestPipesOutliveAge(t *testing.T) {
	t.Parallel()
	const age = 100 * time.Millisecond
	n := newNode(t, config{server: server.Options{DisconnectAfter: age, Retry: 123 * time.Millisecond}})
	in, out := pipes(t)
	c := n.talkOver(0, in, out)
	c.begin("2025-11-25", "")
	pass(t, 5*age)
	c.say(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	c.hears(`"id":2`)
}

// TestSocketContinued is a client that cannot resume requests, and has made calls on a WebSocket:
// it comes back over HTTP with its session id alone, and gets their responses, as for calls of a
// POST.
func TestSocketContinued(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond, UpgradeAfter: time.Hour}})
	c := openSocket(n, 0)
	c.begin("2025-06-18", "")
	c.say(callAs("1", "echo", `{}`))
	c.hears(`"id":1`)
	c.say(callAs(`"a"`, "hold", `{}`), callAs(`"b"`, "safe_steps", `{"n":0,"pause":2000}`))
	held := n.release(1)
	mcptest.Eventually(t, "the calls to begin", time.Minute, func() bool { return n.sessions.Calls() == 2 })
	c.cut(rst)
	n.sessionsQuiet()
	held[0].Result(result("kept"))
	w := (&peer{n: n, id: c.id, version: "2025-06-18"}).open("GET", "/mcp", "")
	got := map[string]bool{}
	for range 2 {
		m, err := jsonrpc.Parse(w.message().Data)
		if err != nil {
			t.Fatal(err)
		}
		got[string(m.ID)] = m.Result != nil
	}
	if !got[`"a"`] || !got[`"b"`] {
		t.Errorf("got %v", got)
	}
}

// A client's FIN without a close frame, as of a program that is killed, ends its WebSocket at once, also
// while it has a call in flight.
func TestSocketWithoutClose(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	c := openSocket(n, 0)
	c.begin("2025-11-25", "")
	c.say(callAs("1", "hold", `{}`))
	held := n.release(1)
	c.cut(fin)
	mcptest.Eventually(t, "the reading to end", time.Minute, func() bool { return n.sessions.Readers() == 0 })
	held[0].Result(result("late"))
}

package server_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// counted is a backend that counts its conversations.
type counted struct {
	backend.Backend
	mu     sync.Mutex
	opened []*http.Request // the requests for which conversations were opened
	err    error           // Open returns it
}

func newCounted() *counted {
	return &counted{Backend: message.New(newScript())}
}

func (b *counted) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, b.err
	}
	b.opened = append(b.opened, start.HTTP)
	return b.Backend.Open(ctx, start, sink)
}

const (
	initialize0 = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`
	ping1       = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
)

// No backend is opened for a client before its initialize, whatever messages it sends. Its
// session of 2024-11-05 ends if it leaves by then.
func TestNothingBeforeInitialize(t *testing.T) {
	t.Parallel()
	b := newCounted()
	n := newNode(t, config{backend: b})
	c := n.pair(http.Header{"X-Begun": {"by GET"}})
	for what, body := range map[string]string{
		"a notification": `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		"an answer":      `{"jsonrpc":"2.0","id":1,"result":{}}`, "a batch": "[" + ping1 + "]",
	} {
		refused(t, what, c.p.open("POST", c.endpoint, body).all(), 400, codeInvalid, "the first message must be an initialize request")
	}
	c.send(ping1)
	c.wants(`"id":1,"error":{"code":-32600,"message":"the first message must be an initialize request"}`)
	socket, _, err := n.dialSocket(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	socket.say(ping1)
	socket.fails("1", codeInvalid, "the first message must be an initialize request")
	lines := openPipes(n, 1<<20)
	lines.say(ping1)
	lines.fails("1", codeInvalid, "the first message must be an initialize request")
	b.mu.Lock()
	if len(b.opened) != 0 {
		t.Fatalf("%d conversations were opened before initialize", len(b.opened))
	}
	b.mu.Unlock()

	// The initialize opens the backend, which gets the request that began the session.
	c.send(initialize0)
	c.next()
	socket.begin("2025-11-25", "{}")
	lines.begin("2025-11-25", "{}")
	b.mu.Lock()
	if len(b.opened) != 3 || b.opened[0].Method != http.MethodGet || b.opened[0].URL.Path != "/sse" || b.opened[0].Header.Get("X-Begun") != "by GET" {
		t.Errorf("%d opened, the first for %s %s", len(b.opened), b.opened[0].Method, b.opened[0].URL)
	}
	b.mu.Unlock()

	// A session that was initialized stays when its client leaves; one that was not ends.
	sessions := n.sessions.Sessions()
	c.w.c.Close()
	left := n.pair(nil)
	left.w.c.Close()
	mcptest.Eventually(t, "the session to end", time.Minute, func() bool { return n.sessions.Sessions() == sessions })
	c.open()
	c.send(ping1)
	c.next()
	r := left.p.open("POST", left.endpoint, initialize0).all()
	if r.status != 404 {
		t.Errorf("initialize in a session that was left: %d %s", r.status, r.body)
	}
}

// An initialize fails if the backend can't be opened, and may be sent again.
func TestInitializeNotOpened(t *testing.T) {
	t.Parallel()
	b := newCounted()
	b.err = errors.New("no such luck")
	n := newNode(t, config{backend: b})
	c := n.pair(nil)
	c.send(initialize0)
	if got := string(c.next().Data); !strings.Contains(got, `"error"`) || !strings.Contains(got, "no such luck") {
		t.Errorf("the answer is %s", got)
	}
	b.mu.Lock()
	b.err = nil
	b.mu.Unlock()
	c.send(initialize0)
	if got := string(c.next().Data); !strings.Contains(got, `"result"`) {
		t.Errorf("the answer is %s", got)
	}
	c.w.c.Close()
}

// An initialize that is answered with an error leaves no session, and names none.
func TestInitializeFails(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{backend: message.New(message.HandlerFunc(func(x *message.Exchange) {
		if x.Kind == jsonrpc.Request {
			x.Error(jsonrpc.Errorf(jsonrpc.CodeInternal, "no such luck"))
		}
	}))})
	p := &peer{n: n, version: "2025-11-25"}
	r := p.post(initialize0)
	if r.status != 200 || !strings.Contains(string(r.body), "no such luck") {
		t.Errorf("initialize: %d %s", r.status, r.body)
	}
	if id := r.header.Get("Mcp-Session-Id"); id != "" {
		t.Errorf("initialize has failed, and names the session %q", id)
	}
	mcptest.Eventually(t, "the session to end", time.Minute, func() bool { return n.sessions.Sessions() == 0 })
}

package server_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/e2e"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// FuzzHandler passes to the handler any text that net/http takes for a request. The handler does
// not panic or hang, its only status over 499 is a 503 with Retry-After, and an error in JSON is
// JSON-RPC. SESSION and OTHER stand for ids of open sessions, PAIR for an id of none.
func FuzzHandler(f *testing.F) {
	every := 1
	if flag.Lookup("test.fuzz").Value.String() != "" {
		every = 10 // else a short run finds no new inputs
	}
	for i, s := range e2e.StrangeRequests(e2e.Place{Host: "127.0.0.1", Session: "SESSION", Other: "OTHER", Pair: "PAIR"}) {
		if _, err := http.ReadRequest(bufio.NewReader(strings.NewReader(s.Bytes))); err == nil && len(s.Bytes) < 2048 && i%every == 0 {
			f.Add([]byte(s.Bytes))
		}
	}
	n := newNode(f, config{
		server:  server.Options{UpgradeAfter: 5 * time.Millisecond, InputGrace: time.Millisecond, BodyTimeout: time.Second},
		session: session.Options{TTL: 5 * time.Second},
	})
	mux := mcptest.Endpoints(n)
	post := func(session, body string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, req)
		return w
	}
	one, other := "", ""
	renew := func(id *string) { // an input may have ended the session
		if *id == "" || post(*id, `{"jsonrpc":"2.0","id":"p","method":"ping"}`).Code != http.StatusOK {
			*id = post("", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`).Header().Get("Mcp-Session-Id")
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		renew(&one)
		renew(&other)
		put := strings.NewReplacer("SESSION", one, "OTHER", other, "PAIR", "no-such-pair")
		req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(put.Replace(string(raw)))))
		if err != nil {
			return
		}
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		req = req.WithContext(context.WithValue(ctx, http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80})))
		req.RemoteAddr = "127.0.0.1:1"
		w := &leaver{head: make(http.Header), leave: leave}
		patience := time.AfterFunc(50*time.Millisecond, leave) // for a request without any answer
		defer patience.Stop()
		served := make(chan struct{})
		go func() {
			defer close(served)
			mux.ServeHTTP(w, req)
		}()
		select {
		case <-served:
		case <-time.After(time.Minute):
			t.Fatal("it is served a minute after its client has left")
		}
		w.check(t)
	})
}

// A leaver is a client that leaves soon after its answer has begun.
type leaver struct {
	leave context.CancelFunc

	mu     sync.Mutex
	head   http.Header
	status int
	body   bytes.Buffer
	socket bool
}

func (w *leaver) Header() http.Header { return w.head }

func (w *leaver) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status == 0 {
		w.status = status
		time.AfterFunc(2*time.Millisecond, w.leave)
	}
}

func (w *leaver) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.body.Write(p)
}

func (w *leaver) Flush() {}

// Hijack implements [http.Hijacker] for WebSockets.
func (w *leaver) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	w.socket = true
	w.mu.Unlock()
	ours, theirs := net.Pipe()
	time.AfterFunc(2*time.Millisecond, func() { _ = theirs.Close() })
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	return ours, bufio.NewReadWriter(bufio.NewReader(ours), bufio.NewWriter(ours)), nil
}

// check checks the answer.
func (w *leaver) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.socket:
		return
	case w.status == http.StatusServiceUnavailable && w.head.Get("Retry-After") != "":
	case w.status >= 500 || w.status != 0 && w.status < 200:
		t.Errorf("status %d: %s", w.status, w.body.Bytes())
	}
	if w.status >= 400 && strings.HasPrefix(w.head.Get("Content-Type"), "application/json") {
		if _, _, err := jsonrpc.ParseBody(w.body.Bytes()); err != nil && jsonrpc.Field(w.body.Bytes(), "error", "message") == nil {
			t.Errorf("status %d, and no JSON-RPC: %s", w.status, w.body.Bytes())
		}
	}
}

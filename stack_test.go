//go:build !race

package holdfast_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/backend/message"
)

// A call that waits, with its client connected, keeps the stack of its goroutine: 8 KiB
// while less than 3.2 KiB of it is in use, and 16 KiB beyond that. net/http has another
// goroutine for each connection, which takes 2 KiB.
func TestStackOfWaitingCalls(t *testing.T) {
	const calls, most = 200, 13 << 10 // bytes for each call
	var mu sync.Mutex
	var waiting []*message.Exchange
	h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(func(x *message.Exchange) {
		if x.Method == "initialize" {
			x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"t","version":"1"}}`))
			return
		}
		mu.Lock()
		defer mu.Unlock()
		waiting = append(waiting, x)
	})), &holdfast.Options{Response: holdfast.ResponseSSE, Logger: slog.New(slog.DiscardHandler), MaxShare: 1})
	defer func() {
		for _, x := range waiting {
			x.Result([]byte("{}"))
		}
		_ = h.Shutdown(context.Background())
	}()
	mux := http.NewServeMux() // as users have one
	mux.Handle("/mcp", h)
	server := httptest.NewServer(mux)
	defer server.Close()
	defer server.CloseClientConnections()
	addr := server.Listener.Addr().String()

	_, header := postRaw(t, addr, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	session := header.Get("Mcp-Session-Id")
	wait := func(id int) net.Conn {
		c, _ := postRaw(t, addr, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"wait"}}`, id))
		return c
	}
	defer wait(2).Close() // what is made for the first alone
	before := stacks()
	for i := range calls {
		defer wait(3 + i).Close()
	}
	// Stacks shrink when memory is collected, each by half at a time.
	var each uint64
	for range 50 {
		each = (stacks() - before) / calls
		if each <= most {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("a call that waits takes %d bytes of stack, more than %d: look for larger frames between ServeHTTP and the loop that waits", each, most)
}

// stacks returns how many bytes the stacks of all goroutines take.
func stacks() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.StackInuse
}

// postRaw posts a message on a connection of its own, and returns when the response has begun.
// It starts no goroutine.
func postRaw(t *testing.T, addr, session, body string) (net.Conn, http.Header) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if session != "" {
		session = "Mcp-Session-Id: " + session + "\r\n"
	}
	_, err = fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: %s\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		addr, session, len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	res, err := http.ReadResponse(bufio.NewReader(c), nil) //nolint:bodyclose // the connection is closed
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		t.Fatalf("%s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return c, res.Header
}

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// A peer is a client with one session that shows every detail of HTTP.
type peer struct {
	*mcptest.Client
	t *testing.T
}

// connect begins a session.
func connect(t *testing.T, p *program) *peer {
	t.Helper()
	own := &http.Transport{}
	t.Cleanup(own.CloseIdleConnections)
	c := &peer{&mcptest.Client{URL: p.URL, Revision: "2025-11-25", HTTP: &http.Client{Transport: own, Timeout: 2 * time.Minute}}, t}
	mcptest.Check(t, c.Begin(t.Context(), mcptest.Initialize("2025-11-25", "{}")))
	return c
}

// A listener reads one event stream.
type listener struct {
	*mcptest.Stream
	t        *testing.T
	received []string // "progress N", "result TEXT", "error TEXT"
	retry    time.Duration
}

// listen makes a request, and begins to read the stream that answers it.
func (c *peer) listen(method, lastID, body string) *listener {
	c.t.Helper()
	return &listener{Stream: c.Stream(c.t, method, body, "Last-Event-ID", lastID), t: c.t, retry: -1}
}

// count calls the count tool.
func (c *peer) count(to int, delay time.Duration) *listener {
	c.t.Helper()
	return c.listen("POST", "", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count",`+
		`"arguments":{"to":%d,"delay_ms":%d},"_meta":{"progressToken":1}}}`, to, delay.Milliseconds()))
}

// next reads one event. At the end of the stream it returns false.
func (l *listener) next() bool {
	l.t.Helper()
	ev, err := l.Next()
	if errors.Is(err, io.EOF) {
		return false
	}
	if err != nil {
		l.t.Fatalf("after %q: %v", l.received, err)
	}

	if ev.Retry >= 0 {
		l.retry = ev.Retry
	}
	if len(ev.Data) == 0 {
		return true
	}
	said := mcptest.Must(inShort(ev.Data))(l.t)
	l.received = append(l.received, said.text)
	return true
}

// until reads until n messages were received.
func (l *listener) until(n int) {
	l.t.Helper()
	for len(l.received) < n {
		if !l.next() {
			l.t.Fatalf("the stream ended after %q", l.received)
		}
	}
}

// rest reads to the end of the stream.
func (l *listener) rest() *listener {
	l.t.Helper()
	for l.next() {
	}
	return l
}

// counted returns the messages of a call of count that come after the first steps.
func counted(after, to int) (want []string) {
	for i := after + 1; i <= to; i++ {
		want = append(want, fmt.Sprintf("progress %d", i))
	}
	return append(want, fmt.Sprintf("result %d", to))
}

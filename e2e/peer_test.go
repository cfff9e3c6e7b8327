package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/sse"
)

// A peer is a client that shows every detail: one session, over HTTP as it is.
type peer struct {
	t       *testing.T
	url     string
	session string
	http    *http.Client
}

// connect begins a session.
func connect(t *testing.T, p *program) *peer {
	t.Helper()
	own := &http.Transport{}
	t.Cleanup(own.CloseIdleConnections)
	c := &peer{t: t, url: p.URL, http: &http.Client{Transport: own, Timeout: 2 * time.Minute}}
	resp := c.send("POST", "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",`+
		`"capabilities":{},"clientInfo":{"name":"peer","version":"1"}}}`)
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	c.session = resp.Header.Get("Mcp-Session-Id")
	if err != nil || resp.StatusCode != http.StatusOK || c.session == "" {
		t.Fatalf("initialize: %s, %v: %s", resp.Status, err, body)
	}
	resp = c.send("POST", "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Fatalf("initialized: %s", resp.Status)
	}
	return c
}

// send sends a request.
func (c *peer) send(method, lastID, body string) *http.Response {
	c.t.Helper()
	to := &mcptest.Client{URL: c.url, Session: c.session, Revision: "2025-11-25", HTTP: c.http}
	resp, err := to.Send(c.t.Context(), method, body, "Last-Event-ID", lastID)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

// A listener reads one event stream.
type listener struct {
	t        *testing.T
	body     io.Closer
	events   *sse.Reader
	lastID   string
	received []string // "progress N", "result TEXT", "error TEXT"
	retry    time.Duration
}

// listen begins to read the stream that a request is answered with.
func (c *peer) listen(method, lastID, body string) *listener {
	c.t.Helper()
	resp := c.send(method, lastID, body)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		c.t.Fatalf("%s: %s: %s", method, resp.Status, text)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	return &listener{t: c.t, body: resp.Body, events: sse.NewReader(resp.Body, 1<<20), retry: -1}
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
	ev, err := l.events.Next()
	if errors.Is(err, io.EOF) {
		return false
	}
	if err != nil {
		l.t.Fatalf("after %q: %v", l.received, err)
	}
	if ev.ID != "" {
		l.lastID = ev.ID
	}
	if ev.Retry >= 0 {
		l.retry = ev.Retry
	}
	if len(ev.Data) == 0 {
		return true
	}
	var m struct {
		Method string
		Params struct{ Progress float64 }
		Result *toolResult
		Error  *struct{ Message string }
	}
	if err := json.Unmarshal(ev.Data, &m); err != nil {
		l.t.Fatalf("%v in %s", err, ev.Data)
	}
	switch {
	case m.Method == "notifications/progress":
		l.received = append(l.received, fmt.Sprintf("progress %v", m.Params.Progress))
	case m.Result != nil && len(m.Result.Content) == 1:
		l.received = append(l.received, "result "+m.Result.Content[0].Text)
	case m.Error != nil:
		l.received = append(l.received, "error "+m.Error.Message)
	default:
		l.received = append(l.received, string(ev.Data))
	}
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

// counted is what is received of a count, after the first steps.
func counted(after, to int) (want []string) {
	for i := after + 1; i <= to; i++ {
		want = append(want, fmt.Sprintf("progress %d", i))
	}
	return append(want, fmt.Sprintf("result %d", to))
}

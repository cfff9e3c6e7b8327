package server_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
)

// busy counts the requests that a server is handling.
type busy struct{ atomic.Int32 }

func (b *busy) count(s *http.Server) {
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.Add(1)
		defer b.Add(-1)
		next.ServeHTTP(w, r)
	})
}

func pass(t *testing.T, d time.Duration) {
	t.Helper()
	end := time.Now().Add(d)
	mcptest.Eventually(t, "time to pass", time.Minute, func() bool { return time.Now().After(end) })
}

// TestSlowAnswer is a client that does not read its JSON answer: the server ends the connection.
func TestSlowAnswer(t *testing.T) {
	t.Parallel()
	var b busy
	n := newNode(t, config{
		server: server.Options{WriteTimeout: 500 * time.Millisecond, Response: server.ResponseJSON},
		http:   b.count,
	})
	p := n.connect("2025-06-18", nil)
	w := p.open("POST", "/mcp", callAs("1", "hold", `{}`))
	n.release(1)[0].Result([]byte(`"` + strings.Repeat("x", 16<<20) + `"`))
	w.head()
	mcptest.Eventually(t, "the client to be given up", time.Minute, func() bool { return b.Load() == 0 })
	if r := w.all(); r.whole {
		t.Error("all was written to a client that does not read")
	}
}

// TestSlowBody is a client that does not send its request's body: it gets a 408, or a 415 if its
// Content-Type is wrong.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{BodyTimeout: 500 * time.Millisecond}})
	p := n.connect("2025-06-18", nil)
	length := map[string]string{"Content-Length": "Content-Length: 1000"}
	for _, target := range []string{"/mcp", n.pair(nil).endpoint} {
		refused(t, "a slow body at "+target, p.craft(crafted{target: target, raw: true, head: length, body: "{"}).all(),
			http.StatusRequestTimeout, codeParse, "too long")
	}
	length["Content-Type"] = "Content-Type: text/plain"
	refused(t, "a slow text", p.craft(crafted{raw: true, head: length}).all(), 415, codeInvalid, "Content-Type")
	p.works("slow bodies")
}

// TestSlowTool is a call that takes longer than BodyTimeout and WriteTimeout. The connection can
// be used again, also after a pause of that length.
func TestSlowTool(t *testing.T) {
	t.Parallel()
	const short = 500 * time.Millisecond // long enough on a busy machine
	var b busy
	n := newNode(t, config{
		server: server.Options{BodyTimeout: short, WriteTimeout: short, Response: server.ResponseJSON},
		http:   b.count,
	})
	p := n.connect("2025-06-18", nil)
	body := callAs("1", "hold", `{}`)
	w := p.open("POST", "/mcp", body)
	for i := range testlong.Either(2, 3) {
		held := n.release(1)
		pass(t, 2*short)
		held[0].Result(result(strings.Repeat("x", 10<<10)))
		res := w.head()
		got := make([]byte, res.ContentLength)
		if _, err := io.ReadFull(res.Body, got); err != nil || res.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("answer %d: %d %s: %v", i, res.StatusCode, got, err)
		}
		pass(t, 2*short)
		w = &wire{t: t, c: w.c}
		if _, err := fmt.Fprintf(w.c, "POST /mcp HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", p.headers(), len(body), body); err != nil {
			t.Fatal(err)
		}
	}
	n.release(1)
	w.c.Close()
	mcptest.Eventually(t, "the client's leaving to be noticed", time.Minute, func() bool { return b.Load() == 0 })
}

// TestPages resumes a stream of large messages. The size of a single write is bounded.
func TestPages(t *testing.T) {
	t.Parallel()
	const size, steps = 50_000, 40
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	first, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	w.c.Close()
	n.sessionsQuiet()
	held := n.release(1)
	for i := 1; i <= steps; i++ {
		progress(held[0], i, size)
	}
	held[0].Result(result("done"))
	r := httptest.NewRequest(http.MethodGet, "/mcp", nil)
	r.Host = n.addr
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Mcp-Session-Id", p.id)
	r.Header.Set("Last-Event-ID", first.ID)
	got := &writes{ResponseRecorder: httptest.NewRecorder()}
	n.ServeHTTP(got, r)
	if got.most > 64<<10+size+1000 {
		t.Errorf("%d bytes were written at a time", got.most)
	}
	f := &follower{p: p, seen: map[string]bool{}}
	if err := f.take(reply{body: got.Body.Bytes()}); err != nil {
		t.Error(err)
	}
	if err := f.check(steps); err != nil {
		t.Error(err)
	}
}

// writes records the size of the largest write.
type writes struct {
	*httptest.ResponseRecorder
	most int
}

func (w *writes) Write(b []byte) (int, error) {
	w.most = max(w.most, len(b))
	return w.ResponseRecorder.Write(b)
}

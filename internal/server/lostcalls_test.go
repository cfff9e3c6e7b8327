package server_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
)

// tardy is a listener on a machine that is slow to notice that clients leave.
type tardy struct {
	net.Listener
	by   time.Duration
	over <-chan struct{} // closed when the test is over
}

func (l tardy) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tardyConn{c, l}, nil
}

type tardyConn struct {
	net.Conn
	l tardy
}

func (c tardyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		select {
		case <-time.After(c.l.by):
		case <-c.l.over:
		}
	}
	return n, err
}

// TestNoticedLate is a client that comes back with its session id alone, long before the server
// notices that it left. It gets its answer, whether that comes before the server notices, and is
// written to the old connection, or later.
func TestNoticedLate(t *testing.T) {
	t.Parallel()
	const noticed = 1500 * time.Millisecond
	var tests sync.WaitGroup // the tests mostly wait
	defer tests.Wait()
	for _, answered := range []time.Duration{noticed - 400*time.Millisecond, noticed + 400*time.Millisecond} {
		for _, version := range []string{"2025-06-18", "2025-11-25"} {
			for _, how := range []cut{fin, rst} {
				tests.Go(func() {
					t.Run(fmt.Sprintf("%v/%s/%v", answered, version, how), func(t *testing.T) {
						over := make(chan struct{})
						n := newNode(t, config{
							server: server.Options{Retry: 20 * time.Millisecond},
							listen: func(l net.Listener) net.Listener { return tardy{l, noticed, over} },
						})
						t.Cleanup(func() { close(over) })
						p := n.connect(version, nil)
						left := p.open("POST", "/mcp", call("hold", `{}`))
						held := n.release(1)
						left.atMost(20, how)
						w := p.open("GET", "/mcp", "")
						w.head()
						pass(t, answered)
						held[0].Result(result("late"))
						if ev := w.message(); !strings.Contains(string(ev.Data), "late") {
							t.Errorf("got %s", ev.Data)
						}
					})
				})
			}
		}
	}
}

// TestOnlyTheLast is a client that reads an answer, loses the next one on the same connection,
// and comes back with its session id alone. It gets the lost answer only.
func TestOnlyTheLast(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
	n.HurryLost(50 * time.Millisecond)
	var back []*wire
	var peers []*peer
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		p := n.connect(version, nil)
		w := p.open("POST", "/mcp", callAs("1", "steps", `{"n":0}`))
		if got, err := io.ReadAll(w.head().Body); err != nil || !strings.Contains(string(got), "done") {
			t.Fatalf("got %s, %v", got, err)
		}
		next := callAs("2", "steps", fmt.Sprintf(`{"key":%q,"n":0}`, version))
		_, err := fmt.Fprintf(w.c, "POST /mcp HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", p.headers(), len(next), next)
		if err != nil {
			t.Fatal(err)
		}
		mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return n.runs(version) == 1 })
		w.atMost(0, rst)
		back, peers = append(back, p.open("GET", "/mcp", "")), append(peers, p)
	}
	for i, w := range back {
		if ev := w.message(); !strings.Contains(string(ev.Data), `"id":2`) {
			t.Errorf("%s: first %s", peers[i].version, ev.Data)
		}
	}
	pass(t, 500*time.Millisecond) // an answer would come again after 50 ms
	for i, w := range back {
		peers[i].note("new")
		if ev := w.message(); !strings.Contains(string(ev.Data), "new") {
			t.Errorf("%s: told again: %s", peers[i].version, ev.Data)
		}
	}
}

// TestContinuedFromWhatIsKept is a client that comes back with its session id alone, when the
// beginning of its call's stream is no longer kept. It gets the rest.
func TestContinuedFromWhatIsKept(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{memory: memory.Options{StreamBytes: 4 << 10}})
	p := n.connect("2025-06-18", nil)
	left := p.open("POST", "/mcp", call("hold", `{}`))
	held := n.release(1)
	left.atMost(0, rst)
	n.sessionsQuiet()
	for i := range 10 {
		progress(held[0], i+1, 1<<10)
	}
	held[0].Result(result("late"))
	w := p.open("GET", "/mcp", "")
	heard := 0
	for {
		ev := w.message()
		if strings.Contains(string(ev.Data), "late") {
			break
		}
		heard++
	}
	if heard == 0 || heard >= 10 {
		t.Errorf("heard %d messages before the answer", heard)
	}
}

// TestGoneUnread has clients that leave before their connection was read from: Gone reports it,
// and does not report a client that has sent bytes.
func TestGoneUnread(t *testing.T) {
	t.Parallel()
	h := server.New(server.Options{Manager: new(session.Manager)})
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := h.Listener(plain)
	defer l.Close()
	for how, leave := range map[string]func(*net.TCPConn){
		"not at all": nil,
		"says more":  func(c *net.TCPConn) { _, _ = c.Write([]byte("x")) },
		"fin":        func(c *net.TCPConn) { _ = c.Close() },
		"rst": func(c *net.TCPConn) {
			_ = c.SetLinger(0)
			_ = c.Close()
		},
	} {
		c, err := net.Dial("tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		r := &http.Request{ProtoMajor: 1, RemoteAddr: c.LocalAddr().String()}
		if h.Gone(r) {
			t.Errorf("%s: gone before", how)
		}
		if leave == nil {
			continue
		}
		leave(c.(*net.TCPConn))
		if how != "says more" {
			mcptest.Eventually(t, how, time.Minute, func() bool { return h.Gone(r) })
			continue
		}
		pass(t, 50*time.Millisecond)
		if h.Gone(r) {
			t.Errorf("%s: gone", how)
		}
	}
}

// lateHeader is a response with a delayed header. It notes in early that the body was written
// before the header.
type lateHeader struct {
	http.ResponseWriter
	body  chan struct{} // the body has begun
	begin sync.Once
	early *atomic.Bool
}

func (w *lateHeader) WriteHeader(status int) {
	select {
	case <-w.body:
		w.early.Store(true)
	case <-time.After(100 * time.Millisecond):
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *lateHeader) Write(b []byte) (int, error) {
	w.begin.Do(func() { close(w.body) })
	return w.ResponseWriter.Write(b)
}

func (w *lateHeader) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestContinuedAfterHeader is a client that comes back with its session id alone, for a call that was
// answered already. The goroutine that continues the call does not write before the stream's header.
func TestContinuedAfterHeader(t *testing.T) {
	t.Parallel()
	var early atomic.Bool
	n := newNode(t, config{http: func(s *http.Server) {
		inner := s.Handler
		s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w = &lateHeader{ResponseWriter: w, body: make(chan struct{}), early: &early}
			}
			inner.ServeHTTP(w, r)
		})
	}})
	p := n.connect("2025-06-18", nil)
	left := p.open("POST", "/mcp", call("hold", `{}`))
	held := n.release(1)
	left.atMost(0, rst)
	n.sessionsQuiet()
	held[0].Result(result("late"))
	if ev := p.open("GET", "/mcp", "").message(); !strings.Contains(string(ev.Data), "late") {
		t.Errorf("got %s", ev.Data)
	}
	if early.Load() {
		t.Error("the answer was written before the header")
	}
}

// A client that comes back for a call that has ended without a response gets a 204 once it has all messages of the call: with
// another event id, it would come back for ever.
func TestEndedWithoutResponse(t *testing.T) {
	t.Parallel()
	for _, steps := range []int{0, 2} {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, config{})
			p := n.connect("2025-11-25", nil)
			w := p.open("POST", "/mcp", callAs(`"c"`, "hold", `{}`))
			held := n.release(1)
			primed, err := w.next()
			if err != nil {
				t.Fatal(err)
			}
			last := primed.ID
			for i := range steps {
				progress(held[0], i, 1)
				last = w.message().ID
			}
			link := "/mcp" + strings.TrimPrefix(strings.SplitN(w.head().Header.Get("Link"), ">", 2)[0], "<")
			if r := p.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}`); r.status != 202 {
				t.Fatal(r.status)
			}
			if ev, err := w.next(); !errors.Is(err, io.EOF) {
				t.Fatalf("after the cancellation: %s, %v", ev.Data, err)
			}
			if r := p.open("GET", "/mcp", "", "Last-Event-ID: "+last).all(); r.status != http.StatusNoContent {
				t.Errorf("after all: %d %s", r.status, r.body)
			}
			if r := p.open("GET", link, "", "Last-Event-ID: "+last).all(); r.status != http.StatusNoContent {
				t.Errorf("after all, at the URL: %d %s", r.status, r.body)
			}
			gets, at := 0, primed.ID
			for ; gets < 5; gets++ { // as a client that comes back with its last event id
				r := p.open("GET", "/mcp", "", "Last-Event-ID: "+at).all()
				if r.status == http.StatusNoContent {
					break
				}
				for _, ev := range r.events() {
					at = ev.ID
				}
			}
			if gets > min(steps, 1) {
				t.Errorf("it comes back %d times", gets)
			}
		})
	}
}

// A client has an event id of a call, its connection breaks, and it does not come back with the id. It gets the rest of the
// call on the standalone stream that it had open before, without the messages that it has. If it comes back with the event id
// after all, it gets only the messages that it did not get there, or all, if that stream has broken or comes through a proxy.
func TestToldOnTheOldStream(t *testing.T) {
	testlong.Only(t, "a client has three seconds to come back")
	t.Parallel()
	for what, test := range map[string]struct {
		version    string
		early, cut bool // the client comes back before the call has ended; its old stream has broken by then
		proxied    bool // the old stream comes through a proxy, and its messages may not arrive
	}{
		"after the end":             {version: "2025-11-25"},
		"after the end, 2025-03-26": {version: "2025-03-26"}, // its clients have no event id before the first message
		"in the middle":             {version: "2025-11-25", early: true},
		"after a cut":               {version: "2025-11-25", cut: true},
		"behind a proxy":            {version: "2025-11-25", proxied: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, config{})
			p := n.connect(test.version, nil)
			var through []string
			if test.proxied {
				through = []string{"X-Forwarded-For: 192.0.2.1"}
			}
			old := p.open("GET", "/mcp", "", through...)
			old.head()
			if test.version == "2025-11-25" {
				if _, err := old.next(); err != nil { // the priming event
					t.Fatal(err)
				}
			}
			w := p.open("POST", "/mcp", callAs(`"c"`, "hold", `{}`))
			held := n.release(1)
			progress(held[0], 1, 1)
			id := w.message().ID
			cut := time.Now()
			w.atMost(0, rst)
			progress(held[0], 2, 1)
			if ev := old.message(); !strings.Contains(string(ev.Data), `"progress":2`) {
				t.Fatalf("first on the old stream: %s", ev.Data)
			}
			if after := time.Since(cut); after < 2*time.Second {
				t.Errorf("told after %v: another connection could still have come", after)
			}
			end := func() {
				progress(held[0], 3, 1)
				held[0].Result(result("done"))
			}
			if !test.early {
				end()
				for _, want := range []string{`"progress":3`, "done"} {
					if ev := old.message(); !strings.Contains(string(ev.Data), want) {
						t.Fatalf("on the old stream: %s", ev.Data)
					}
				}
			}
			if test.cut {
				old.atMost(0, rst)
				mcptest.Eventually(t, "the end of the old stream", time.Minute, func() bool {
					r := p.open("GET", "/mcp", "", "Last-Event-ID: "+id).all()
					return r.status == http.StatusOK && strings.Contains(string(r.body), "done")
				})
				return
			}
			back := p.open("GET", "/mcp", "", "Last-Event-ID: "+id)
			if test.proxied {
				if r := back.all(); r.status != http.StatusOK || !strings.Contains(string(r.body), "done") {
					t.Errorf("what may not have arrived: %d %s", r.status, r.body)
				}
				return
			}
			if !test.early {
				r := back.all()
				if r.status == http.StatusOK && !strings.Contains(string(r.body), "jsonrpc") { // the request was faster than the goroutine that wrote the last message
					r = p.open("GET", "/mcp", "", "Last-Event-ID: "+id).all()
				}
				if r.status != http.StatusNoContent {
					t.Errorf("it gets again %d %s", r.status, r.body)
				}
				return
			}
			back.head()
			end()
			if got := string(back.all().body); strings.Contains(got, `"progress":2`) || !strings.Contains(got, `"progress":3`) || !strings.Contains(got, "done") {
				t.Errorf("it gets %s", got)
			}
		})
	}
}

package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// TestSweep has strangers send requests that no client would send, some by the hundred and
// without an end. Meanwhile the calls of a client are answered. No stranger gets a 5xx, except
// a 503 with Retry-After, and the strangers' files and processes are released. (Failure 18)
func TestSweep(t *testing.T) {
	t.Parallel()
	every := testlong.Either(20, 2)
	for begin, x := range []struct {
		name string
		args []string
		more left // the files and processes that it has from the first session on
	}{
		{"process", []string{"--", os.Args[0], "stdio"}, left{files: 2, processes: 1}}, // for the guard that ends orphans
		{"demo", []string{"--demo"}, left{}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, append([]string{"--session-ttl", "3s", "--keepalive", "500ms"}, x.args...)...)
			first := p.left(t)
			first.files, first.processes = first.files+x.more.files, first.processes+x.more.processes
			good := newGood(t, p)
			var statuses sync.Map
			count := func(received []byte, name string) {
				all, err := Answers(received)
				if err != nil {
					t.Errorf("%s: %v of %.600q", name, err, received)
				}
				for _, status := range all {
					n, _ := statuses.LoadOrStore(status, new(atomic.Int32))
					n.(*atomic.Int32).Add(1)
				}
			}
			place, leave := p.place(t)
			all := StrangeRequests(place)
			var work sync.WaitGroup
			free := make(chan struct{}, 50)
			for i, s := range all {
				if i%every != begin {
					continue // the other server gets it
				}
				free <- struct{}{}
				work.Go(func() {
					defer func() { <-free }()
					received, err := s.Send(p.Addr)
					if err != nil {
						t.Errorf("%s: %v", s.Name, err)
					}
					count(received, s.Name)
				})
			}
			work.Wait()
			slow := p.crowd(t, 200/every)
			good.more(t, 20)
			for _, c := range slow {
				_ = c.Close()
			}
			leave()
			good.stop(t)
			told := map[int]int32{}
			statuses.Range(func(status, n any) bool {
				told[status.(int)] = n.(*atomic.Int32).Load()
				return true
			})
			t.Logf("one of %d of %d strange requests; statuses %v; %d calls meanwhile", every, len(all), told, good.calls.Load())
			if testlong.Wanted() && len(told) < 8 || told[http.StatusOK] == 0 || told[http.StatusBadRequest] == 0 {
				t.Errorf("only statuses %v: it tries too little", slices.Sorted(maps.Keys(told)))
			}
			http.DefaultClient.CloseIdleConnections()
			for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
				left := p.left(t)
				if left.files <= first.files && left.processes <= first.processes {
					break
				}
				if time.Now().After(end) {
					fds, _ := exec.Command("ls", "-l", fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid)).Output()
					t.Fatalf("it has %+v, and had %+v\n%s", left, first, fds)
				}
			}
			good2 := newGood(t, p)
			good2.more(t, 2)
			good2.stop(t)
		})
	}
}

// A left counts the open files and child processes of a program.
type left struct{ files, processes int }

func (p *program) left(t *testing.T) left {
	t.Helper()
	pid := strconv.Itoa(p.cmd.Process.Pid)
	files := mcptest.Must(os.ReadDir(filepath.Join("/proc", pid, "fd")))(t)
	l := left{files: len(files)}
	mcptest.Processes("stat", func(_ int, stat []byte) {
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == pid {
			l.processes++
		}
	})
	return l
}

// place makes the sessions for the requests of strangers. The session of HTTP+SSE lives until leave is called.
func (p *program) place(t *testing.T) (at Place, leave func()) {
	t.Helper()
	at.Host = p.Addr
	victim := newGood(t, p)
	victim.more(t, 1)
	at.Session = victim.Session
	victim.stop(t)
	other := newGood(t, p)
	other.more(t, 1)
	other.stop(t)
	at.Other = other.event
	events := (&mcptest.Client{URL: p.SSE}).Stream(t, http.MethodGet, "") // the session lives as long as its stream is open
	_, at.Pair, _ = strings.Cut(string(mcptest.Must(events.Next())(t).Data), "sessionId=")
	go func() {
		for err := error(nil); err == nil; {
			_, err = events.Next()
		}
	}()
	return at, events.Close
}

// crowd opens connections that do not end: they send a part of a header or body, are
// half-closed, or never read the answer.
func (p *program) crowd(t *testing.T, each int) (all []net.Conn) {
	t.Helper()
	begun := "POST /mcp HTTP/1.1\r\nHost: " + p.Addr + "\r\n" + usual
	for i := range each {
		for kind, raw := range []string{
			"GET /mcp HTTP/1.1\r\nHost: ",
			begun + "Content-Length: 1000\r\n\r\n{",
			begun + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
			"GET /sse HTTP/1.1\r\nHost: " + p.Addr + "\r\n\r\n",
			"",
		} {
			if kind == 3 && i >= 10 {
				continue // each begins a session, and may start a process
			}
			c := mcptest.Must(net.DialTimeout("tcp", p.Addr, time.Minute))(t)
			_, _ = io.WriteString(c, raw)
			if i%3 == 0 {
				_ = c.(*net.TCPConn).CloseWrite()
			}
			all = append(all, c)
		}
	}
	return all
}

// A good is a well-behaved client that makes one call after the other.
type good struct {
	mcptest.Client
	event string // the id of an event that it got
	calls atomic.Int32
	ctx   context.Context
	end   context.CancelFunc
	done  chan struct{}
	err   error
}

func newGood(t *testing.T, p *program) *good {
	t.Helper()
	g := &good{Client: mcptest.Client{URL: p.URL}, done: make(chan struct{})}
	g.ctx, g.end = context.WithCancel(t.Context())
	mcptest.Check(t, g.Begin(g.ctx, strangeInit))
	go func() {
		defer close(g.done)
		for n := 1; ; n++ {
			if err := g.call(n); g.ctx.Err() != nil {
				return
			} else if err != nil {
				g.err = err
				return
			}
			time.Sleep(5 * time.Millisecond) // so that the client does not keep the machine busy
		}
	}()
	return g
}

func (g *good) call(n int) error {
	r, err := g.Exchange(g.ctx, http.MethodPost, mcptest.Call(n, "count", `{"to":1}`, fmt.Sprintf(`"_meta":{"progressToken":%d}`, n)))
	switch {
	case r.Status == http.StatusNotFound: // the machine stalled, and the session has expired
		g.Session = ""
		return g.Begin(g.ctx, strangeInit)
	case err != nil || r.Status >= 300 || !strings.Contains(r.Body, `"result"`):
		return fmt.Errorf("%d, %w: %q", r.Status, err, r.Body)
	}
	g.calls.Add(1)
	for line := range strings.Lines(r.Body) {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			g.event = strings.TrimSpace(id)
		}
	}
	return nil
}

// more waits until n more calls are answered.
func (g *good) more(t *testing.T, n int32) {
	t.Helper()
	want := g.calls.Load() + n
	mcptest.Eventually(t, "calls to be answered", 2*time.Minute, func() bool {
		select {
		case <-g.done:
			t.Fatalf("a call was not answered: %v", g.err)
		default:
		}
		return g.calls.Load() >= want
	})
}

// stop ends the calls.
func (g *good) stop(t *testing.T) {
	t.Helper()
	g.end()
	<-g.done
	if g.err != nil {
		t.Errorf("a call was not answered: %v", g.err)
	}
}

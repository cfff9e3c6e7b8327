package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// follower is a client that lost a call's connection and resumes with the last event id, with the
// stream URL, or with its session alone.
type follower struct {
	p    *peer
	last string // event id
	link string
	got  []jsonrpc.Message
	done bool
	seen map[string]bool
}

// take adds the part of an answer that arrived.
func (f *follower) take(r reply) error {
	if l := r.header.Get("Link"); l != "" {
		f.link = "/mcp" + strings.TrimPrefix(strings.SplitN(l, ">", 2)[0], "<")
	}
	if strings.HasPrefix(r.header.Get("Content-Type"), "application/json") && r.whole {
		return f.message(r.body)
	}
	for _, ev := range r.events() {
		if ev.ID != "" {
			if f.seen[ev.ID] {
				return fmt.Errorf("event id %s came twice", ev.ID)
			}
			f.seen[ev.ID] = true
			f.last = ev.ID
		}
		if len(ev.Data) > 0 {
			if err := f.message(ev.Data); err != nil {
				return err
			}
		} else if f.p.version < "2025-11-25" && ev.HasData {
			return fmt.Errorf("an old client got an event with empty data")
		}
	}
	return nil
}

func (f *follower) message(data []byte) error {
	m, err := jsonrpc.Parse(append([]byte(nil), data...))
	if err != nil {
		return fmt.Errorf("message %s: %w", data, err)
	}
	f.got = append(f.got, m)
	f.done = f.done || m.Kind == jsonrpc.Response
	return nil
}

// again sends one request to resume.
func (f *follower) again(extra ...string) *wire {
	switch {
	case f.last != "":
		return f.p.open("GET", "/mcp", "", append(extra, "Last-Event-ID: "+f.last)...)
	case f.link != "":
		return f.p.open("GET", f.link, "", extra...)
	}
	return f.p.open("GET", "/mcp", "", extra...)
}

// rest reads until the call's response. If the connection is ended, it resumes on another.
func (f *follower) rest(w *wire) error {
	for range 3 {
		if w.head().StatusCode != http.StatusOK {
			text, _ := io.ReadAll(w.head().Body)
			return fmt.Errorf("resume: %d %s", w.head().StatusCode, text)
		}
		if err := f.take(reply{header: w.head().Header}); err != nil {
			return err
		}
		for !f.done {
			ev, err := w.next()
			if errors.Is(err, io.EOF) {
				break // an older connection of this client was served after this one, and superseded it
			}
			if err != nil {
				return fmt.Errorf("stream: %w", err)
			}
			if ev.ID != "" {
				f.last = ev.ID
			}
			if len(ev.Data) == 0 {
				continue
			}
			if err := f.message(ev.Data); err != nil {
				return err
			}
		}
		w.c.Close()
		if f.done {
			return nil
		}
		w = f.again()
	}
	return errors.New("stream ended early")
}

// check reports whether the call's messages came once and in order.
func (f *follower) check(n int) error {
	if len(f.got) != n+1 {
		return fmt.Errorf("%d messages, want %d", len(f.got), n+1)
	}
	for i, m := range f.got[:n] {
		var p struct{ Progress int }
		if err := json.Unmarshal(m.Params, &p); err != nil || p.Progress != i+1 {
			return fmt.Errorf("message %d is %s", i, m.Raw)
		}
	}
	if f.got[n].Kind != jsonrpc.Response {
		return fmt.Errorf("the last message is %s", f.got[n].Raw)
	}
	return nil
}

// TestCutAtEveryByte cuts a streamed call's answer after each number of bytes (in short runs
// after each 47th): with FIN, with RST, or while a proxy holds the connection open. If the client
// has neither an event id nor a URL then, its next connection is cut as well. Every message
// arrives once and in order, and the tool runs once.
func TestCutAtEveryByte(t *testing.T) {
	t.Parallel()
	var tests sync.WaitGroup // the tests mostly wait
	defer tests.Wait()
	atOnce := 18
	if testlong.All() {
		atOnce = 6
	}
	few := make(chan struct{}, atOnce)
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		for _, how := range []cut{fin, rst, ghost} {
			for _, pause := range []int{0, 1} {
				stride := 1
				switch {
				case !testlong.All():
					stride = 47
				case version == "2025-03-26" || how == rst && pause == 1:
					stride = 17 // the same code serves 2025-06-18, and fin
				case !testlong.Wanted():
					stride = 23
				}
				tests.Go(func() {
					few <- struct{}{}
					defer func() { <-few }()
					t.Run(fmt.Sprintf("%s/%v/pause%d", version, how, pause), func(t *testing.T) {
						n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
						cutEverywhere(n, func() (*peer, error) { return n.begin(version, nil) }, n.runs, how, pause, stride)
					})
				})
			}
		}
	}
}

// cutEverywhere calls cutAt for every stride-th byte, each time with a new client of connect. If
// a cut fails and the process stood still meanwhile, it is tried again: a store with a short
// timeout may have refused an operation, or a node may have taken another for lost.
func cutEverywhere(n *node, connect func() (*peer, error), runs func(key string) int, how cut, pause, stride int) {
	var end atomic.Bool
	eachCut(4000, stride, func(at int) {
		for try := 0; !end.Load(); try++ {
			stood := mcptest.Standstill()
			whole, err := cutAt(connect, runs, how, pause, at, fmt.Sprint(at, "-", try))
			lasted := stood()
			if err == nil {
				if whole {
					end.Store(true)
				}
				return
			}
			refused := strings.Contains(err.Error(), "does not answer") || strings.Contains(err.Error(), "the node that ran this call was lost") ||
				errors.Is(err, errNotCome)
			if !refused || lasted < time.Second || try == 5 {
				n.t.Errorf("cut at %d: %v", at, err)
				return
			}
		}
	})
	if !end.Load() {
		n.t.Error("no answer arrived whole: the cuts did not reach the end")
	}
}

var errNotCome = errors.New("the call does not arrive")

// cutAt cuts one call's answer after at bytes, and reports whether the answer was whole by then.
func cutAt(connect func() (*peer, error), runs func(key string) int, how cut, pause, at int, key string) (whole bool, err error) {
	const steps = 2
	p, err := connect()
	if err != nil {
		return false, err
	}
	f := &follower{p: p, seen: map[string]bool{}}
	w := p.open("POST", "/mcp", call("steps", fmt.Sprintf(`{"key":%q,"n":%d,"pause":%d}`, key, steps, pause)))
	for began := time.Now(); runs(key) == 0; {
		if time.Since(began) > 30*time.Second {
			return false, errNotCome
		}
		time.Sleep(time.Millisecond) // polling, not synchronisation
	}
	first := w.atMost(at, how)
	if err := f.take(first); err != nil {
		return false, err
	}
	whole = first.whole && f.done
	if how == ghost && f.last == "" && f.link == "" {
		return whole, nil // neither side can know that this connection is dead
	}
	// Cut the next connection, which continues the call.
	if f.last == "" && f.link == "" {
		if err := f.take(f.again().atMost(at, how)); err != nil {
			return whole, fmt.Errorf("and again: %w", err)
		}
	}
	if !f.done {
		if err := f.rest(f.again()); err != nil {
			return whole, err
		}
	}
	if err := f.check(steps); err != nil {
		return whole, fmt.Errorf("%w: last came %s", err, f.got[len(f.got)-1].Raw)
	}
	if got := runs(key); got != 1 {
		return whole, fmt.Errorf("the tool ran %d times", got)
	}
	if res := p.open("DELETE", "/mcp", "").all(); res.status != http.StatusNoContent {
		return whole, fmt.Errorf("DELETE: %d %s", res.status, res.body)
	}
	return whole, nil
}

func (n *node) end(p *peer) {
	if res := p.open("DELETE", "/mcp", "").all(); res.status != 204 {
		n.t.Errorf("DELETE: %d", res.status)
	}
}

// TestCutTwice is failure 3: a call is cut before any output, resumed, and cut again before a new
// event id.
func TestCutTwice(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
		p := n.connect(version, nil)
		f := &follower{p: p, seen: map[string]bool{}}
		p.open("POST", "/mcp", call("hold", `{}`)).atMost(0, rst)
		n.sessionsQuiet()
		for range 3 {
			w := f.again()
			w.head()
			w.atMost(0, fin)
			n.sessionsQuiet()
		}
		held := n.release(1)
		held[0].Result(result("late"))
		if err := f.rest(f.again()); err != nil {
			t.Fatal(err)
		}
		if err := f.check(0); err != nil {
			t.Error(err)
		}
	}
}

// sessionsQuiet waits until no connection reads a stream.
func (n *node) sessionsQuiet() {
	n.t.Helper()
	mcptest.Eventually(n.t, "connections to end", time.Minute, func() bool { return n.sessions.Readers() == 0 })
}

// call is the body of a tools/call with id "c" and progress token 7.
func call(name, args string) string {
	return callAs(`"c"`, name, args)
}

func callAs(id, name, args string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":7}}}`, id, name, args)
}

// TestContinuedOnce is a client that knows only its session, and has two calls cut. Its next
// connection gets each message of both calls once.
func TestContinuedOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
	n.HurryLost(50 * time.Millisecond)
	p := n.connect("2025-06-18", nil)
	p.open("POST", "/mcp", callAs("1", "hold", `{}`)).atMost(10, rst)
	p.open("POST", "/mcp", callAs("2", "steps", `{"key":"k","n":1}`)).atMost(10, rst)
	held := n.release(1)
	mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return n.runs("k") == 1 })
	n.sessionsQuiet()
	w := p.open("GET", "/mcp", "")
	var got []string
	for range 2 {
		got = append(got, string(w.message().Data))
	}
	pass(t, 500*time.Millisecond) // a call with event ids would come again after 50 ms
	held[0].Result(result("last"))
	got = append(got, string(w.message().Data))
	if len(got) != 3 || !strings.Contains(got[0], "progress") || !strings.Contains(got[1], "done") || !strings.Contains(got[2], "last") {
		t.Errorf("got %q", got)
	}
}

// TestToldOnce is a client that has read its answer, and then listens on another connection
// without an event id: it does not get the answer again.
func TestToldOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
	n.HurryLost(50 * time.Millisecond)
	var listening []*wire
	var peers []*peer
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		for _, extra := range []string{"Connection: close", "X: y"} {
			p := n.connect(version, nil)
			if r := p.post(call("steps", `{"n":2}`), extra); !r.whole {
				t.Fatal(r.status)
			}
			w := p.open("GET", "/mcp", "")
			w.head()
			listening, peers = append(listening, w), append(peers, p)
		}
	}
	pass(t, 500*time.Millisecond) // an answer would come again after 50 ms
	for i, w := range listening {
		peers[i].note("new")
		if ev := w.message(); !strings.Contains(string(ev.Data), "new") {
			t.Errorf("%s: told again: %s", peers[i].version, ev.Data)
		}
	}
}

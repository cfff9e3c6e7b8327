package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// from returns a request of a client at an address.
func from(address string) *http.Request {
	r := newRequest()
	r.RemoteAddr = address + ":1234"
	return r
}

// openFrom begins and initializes a session for a client at an address.
func (h *house) openFrom(address string) (*Session, error) {
	s, err := h.New(from(address), caller.Principal{}, false, nil)
	if err == nil {
		h.initialize(s, `{`+asked+`}`)
	}
	return s, err
}

// use makes a call in the session, to its end.
func (h *house) use(s *Session, id int) {
	h.t.Helper()
	c := begin(h.t, s, true, request(id))
	conn := h.desk.last()
	<-conn.in
	conn.say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, id))
	if answers, done := c.Wait(h.t.Context(), 0); !done || len(answers) != 1 {
		h.t.Fatalf("the call: %q", answers)
	}
}

func (h *house) processes() (taken, links int) {
	taken, links, _ = h.Manager.processes.Taken()
	return taken, links
}

// empty checks that no place, session or call is counted any more.
func (h *house) empty() {
	h.t.Helper()
	mcptest.Eventually(h.t, "nothing to be counted", time.Minute, func() bool {
		taken, links, leaving := h.Manager.processes.Taken()
		h.mu.RLock()
		defer h.mu.RUnlock()
		return taken == 0 && links == 0 && leaving == 0 && len(h.tenants) == 0 && h.calls.Load() == 0
	})
}

func wantBusy(t *testing.T, what string, err error, says ...string) {
	t.Helper()
	if !errors.Is(err, ErrBusy) {
		t.Fatalf("%s: %v", what, err)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q in it", what, err, text)
		}
	}
}

// At the bound, an unused session gives its conversation up to another session, and
// gets another conversation when it is used. A used session keeps its conversation.
func TestMaxProcesses(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MaxProcesses: 2}, nil)
	defer h.close()
	a, _ := h.openFrom("192.0.2.1")
	first := h.desk.last()
	b, _ := h.openFrom("192.0.2.2")
	h.use(b, 1)
	c, err := h.openFrom("192.0.2.3")
	if err != nil {
		t.Fatal(err)
	}
	<-first.closed
	h.use(c, 1)
	_, err = h.openFrom("192.0.2.4")
	wantBusy(t, "a third that is used", err, "2 server processes", "--max-processes")
	_, err = a.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, true)
	wantBusy(t, "a request in the session that gave its own up", err, "--max-processes")
	wantBusy(t, "a notification", a.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/x"}`), nil))
	h.End(b)
	h.use(a, 2)
	if taken, links := h.processes(); taken != 2 || links != 2 {
		t.Errorf("%d places are taken, %d conversations are open", taken, links)
	}
	// An unused session with a connected client keeps its conversation.
	h.End(a)
	d, _ := h.openFrom("192.0.2.5")
	r, err := d.Read(t.Context(), standalone, 0, 0, make(chan struct{}, 1))
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.openFrom("192.0.2.4")
	wantBusy(t, "a third beside one that is connected", err)
	r.Detach(false, true, false)
	if _, err = h.openFrom("192.0.2.4"); err != nil {
		t.Error(err)
	}
	for _, s := range h.all() {
		h.End(s)
	}
	h.empty()
}

// Calls that come at the same time, in sessions without a conversation, are admitted as
// far as conversations can be opened. The others are refused at once.
func TestMaxProcessesAtOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MaxProcesses: 3}, nil)
	defer h.close()
	var sessions []*Session
	for i := range 3 {
		s, err := h.openFrom(fmt.Sprintf("192.0.2.%d", i+1))
		if err != nil {
			t.Fatal(err)
		}
		s.closeUnused()
		sessions = append(sessions, s)
	}
	mcptest.Eventually(t, "the conversations to be closed", time.Minute, func() bool { taken, _ := h.processes(); return taken == 0 })
	h.Manager.processes.Most = 2
	for i, s := range sessions[:2] {
		if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(i))}, true); err != nil {
			t.Fatal(err)
		}
	}
	_, err := sessions[2].Begin([]jsonrpc.Message{mcptest.Parse(request(2))}, true)
	wantBusy(t, "a third", err, "--max-processes")
	if _, err = sessions[0].Begin([]jsonrpc.Message{mcptest.Parse(request(3))}, true); err != nil {
		t.Errorf("another in the first: %v", err)
	}
}

// Two sessions may want the place of the same session: the second finds no conversation
// there any more, and goes on to other sessions.
func TestEvictedTwice(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MaxProcesses: 2}, nil)
	defer h.close()
	a, _ := h.openFrom("192.0.2.1")
	b, _ := h.openFrom("192.0.2.2")
	a.mu.Lock()
	conn := a.backend.link.finish() // as by another session that has yet to give the place back
	a.mu.Unlock()
	if !h.Manager.processes.MakeRoom(processOwner{b}) {
		t.Error("the place that is about to be free is not counted on")
	}
	h.closeBackend(conn)
	for _, s := range h.all() {
		h.End(s)
	}
	h.empty()
}

// A tenant has at most its share of each bound, and makes room for itself first.
func TestMaxShare(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MaxProcesses: 4, MaxSessions: 8, MaxCalls: 4, MaxShare: 0.5}, nil)
	defer h.close()
	other, err := h.openFrom("192.0.2.9")
	if err != nil {
		t.Fatal(err)
	}
	kept := h.desk.last()
	var own []*Session
	for range 2 {
		s, err := h.openFrom("192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		h.use(s, 1)
		own = append(own, s)
	}
	_, err = h.openFrom("192.0.2.1")
	wantBusy(t, "a third process", err, "2 server processes run for this client", "--max-share")
	select {
	case <-kept.closed:
		t.Error("another's conversation made room for it")
	default:
	}
	h.End(own[1])
	for range 3 { // each session takes the place of the one before
		if _, err = h.openFrom("192.0.2.1"); err != nil {
			t.Fatal(err)
		}
	}
	_, err = h.openFrom("192.0.2.1")
	wantBusy(t, "a fifth session", err, "4 sessions of this client", "--max-share", "--max-sessions")
	if _, err = h.openFrom("192.0.2.2"); err != nil {
		t.Errorf("another's session: %v", err)
	}

	// The bound on requests in flight has shares, too.
	for i := range 2 {
		begin(t, own[0], true, request(10+i))
	}
	_, err = own[0].Begin([]jsonrpc.Message{mcptest.Parse(request(12))}, true)
	wantBusy(t, "a third call", err, "2 requests of this client", "--max-share", "--max-calls")
	if _, err = other.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, true); err != nil {
		t.Errorf("another's call: %v", err)
	}
	own[0].cancel([]byte("10"))
	begin(t, own[0], true, request(13))
	for _, s := range h.all() {
		h.End(s)
	}
	h.empty()

	// A client without an address has no share: many clients may come through one pipe.
	for range 8 {
		r := newRequest()
		r.RemoteAddr = "@"
		if _, err := h.Reserve(r, caller.Principal{}, true); err != nil {
			t.Error(err)
		}
	}
}

// When there are too many sessions, those are ended that were unused for a minute and have no connected client.
func TestThin(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MaxSessions: 2}, nil)
	defer h.close()
	a, _ := h.openFrom("192.0.2.1")
	b, _ := h.openFrom("192.0.2.2")
	h.use(b, 1)
	long := int64(h.clock() - 2*unusedFor)
	b.use.lastSeen.Store(long)
	_, err := h.openFrom("192.0.2.3")
	wantBusy(t, "a third session", err, "2 sessions", "--max-sessions")
	a.use.lastSeen.Store(long)
	_, err = h.openFrom("192.0.2.3") // the manager has looked for such sessions just now
	wantBusy(t, "a third session", err)
	h.unusedEnded.Store(0)
	if _, err := h.openFrom("192.0.2.3"); err != nil {
		t.Error(err)
	}
	if !a.isClosed() || b.isClosed() {
		t.Errorf("closed: the unused %v, the used %v", a.isClosed(), b.isClosed())
	}
}

// An unused session gives its conversation up after a time.
func TestUnused(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MaxProcesses: 10, Unused: 50 * time.Millisecond}, nil)
	defer h.close()
	read, _ := h.openFrom("192.0.2.1")
	reading := h.desk.last()
	r, err := read.Read(t.Context(), standalone, 0, 0, make(chan struct{}, 1))
	if err != nil {
		t.Fatal(err)
	}
	used, _ := h.openFrom("192.0.2.1")
	h.use(used, 1)
	worked := h.desk.last()
	unused, _ := h.openFrom("192.0.2.1")
	if err := unused.Send(t.Context(), initialized, nil); err != nil {
		t.Fatal(err)
	}
	<-h.desk.last().closed
	h.use(unused, 1) // the session gets another conversation
	for _, c := range []*deskConn{reading, worked} {
		select {
		case <-c.closed:
			t.Error("a conversation was closed that is used")
		default:
		}
	}
	r.Detach(false, true, false)
	<-reading.closed
}

// However sessions end, no place stays counted, and the bound holds at any time.
func TestProcessesChurn(t *testing.T) {
	t.Parallel()
	const most = 5
	h := newHouse(t, Options{MaxProcesses: most, MaxShare: 0.6, Unused: 20 * time.Millisecond}, nil)
	defer h.close()
	h.desk.slow = func() {
		if taken, _ := h.processes(); taken > most {
			t.Errorf("%d places are taken of %d", taken, most)
		}
	}
	var work sync.WaitGroup
	var begun atomic.Int64
	for i := range 8 {
		work.Go(func() {
			for n := range 60 {
				ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
				s, err := h.New(from(fmt.Sprintf("192.0.2.%d", i%3)).WithContext(ctx), caller.Principal{}, false, nil)
				stop()
				if err != nil {
					if !errors.Is(err, ErrBusy) {
						t.Error(err)
					}
					continue
				}
				begun.Add(1)
				switch n % 4 {
				case 0: // the session ends before a call begins
				case 1:
					s.mu.Lock()
					l := s.backend.link
					s.mu.Unlock()
					l.Closed(errors.New("it fell over"), n%8 == 1)
				default:
					c, err := s.Begin([]jsonrpc.Message{mcptest.Parse(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)}, true)
					if err == nil {
						c.Deliver(ctx, []jsonrpc.Message{mcptest.Parse(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)}, nil)
					}
				}
				if n%3 > 0 || s.Revision() == "" {
					h.End(s)
				}
			}
		})
	}
	work.Wait()
	if n := begun.Load(); n < 50 {
		t.Errorf("only %d sessions were begun", n)
	}
	for _, s := range h.all() {
		h.End(s)
	}
	h.empty()
}

// Sessions that were taken over wait for places. A call that was made again and has ended
// makes room for the next one: more calls than there are places are all made again.
func TestTakeOverWaitsForProcess(t *testing.T) {
	t.Parallel()
	const most, calls = 2, 8
	f := newShelf()
	a := f.add(t, "a", safeTools())
	o := safeTools()
	o.MaxProcesses, o.MaxShare = most, 0.5
	b := f.add(t, "b", o)
	var lost []*Session
	var begun []*Call
	for range calls {
		s := a.open("")
		begun = append(begun, begin(t, s, false, safeRequest(1)))
		a.desk.last().next(t, "tools/call")
		lost = append(lost, s)
	}
	for _, c := range begun {
		mcptest.Eventually(t, "the record", time.Minute, func() bool { return c.Number() != 0 })
	}
	busy := b.open("x")
	begin(t, busy, true, request(1))
	used := b.open("y")
	b.use(used, 1)
	a.kill()
	var taken []*Session
	for _, s := range lost {
		taken = append(taken, b.take(s))
	}
	if n := b.desk.opened(); n != most {
		t.Errorf("%d conversations were opened, %d are allowed", n, most)
	}
	b.End(used)
	for i := range calls {
		mcptest.Eventually(t, "its backend", time.Minute, func() bool { return b.desk.opened() == most+i+1 })
		if places, _ := b.processes(); places > most {
			t.Errorf("%d places are taken of %d", places, most)
		}
		conn := b.desk.last()
		in := conn.next(t, "tools/call")
		conn.say(in.Call, `{"jsonrpc":"2.0","id":1,"result":"again"}`)
	}
	for i, s := range taken {
		wantTexts(t, "the call", readAll(t, s, begun[i].Number()), "again")
	}
}

package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/caller"
	"holdfast/internal/engine/memory"
	"holdfast/internal/feature/handofftext"
	"holdfast/internal/handover"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

func TestFind(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("alice")
	if got, err := h.Find(s.ID(), caller.At("", "alice")); got != s || err != nil {
		t.Errorf("got %v and %v", got, err)
	}
	if got, err := h.FindName(s.Name(), caller.At("", "alice")); got != s || err != nil {
		t.Errorf("by name: got %v and %v", got, err)
	}
	for _, who := range []struct{ id, principal string }{
		{s.ID(), "bob"}, {s.ID(), ""}, {s.Name(), "alice"}, {"", "alice"}, {s.ID() + "x", "alice"}, {strings.ToLower(s.ID()), "alice"},
	} {
		if got, err := h.Find(who.id, caller.At("", who.principal)); got != nil || !errors.Is(err, ErrNotFound) {
			t.Errorf("%+v: got %v and %v", who, got, err)
		}
	}
	if got, err := h.FindName(s.ID(), caller.At("", "alice")); got != nil || !errors.Is(err, ErrNotFound) {
		t.Errorf("the id as a name: got %v and %v", got, err)
	}
	h.End(s)
	if _, err := h.Find(s.ID(), caller.At("", "alice")); !errors.Is(err, ErrNotFound) {
		t.Errorf("after its end: %v", err)
	}
	if strings.Contains(s.Name(), s.ID()) || s.ID() == h.open("alice").ID() {
		t.Error("ids are not what they should be")
	}
}

// asking is a service for requests about calls.
type asking struct{ Service }

func (asking) Owns(method string) bool             { return method == protocol.MethodTaskCancel }
func (asking) Suits(*Session, string, []byte) bool { return false } // the test sets Session.offers itself

// When the limits are full, requests about calls are still taken, as many as there are calls.
func TestLimitsAboutBegun(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MaxCalls: 2, SessionMax: 2, Addition: passAfter(time.Hour), Services: []func(*Manager, *Options) Service{func(*Manager, *Options) Service { return asking{} }}}, nil)
	defer h.close()
	s := h.open("")
	begin(t, s, true, request(1), request(2))
	const tool = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{}}}`
	try := func(id int, name string) error {
		_, err := s.Begin([]jsonrpc.Message{mcptest.Parse(fmt.Sprintf(tool, id, name))}, true)
		return err
	}
	if err := try(3, "other"); !errors.Is(err, ErrBusy) {
		t.Errorf("another call: %v", err)
	}
	for id, name := range map[int]string{4: handofftext.ToolWait, 5: handofftext.ToolCancel} {
		if err := try(id, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := try(6, handofftext.ToolCancel); !errors.Is(err, ErrBusy) {
		t.Errorf("one more than there are calls: %v", err)
	}
	s.offers.Store(1)
	if s.aboutBegun([]jsonrpc.Message{mcptest.Parse(request(7))}) || !s.aboutBegun([]jsonrpc.Message{mcptest.Parse(`{"jsonrpc":"2.0","id":7,"method":"tasks/cancel","params":{}}`)}) {
		t.Error("what is about tasks is taken for what is not")
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MaxSessions: 2, MaxCalls: 5, SessionMax: 3}, nil)
	defer h.close()
	a, b := h.open(""), h.open("")
	if _, err := h.New(newRequest(), caller.Principal{}, false, nil); !errors.Is(err, ErrBusy) {
		t.Errorf("a third session: %v", err)
	}
	try := func(s *Session, ids ...int) error {
		var msgs []jsonrpc.Message
		for _, id := range ids {
			msgs = append(msgs, mcptest.Parse(request(id)))
		}
		_, err := s.Begin(msgs, true)
		return err
	}
	call := begin(t, a, true, request(1), request(2), request(3))
	if err := try(a, 4); !errors.Is(err, ErrBusy) {
		t.Errorf("a fourth request in a session: %v", err)
	}
	if err := try(b, 1, 2, 3); !errors.Is(err, ErrBusy) {
		t.Errorf("a sixth request on the node: %v", err)
	}
	begin(t, b, true, request(1), request(2))
	if err := try(b, 3); !errors.Is(err, ErrBusy) {
		t.Errorf("a sixth request on the node: %v", err)
	}
	if n := h.Calls(); n != 5 {
		t.Errorf("%d requests in flight", n)
	}
	// A request that ends makes room, however it ends: answered, cancelled, or refused.
	h.desk.last() // the conversation of b
	h.desk.links[0].say(call, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	cancel := mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	if err := a.Send(t.Context(), cancel, nil); err != nil {
		t.Error(err)
	}
	if err := try(a, 3); !errors.Is(err, ErrDuplicate) {
		t.Errorf("an id in flight: %v", err)
	}
	if err := try(a, 8, 8); !errors.Is(err, ErrDuplicate) {
		t.Errorf("an id twice in a batch: %v", err)
	}
	if err := try(a, 8, 3); !errors.Is(err, ErrDuplicate) {
		t.Errorf("an id in flight, in a batch: %v", err)
	}
	if n := h.Calls(); n != 3 {
		t.Errorf("%d requests in flight", n)
	}
	begin(t, a, true, request(8), request(9)) // the refused requests are not on record
	h.End(a)
	if n := h.Calls(); n != 2 {
		t.Errorf("%d requests in flight", n)
	}
	h.open("")
}

// A session that its backend refuses leaves nothing behind.
func TestRefusedSession(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{MaxSessions: 1}, nil)
	defer h.close()
	h.desk.err = backend.ErrNoServer
	for range 3 {
		if _, err := h.New(newRequest(), caller.Principal{}, false, nil); !errors.Is(err, ErrRefused) || !errors.Is(err, backend.ErrNoServer) {
			t.Errorf("got %v", err)
		}
	}
	h.desk.err = nil
	h.open("")
	h.Departure.Stop()
	if _, err := h.New(newRequest(), caller.Principal{}, false, nil); !errors.Is(err, ErrClosing) {
		t.Errorf("got %v", err)
	}
}

// Time in which the process stood still does not make sessions idle: a request may wait to be read.
func TestIdleStoodStill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{TTL: time.Minute}, nil)
		defer h.close()
		for _, test := range []struct {
			late  time.Duration
			lives bool
		}{{0, false}, {29 * time.Second, false}, {31 * time.Second, true}} {
			s := h.open("")
			time.Sleep(50 * time.Second)
			now := h.clock()
			h.noteStandstill(now, now-test.late, h.opts.TTL)
			time.Sleep(50 * time.Second)
			synctest.Wait()
			if s.isClosed() == test.lives {
				t.Errorf("a look %v late: closed is %v", test.late, !test.lives)
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			if !s.isClosed() {
				t.Errorf("a look %v late: the session does not end any more", test.late)
			}
		}
	})
}

// Idle sessions end. Sessions with a call in flight or a reader do not,
// except for a call that no client has asked about for a day.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{TTL: 30 * time.Minute}, nil)
		defer h.close()
		start := time.Now()
		idle, busy, read, used := h.open(""), h.open(""), h.open(""), h.open("")
		conn := h.desk.links[1]
		call := begin(t, busy, true, request(1))
		r, err := read.Read(t.Context(), standalone, 0, 0, make(chan struct{}, 1))
		if err != nil {
			t.Fatal(err)
		}
		alive := func(want ...*Session) {
			t.Helper()
			synctest.Wait()
			for _, s := range []*Session{idle, busy, read, used} {
				wanted := false
				for _, w := range want {
					wanted = wanted || s == w
				}
				if s.isClosed() == wanted {
					t.Fatalf("after %v: closed is %v", time.Since(start), s.isClosed())
				}
			}
		}
		find := func(s *Session) {
			t.Helper()
			if _, err := h.Find(s.ID(), caller.Principal{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(29 * time.Minute)
		alive(idle, busy, read, used)
		find(used)
		time.Sleep(5 * time.Minute)
		alive(busy, read, used)
		time.Sleep(30 * time.Minute)
		alive(busy, read)
		// A session is idle from the end of its call on.
		time.Sleep(20 * time.Hour)
		alive(busy, read)
		conn.say(call, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		time.Sleep(29 * time.Minute)
		alive(busy, read)
		r.Detach(true, true, false)
		time.Sleep(5 * time.Minute)
		alive(read)
		time.Sleep(30 * time.Minute)
		alive()
		<-conn.closed
		if n := h.store.(*memory.Store).Bytes(); n != 0 {
			t.Errorf("%d bytes are kept", n)
		}
		// This call never ends, and its client never comes back.
		lost := h.open("")
		c := begin(t, lost, false, request(1))
		time.Sleep(23 * time.Hour)
		if lost.isClosed() {
			t.Error("a busy session was ended")
		}
		time.Sleep(2 * time.Hour)
		if !lost.isClosed() || h.Calls() != 0 {
			t.Error("a call keeps its session for ever")
		}
		_ = c
	})
}

// slowDelete is a store with deletes that wait.
type slowDelete struct {
	stream.Store
	gate chan struct{}
}

func (d slowDelete) Delete(ctx context.Context, key stream.SessionKey) error {
	<-d.gate
	return d.Store.Delete(ctx, key)
}

// An idle session waits to be ended, as many others are ended first. Its client
// comes back meanwhile, and keeps the session.
func TestIdleNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		h := newHouse(t, Options{TTL: time.Minute}, func(s stream.Store) stream.Store { return slowDelete{s, gate} })
		defer h.close()
		var all []*Session
		for range 2 * handover.Parallel {
			all = append(all, h.open(""))
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		ended := 0
		for _, s := range all {
			if s.Touch(); s.isClosed() {
				ended++
			}
		}
		if ended != handover.Parallel {
			t.Fatalf("%d sessions are being ended, want %d", ended, handover.Parallel)
		}
		close(gate)
		synctest.Wait()
		if n := h.Sessions(); n != handover.Parallel {
			t.Errorf("%d sessions are left, want %d", n, handover.Parallel)
		}
	})
}

// A session with a backend that takes long to open is not idle.
func TestSlowBackend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{TTL: time.Second}, nil)
		defer h.close()
		h.desk.slow = func() { time.Sleep(20 * time.Second) }
		s := h.open("")
		time.Sleep(900 * time.Millisecond)
		if s.isClosed() {
			t.Error("a session that has just been opened was ended")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !s.isClosed() {
			t.Error("an idle session was not ended")
		}
	})
}

// Thousands of sessions in every state begin and end, and leave nothing behind.
func TestChurn(t *testing.T) { // alone, as it counts goroutines
	h := newHouse(t, Options{TTL: 40 * time.Millisecond, Keep: 40 * time.Millisecond}, nil)
	defer h.close()
	before := runtime.NumGoroutine()
	const workers, each = 8, 400
	var clients sync.WaitGroup
	for range workers {
		clients.Go(func() {
			for i := range each {
				s, err := h.New(newRequest(), caller.Principal{}, false, nil)
				if err != nil {
					t.Error(err)
					return
				}
				var conn *deskConn
				s.mu.Lock()
				if s.backend.link != nil {
					conn = s.backend.link.conn.(*deskConn)
				}
				s.mu.Unlock()
				c, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, i%2 == 0)
				if err != nil || conn == nil {
					continue // the session has expired
				}
				c.Deliver(context.Background(), []jsonrpc.Message{mcptest.Parse(request(1))}, nil)
				for range 3 {
					conn.say(c, `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`)
				}
				switch i % 4 {
				case 0: // the call stays in flight until the backend ends
					conn.sink.Closed(errors.New("gone"), i%8 == 0)
				case 1: // the backend asks the client for input
					conn.say(c, `{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
					conn.say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
				case 2: // the client ends the session
					h.End(s)
				case 3:
					conn.say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
				}
			}
		})
	}
	clients.Wait()
	st := h.store.(*memory.Store)
	mcptest.Eventually(t, "sessions to end", time.Minute, func() bool { return len(h.all()) == 0 })
	mcptest.Eventually(t, "their bytes to go", time.Minute, func() bool { return st.Bytes() == 0 })
	mcptest.Eventually(t, "their goroutines to end", time.Minute, func() bool { return runtime.NumGoroutine() <= before })
	if n := h.Calls(); n != 0 {
		t.Errorf("%d calls are in flight", n)
	}
	h.desk.mu.Lock()
	defer h.desk.mu.Unlock()
	for i, c := range h.desk.links {
		select {
		case <-c.closed:
		case <-time.After(time.Minute):
			t.Fatalf("backend %d was not closed", i)
		}
	}
	if len(h.desk.links) < workers*each {
		t.Errorf("%d backends for %d sessions", len(h.desk.links), workers*each)
	}
}

// Messages from a backend after the end of its session, and requests to that session, do no harm.
func TestAfterTheEnd(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	conn := h.desk.last()
	c := begin(t, s, false, request(1))
	light := begin(t, s, true, request(2))
	h.End(s)
	h.End(s)
	if answers, done := light.Wait(t.Context(), 0); !done || len(answers) != 1 || mcptest.Parse(string(answers[0])).Error == nil {
		t.Errorf("got %q", answers)
	}
	conn.say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	conn.say(nil, `{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
	conn.sink.EmitUnrelated(mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`))
	conn.sink.Closed(errors.New("late"), true)
	if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(3))}, true); !errors.Is(err, ErrNotFound) {
		t.Errorf("Begin: %v", err)
	}
	if _, err := s.Read(t.Context(), standalone, 0, 0, make(chan struct{}, 1)); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("Read: %v", err)
	}
	if err := s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`), nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("Send: %v", err)
	}
	if n := h.store.(*memory.Store).Bytes(); n != 0 || h.Calls() != 0 {
		t.Errorf("%d bytes and %d calls are left", n, h.Calls())
	}
}

// The log never contains a session's secret id.
func TestSecretIsNotLogged(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	h := newHouse(t, Options{}, nil)
	h.logger = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := h.open("")
	h.desk.last().sink.Closed(errors.New("gone"), true)
	begin(t, s, false, request(1))
	h.desk.last().sink.Closed(errors.New("gone for good"), false)
	h.close()
	if got := text.String(); !strings.Contains(got, s.Name()) || strings.Contains(got, s.ID()) {
		t.Errorf("logged:\n%s", got)
	}
	if n := fmt.Sprint(len(s.ID())); n != "26" {
		t.Errorf("an id of %s characters", n)
	}
}

package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/handover"
	"holdfast/internal/mcptest"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A node that is fenced leaves the session at once: its readers leave before
// the end, its backend is closed, and nothing of the session is deleted.
func TestLoseFenced(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	c := begin(t, s, false, request(1))
	light, unsafe := begin(t, s, true, safeRequest(2)), begin(t, s, true, request(3))
	ready := make(chan struct{}, 1)
	r, err := s.Read(t.Context(), c.Number(), 0, 0, ready)
	if err != nil {
		t.Fatal(err)
	}
	taken := b.take(s) // a sleeps, and does not notice the take-over
	link := a.desk.last()
	link.say(c, `{"jsonrpc":"2.0","id":1,"result":"too late"}`)
	if got, err := r.Next(t.Context(), make([]stream.Entry, 0, 4)); !errors.Is(err, ErrMoved) || len(got) != 0 || !r.Gone() {
		t.Errorf("read %+v, %v", got, err)
	}
	r.Detach(true, true, false)
	if answers, done := light.Wait(t.Context(), 0); !done || !strings.Contains(string(answers[0]), "make the request again") || !light.Retriable() {
		t.Errorf("light: %q", answers)
	}
	if answers, done := unsafe.Wait(t.Context(), 0); !done || !strings.Contains(string(answers[0]), "outcome unknown") || unsafe.Retriable() {
		t.Errorf("light, but not safe: %q", answers)
	}
	if !s.Moved() || a.Sessions() != 0 || a.Calls() != 0 {
		t.Errorf("%d sessions, %d calls", a.Sessions(), a.Calls())
	}
	<-link.closed
	for what, err := range map[string]error{
		"Begin": func() error { _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(3))}, true); return err }(),
		"Send":  s.Send(t.Context(), mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/x"}`), nil),
		"Read":  func() error { _, err := s.Read(t.Context(), c.Number(), 0, 0, ready); return err }(),
	} {
		if !errors.Is(err, ErrMoved) {
			t.Errorf("%s: %v", what, err)
		}
	}
	a.End(s)
	if here, at, err := a.Locate(t.Context(), s.key, caller.At("", "alice")); err != nil || here != nil || at.Owner != "b" {
		t.Errorf("located %v, %+v, %v", here, at, err)
	}
	wantTexts(t, "there", readAll(t, taken, c.Number()), lostWith)
	if f.session(s.key) == nil {
		t.Error("it was deleted")
	}
}

// When another node has taken a session over, the node that had it does not
// delete it, neither for its client nor when it expires.
func TestLoseNothingDeleted(t *testing.T) {
	t.Parallel()
	f := newShelf()
	o := safeTools()
	o.TTL = 500 * time.Millisecond
	a, b := f.add(t, "a", o), f.add(t, "b", safeTools())
	first, second := a.open("alice"), a.open("alice")
	b.take(first)
	b.take(second)
	a.End(first)
	mcptest.Eventually(t, "the other to expire", time.Minute, func() bool { return a.Sessions() == 0 })
	for _, s := range []*Session{first, second} {
		if at := f.session(s.key); at == nil || at.Owner != "b" {
			t.Errorf("the store has %+v", at)
		}
	}
}

// Verify finds the sessions that were taken or deleted while this node slept.
func TestVerify(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	lost, deleted, kept, idle := a.open(""), a.open(""), a.open(""), a.open("")
	for i, s := range []*Session{lost, deleted, kept} {
		begin(t, s, false, request(i))
	}
	b.take(lost)
	b.take(idle)
	if err := b.node.Delete(t.Context(), deleted.key); err != nil {
		t.Fatal(err)
	}
	a.Verify(t.Context())
	for s, want := range map[*Session]bool{lost: true, deleted: true, kept: false, idle: false} {
		if s.Moved() != want {
			t.Errorf("moved: %v, want %v", s.Moved(), want)
		}
	}
	a.VerifySession(idle.key)
	a.VerifySession(whereabouts.KeyOf("made up"))
	mcptest.Eventually(t, "the other to be lost", time.Minute, idle.Moved)
}

// When the store does not answer, the calls end for their readers. The node
// itself may take the session over when the store is back.
func TestLoseUnavailable(t *testing.T) {
	t.Parallel()
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprint("single ", single), func(t *testing.T) {
			t.Parallel()
			f := newShelf()
			a := f.add(t, "a", safeTools())
			s, err := a.New(newRequest(), caller.Principal{}, single, nil)
			if err != nil {
				t.Fatal(err)
			}
			c := begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)
			mcptest.Eventually(t, "initialize", time.Minute, c.IsOver)
			waits, speaks := begin(t, s, false, request(1)), begin(t, s, false, request(2))
			number := waits.Number()
			ready := make(chan struct{}, 1)
			r, err := s.Read(t.Context(), number, 0, 0, ready)
			if err != nil {
				t.Fatal(err)
			}
			a.kill()
			a.desk.last().say(speaks, `{"jsonrpc":"2.0","id":2,"result":"not kept"}`)
			if single {
				said := some(t, r, ready, 3)
				if all := strings.Join(said[1:], ""); strings.Count(all, "could not be kept") != 2 || !strings.Contains(all, `"id":1`) || !strings.Contains(all, `"id":2`) {
					t.Errorf("told %q", said)
				}
			} else {
				wantTexts(t, "the reader", toEnd(t, r, ready), "outcome unknown: what the server said could not be kept: the store does not answer")
			}
			r.Detach(false, true, false)
			mcptest.Eventually(t, "the session to be lost", time.Minute, func() bool { return a.Sessions() == 0 && a.Calls() == 0 })
			if _, _, err := a.Locate(t.Context(), s.key, caller.Principal{}); !errors.Is(err, stream.ErrUnavailable) {
				t.Errorf("located while the store is away: %v", err)
			}
			a.node.handle.Cut(false)
			_, at, err := a.Locate(t.Context(), s.key, caller.Principal{})
			if err != nil || at.Owner != "" {
				t.Fatalf("located %+v, %v", at, err)
			}
			taken := a.take(s)
			if !single {
				wantTexts(t, "the call", readAll(t, taken, speaks.Number()), lostWith)
			}
			if taken.Busy() {
				t.Error("still busy")
			}
		})
	}
}

// When it is unknown whether the store has a call's note, the call is not delivered, and the node loses the session.
func TestLoseBeforeDelivery(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	a.kill()
	if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, false); !errors.Is(err, ErrMoved) {
		t.Errorf("begun: %v", err)
	}
	if n := len(a.desk.last().in); n != 0 || a.Calls() != 0 {
		t.Errorf("%d delivered", n)
	}
	if taken := b.take(s); taken.Busy() {
		t.Error("a call that did not begin goes on")
	}
}

// A backend that sends messages faster than the store takes them waits.
func TestBackpressure(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a := f.add(t, "a", safeTools())
	s := a.open("alice")
	c := begin(t, s, false, request(1))
	held, let := make(chan struct{}), make(chan struct{})
	var once sync.Once
	hold := func([]stream.Record) error { //nolint:unparam // other hooks fail
		once.Do(func() { close(held) })
		<-let
		return nil
	}
	a.node.before.Store(&hold)
	text := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"x":%q}}`, strings.Repeat("x", 1<<20))
	link, message := a.desk.last(), mcptest.Parse(text)
	const speakers, each = 4, 16
	var group sync.WaitGroup
	for range speakers {
		group.Go(func() {
			for range each {
				link.sink.Emit(c, message)
			}
		})
	}
	<-held
	queued := s.log.Queued
	mcptest.Eventually(t, "the queue to fill", time.Minute, func() bool { return queued() > mostQueued })
	if n := queued(); n > mostQueued+(speakers+1)*len(text) {
		t.Errorf("%d bytes are queued", n)
	}
	close(let)
	group.Wait()
	link.say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	if n := len(readAll(t, s, c.Number())); n != speakers*each+1 {
		t.Errorf("%d messages", n)
	}
	if n := queued(); n != 0 {
		t.Errorf("%d bytes are left over", n)
	}
}

// HandOver gives up quiet sessions at once, and the others as soon as they are quiet.
func TestHandOver(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	quiet, busy := a.open("alice"), a.open("alice")
	c := begin(t, busy, false, request(1))
	ready := make(chan struct{}, 1)
	r, err := quiet.Read(t.Context(), 0, 0, 0, ready)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Departure.HandOver(t.Context()) }()
	mcptest.Eventually(t, "the quiet one to be released", time.Minute, func() bool { return f.session(quiet.key).Owner == "" })
	if !r.Gone() || f.session(quiet.key).Open {
		t.Error("its reader stays, or it was released as open")
	}
	r.Detach(false, true, false)
	if taken := b.take(quiet); taken.Revision() == "" {
		t.Error("forgotten")
	}
	a.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantTexts(t, "what ended here", readAll(t, b.take(busy), c.Number()), "done")
	_, at, err := a.Locate(t.Context(), quiet.key, caller.At("", "alice"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.TakeOver(t.Context(), at); !errors.Is(err, ErrClosing) {
		t.Errorf("taken over again: %v", err)
	}
}

// Calls that are still in flight when the time is over are cut: by HandOver, and by Close.
func TestHandOverCuts(t *testing.T) {
	t.Parallel()
	for _, closes := range []bool{false, true} {
		f := newShelf()
		a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
		s, other := a.open("alice"), a.open("alice")
		awaitListed(t, s, other) // a call of a tool that was not listed in time is left to the next owner
		unsafe, safe := begin(t, s, false, request(1)), begin(t, s, false, safeRequest(2))
		light, unsafe2 := begin(t, s, true, safeRequest(3)), begin(t, s, true, request(4)) // as with --response json
		begin(t, other, false, request(1))
		ready := make(chan struct{}, 1)
		r, err := s.Read(t.Context(), unsafe.Number(), 0, 0, ready)
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan []string, 1)
		go func() {
			defer close(read)
			if said, err := told(t, r, ready, 0); !errors.Is(err, ErrMoved) { // Close waits for no reader
				read <- said
			}
		}()
		if closes {
			a.Close()
		} else {
			ctx, stop := context.WithCancel(t.Context())
			stop()
			if err := a.Departure.HandOver(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		const unknown = "outcome unknown: the session ended: the server is shutting down"
		said, here := <-read
		if here {
			wantTexts(t, "its reader", said, unknown)
		} else if !closes {
			t.Error("its reader was sent away before it had all")
		}
		r.Detach(false, true, false)
		if answers, done := light.Wait(t.Context(), 0); !done || !strings.Contains(string(answers[0]), "make the request again") || !light.Retriable() {
			t.Errorf("light: %q", answers)
		}
		if answers, done := unsafe2.Wait(t.Context(), 0); !done || !strings.Contains(string(answers[0]), "outcome unknown") || unsafe2.Retriable() {
			t.Errorf("light, but not safe: %q", answers)
		}
		if a.Sessions() != 0 || a.Calls() != 0 {
			t.Errorf("%d sessions, %d calls", a.Sessions(), a.Calls())
		}
		if one, two := f.session(s.key), f.session(other.key); one.Owner != "" || !one.Open || two.Owner != "" || two.Open {
			t.Errorf("released as %+v, %+v", one, two)
		}
		// The sweep finds the session with a safe call: no client need ask for it.
		if err := b.Finder.Sweep(t.Context(), func(string) bool { return false }, func(stream.SessionKey) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if b.Sessions() != 1 {
			t.Fatalf("%d sessions were swept", b.Sessions())
		}
		mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
		b.desk.last().say(b.desk.last().next(t, "tools/call").Call, `{"jsonrpc":"2.0","id":2,"result":"again"}`)
		wantTexts(t, "again", readAll(t, b.take(s), safe.Number()), "again")
		if !here {
			wantTexts(t, "its reader at the other node", readAll(t, b.take(s), unsafe.Number()), unknown)
		}
	}
}

// A call that no backend has got when its node's time is over has not begun. The next
// owner makes it if it has an idempotency key, as its client then asks for it again.
// Any other call ends with the advice to make the request again, also for a reader: a
// client on a WebSocket may only read. It never ends with "outcome unknown".
func TestHandOverUnsent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newShelf()
		a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
		s := a.open("alice")
		start := func(id int) (*Call, []jsonrpc.Message) {
			msgs := []jsonrpc.Message{mcptest.Parse(request(id))}
			c, err := s.Begin(msgs, false)
			if err != nil {
				t.Fatal(err)
			}
			return c, msgs
		}
		read, first := start(1)
		unread, second := start(2)
		third := []jsonrpc.Message{mcptest.Parse(request(3))}
		keyed, _, err := s.BeginOnce(Once{Key: "k"}, third[0].Raw, third)
		if err != nil {
			t.Fatal(err)
		}
		light, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(4))}, true) // as with --response json
		if err != nil {
			t.Fatal(err)
		}
		ready := make(chan struct{}, 1)
		r, err := s.Read(t.Context(), read.Number(), 0, 0, ready)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := a.Departure.HandOver(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		r.Detach(false, true, false)
		// The calls are delivered too late.
		for c, msgs := range map[*Call][]jsonrpc.Message{read: first, unread: second, keyed: third} {
			c.Deliver(t.Context(), msgs, nil)
		}
		light.Deliver(t.Context(), []jsonrpc.Message{mcptest.Parse(request(4))}, nil)
		if answers, done := light.Wait(t.Context(), 0); !done || !light.Retriable() {
			t.Errorf("light: not to be made again: %q", answers)
		}
		synctest.Wait()
		a.desk.mu.Lock()
		for _, c := range a.desk.links {
			for len(c.in) > 0 {
				if in := <-c.in; in.Method == "tools/call" {
					t.Errorf("delivered after all: %s", in.Raw)
				}
			}
		}
		a.desk.mu.Unlock()
		taken := b.take(s)
		for what, c := range map[string]*Call{"not read": unread, "read": read} {
			wantTexts(t, what, readAll(t, taken, c.Number()), "not delivered: the server is shutting down; make the request again")
		}
		mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
		in := b.desk.last().next(t, "tools/call")
		if string(in.ID) != "3" {
			t.Errorf("the next owner made %s", in.Raw)
		}
		b.desk.last().say(in.Call, `{"jsonrpc":"2.0","id":3,"result":"made"}`)
		wantTexts(t, "keyed", readAll(t, taken, keyed.Number()), "made")
		if c, known, err := taken.BeginOnce(Once{Key: "k"}, third[0].Raw, third); c != nil || known == nil || known.Number != keyed.Number() || err != nil {
			t.Errorf("asked again under its key: %v, %+v, %v", c, known, err)
		}
		synctest.Wait()
		if n := len(b.desk.last().in); n != 0 || b.desk.opened() != 1 {
			t.Errorf("the next owner made %d more requests, with %d backends", n, b.desk.opened())
		}
	})
}

// The next owner makes the call once. When that node is lost too, or its time is
// over, no other node makes the call.
func TestHandOverUnsentOnce(t *testing.T) {
	t.Parallel()
	for _, drain := range []bool{false, true} {
		f := newShelf()
		a, b, c := f.add(t, "a", safeTools()), f.add(t, "b", safeTools()), f.add(t, "c", safeTools())
		s := a.open("alice")
		msgs := []jsonrpc.Message{mcptest.Parse(request(3))}
		keyed, _, err := s.BeginOnce(Once{Key: "k"}, msgs[0].Raw, msgs)
		if err != nil {
			t.Fatal(err)
		}
		over, stop := context.WithCancel(t.Context())
		stop()
		_ = a.Departure.HandOver(over) // HandOver cuts the call
		b.take(s)
		mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
		b.desk.last().next(t, "tools/call")
		if drain {
			_ = b.Departure.HandOver(over)
		} else {
			b.kill()
		}
		wantTexts(t, "lost", readAll(t, c.take(s), keyed.Number()), "outcome unknown")
		if n := c.desk.opened(); n != 0 {
			t.Errorf("%d backends of who came third", n)
		}
	}
}

// However many sessions are cut, their readers are waited for all at once.
func TestHandOverBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newShelf()
		a := f.add(t, "a", safeTools())
		for range 3 * handover.CutAtOnce {
			s := a.open("alice")
			c := begin(t, s, false, request(1))
			if _, err := s.Read(t.Context(), c.Number(), 0, 0, make(chan struct{}, 1)); err != nil { // this reader is stuck
				t.Fatal(err)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		began := time.Now()
		_ = a.Departure.HandOver(ctx)
		if took := time.Since(began); took < handover.ReadersGrace || took > 5*handover.ReadersGrace/4 {
			t.Errorf("it took %v, want %v", took, handover.ReadersGrace)
		}
		if n := a.Sessions(); n > 0 {
			t.Errorf("%d sessions are left", n)
		}
		a.Close()
	})
}

// Shortly before its time is over a node begins no call that it would have to cut. A
// call that may not be made again is refused: its client is to make it elsewhere.
func TestLastCall(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a := f.add(t, "a", safeTools())
	s := a.open("alice")
	a.Departure.RefuseUnsafe()
	if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, false); !errors.Is(err, ErrMoved) {
		t.Errorf("begun: %v", err)
	}
	if a.Calls() != 0 {
		t.Errorf("%d calls are left", a.Calls())
	}
	c := begin(t, s, true, safeRequest(2))
	a.desk.last().say(c, `{"jsonrpc":"2.0","id":2,"result":"done"}`)
	if answers, done := c.Wait(t.Context(), 0); !done || !strings.Contains(string(answers[0]), "done") {
		t.Errorf("safe: %q", answers)
	}
}

// A client that always has a request in flight leaves no gap: its session is given up
// at the beginning of the next request that finds it quiet.
func TestHandOverBetween(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	c := begin(t, s, false, request(1))
	looks := make(chan struct{})
	a.Departure.AwaitArrivals = func(ctx context.Context) {
		select {
		case <-looks:
		case <-ctx.Done():
		}
	}
	var handsOver sync.WaitGroup
	handsOver.Go(func() { _ = a.Departure.HandOver(t.Context()) }) // HandOver does not look at the sessions just now
	mcptest.Eventually(t, "HandOver", time.Minute, func() bool { return a.work.State() == handover.HandingOver })
	second := begin(t, s, false, request(2)) // the request begins, as a call is in flight
	a.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	a.desk.last().say(second, `{"jsonrpc":"2.0","id":2,"result":"done"}`)
	mcptest.Eventually(t, "all answered", time.Minute, func() bool { return !s.Busy() })
	if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(3))}, false); !errors.Is(err, ErrMoved) || !s.Moved() {
		t.Errorf("a new request: %v, moved: %v", err, s.Moved())
	}
	close(looks)
	handsOver.Wait()
	if b.take(s).Revision() == "" {
		t.Error("forgotten")
	}
}

// A sweep takes over the sessions of a lost owner, as far as they are for this node.
func TestSweep(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b, c := f.add(t, "a", safeTools()), f.add(t, "b", safeTools()), f.add(t, "c", safeTools())
	var left []*Session
	for range 6 {
		left = append(left, a.open("alice"))
	}
	b.open("alice")
	a.kill()
	asked := 0
	gone := func(node string) bool { asked++; return node == "a" }
	mine := func(key stream.SessionKey) bool { return key != left[0].key && key != left[1].key }
	if err := c.Finder.Sweep(t.Context(), gone, mine); err != nil {
		t.Fatal(err)
	}
	if c.Sessions() != 4 || b.Sessions() != 1 || asked != 2 {
		t.Errorf("%d and %d sessions, %d questions", c.Sessions(), b.Sessions(), asked)
	}
}

// A sweep waits for the take-overs that clients wait for, but not for long.
func TestSweepGivesWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newShelf()
		a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
		s, other := a.open("alice"), a.open("bob")
		begin(t, s, false, request(1))
		begin(t, other, false, request(1))
		a.kill()
		_, at, err := b.Locate(t.Context(), s.key, caller.At("", "alice"))
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		hold := func() { <-release }
		b.node.taking.Store(&hold)
		go func() { _, _ = b.TakeOver(t.Context(), at) }()
		synctest.Wait()
		b.node.taking.Store(nil)
		gone := func(string) bool { return true }
		mine := func(key stream.SessionKey) bool { return key != s.key }
		swept := make(chan error, 1)
		began := time.Now()
		go func() {
			swept <- b.Finder.Sweep(t.Context(), gone, mine)
		}()
		if err := <-swept; err != nil || time.Since(began) != whereabouts.GiveWayFor {
			t.Errorf("swept after %v: %v", time.Since(began), err)
		}
		close(release)
		synctest.Wait()
		began = time.Now()
		if err := b.Finder.Sweep(t.Context(), gone, mine); err != nil || time.Since(began) != 0 {
			t.Errorf("swept with nobody waiting after %v: %v", time.Since(began), err)
		}
	})
}

// A session in use does not expire in the store. A session out of use is deleted.
func TestRenew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newShelf()
		o := safeTools()
		o.TTL = time.Second
		a := f.add(t, "a", o)
		used, idle := a.open(""), a.open("")
		begin(t, used, false, request(1))
		touched := func() int { return f.CountOf("Put", string(used.key)) }
		began := touched()
		mcptest.Eventually(t, "the other to expire", time.Minute, func() bool { return f.session(idle.key) == nil })
		mcptest.Eventually(t, "renewals", time.Minute, func() bool { return touched() >= began+3 })
	})
}

// Keys mean the same on every node.
func TestKeysOnManyNodes(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s, other, nobody := a.open("alice"), b.open("alice"), a.open("")
	msgs := []jsonrpc.Message{mcptest.Parse(request(1))}
	keyed := func(s *Session, key, body string) (*Call, *ExistingCall, error) {
		return s.BeginOnce(Once{Key: key}, []byte(body), msgs)
	}
	c, _, err := keyed(s, "k", "body")
	if err != nil {
		t.Fatal(err)
	}
	c.Deliver(context.Background(), msgs, nil)
	alone, _, err := keyed(nobody, "k", "body")
	if err != nil {
		t.Fatal(err)
	}
	var at *Redirect
	if _, _, err := keyed(other, "k", "body"); !errors.As(err, &at) || at.ID != s.ID() || at.Owner != "a" {
		t.Errorf("from another node: %v", err)
	}
	if _, _, err := keyed(other, "k", "different"); !errors.Is(err, idempotency.ErrReused) {
		t.Errorf("for another request: %v", err)
	}
	// A claim without a begun call does not count, once its session is here.
	if _, _, err := b.node.Claim(t.Context(), shared.ClaimID(idempotency.KeyID(s.keys(), "early")), claimOf(s, "body")); err != nil {
		t.Fatal(err)
	}
	a.kill()
	taken := b.take(s)
	for _, from := range []*Session{taken, other} {
		_, known, err := keyed(from, "k", "body")
		if err != nil || known == nil || known.Session != taken || known.Number != c.Number() {
			t.Errorf("after the take-over: %+v, %v", known, err)
		}
		if _, _, err := keyed(from, "k", "different"); !errors.Is(err, idempotency.ErrReused) {
			t.Errorf("for another request: %v", err)
		}
	}
	if _, known, err := keyed(b.take(nobody), "k", "body"); err != nil || known == nil || known.Number != alone.Number() {
		t.Errorf("of nobody in particular: %+v, %v", known, err)
	}
	wantTexts(t, "the call", readAll(t, taken, c.Number()), lostWith)
	early, _, err := keyed(other, "early", "body")
	if err != nil || early == nil {
		t.Fatalf("a key whose call never began: %v", err)
	}
	early.Abort(msgs, jsonrpc.Errorf(1, "not delivered"))
	if early, _, err = keyed(taken, "early", "body"); err != nil || early == nil {
		t.Fatalf("a key that was given up: %v", err)
	}
	// A deleted session may have run the call of this claim.
	if err := b.node.Delete(t.Context(), taken.key); err != nil {
		t.Fatal(err)
	}
	third := f.add(t, "c", safeTools())
	if _, _, err := keyed(third.open("alice"), "early", "body"); !errors.Is(err, idempotency.ErrGone) {
		t.Errorf("of a session that is gone: %v", err)
	}
	// So may a session with a claim that is older than the records that the store keeps.
	if _, _, err := b.node.Claim(t.Context(), shared.ClaimID(idempotency.KeyID(other.keys(), "old")), claimOf(other, "body")); err != nil {
		t.Fatal(err)
	}
	f.Advance(time.Hour)
	if _, _, err := keyed(other, "old", "body"); !errors.Is(err, idempotency.ErrGone) {
		t.Errorf("of long ago: %v", err)
	}
}

// Late news about the owner of a session does not take it from its present owner.
func TestLoseLate(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	a.kill()
	b.take(s)
	a.node.handle.Cut(false)
	a.VerifySession(s.key)
	mcptest.Eventually(t, "a to lose what b has taken", time.Minute, func() bool { return a.Sessions() == 0 })
	_ = b.Departure.HandOver(t.Context())
	back := a.take(s)
	c := begin(t, back, false, request(1))
	a.VerifySession(s.key) // news of the time when b took it
	if err := back.checkOwner(t.Context()); err != nil {
		t.Error(err)
	}
	if again := a.take(s); again != back {
		t.Errorf("a lost a session that it owns, and with it a call: %q", readAll(t, again, c.Number()))
	}
}

// An answer to a question that this node did not ask is not taken as long as the store does not say whether another node
// owns the session and asked it.
func TestAnswerUnknownOwner(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	answer := mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, (s.leased().Epoch+1)<<32+1))
	a.kill()
	if err := s.Send(t.Context(), answer, nil); !errors.Is(err, ErrNotDelivered) {
		t.Errorf("while the store is away: %v", err)
	}
	a.node.handle.Cut(false)
	if err := s.Send(t.Context(), answer, nil); err != nil {
		t.Errorf("of no question: %v", err)
	}
	a.kill()
	b.take(s)
	a.node.handle.Cut(false)
	if err := s.Send(t.Context(), answer, nil); !errors.Is(err, ErrMoved) {
		t.Errorf("of a session that moved: %v", err)
	}
}

// When a session is lost while it is given up, its reader does not wait for ever.
func TestLoseHandedOver(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a := f.add(t, "a", safeTools())
	s := a.open("alice")
	a.desk.last().sink.Emit(nil, mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`))
	ready := make(chan struct{}, 1)
	r, err := s.Read(t.Context(), 0, 0, 0, ready)
	if err != nil {
		t.Fatal(err)
	}
	some(t, r, ready, 1)
	r.Delivered()
	fenced := func([]stream.Record) error { return stream.ErrFenced }
	a.node.before.Store(&fenced)
	for len(ready) > 0 {
		<-ready
	}
	if err := a.Departure.HandOver(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Error("the reader waits for ever")
	}
	if !r.Gone() {
		t.Error("the reader stays")
	}
	if _, _, err := a.node.Bounds(t.Context(), stream.ID{Session: s.key}); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("the store was not told to forget the session: %v", err)
	}
	r.Detach(false, true, false)
}

// TestBeginUnavailable begins calls while the store is slow. A call that has not
// begun does not wait for long, and does not run, here or on the next node.
func TestBeginUnavailable(t *testing.T) {
	t.Parallel()
	for _, single := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newShelf()
			a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
			defer b.Close()
			defer a.Close()
			s, err := a.New(newRequest(), caller.At("", "alice"), single, nil)
			if err != nil {
				t.Fatal(err)
			}
			c := begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)
			mcptest.Eventually(t, "initialize", time.Minute, c.IsOver)
			slow := func(records []stream.Record) error {
				if time.Sleep(20 * time.Second); len(records) == 0 {
					return stream.ErrUnavailable
				}
				return nil
			}
			a.node.before.Store(&slow)
			began := time.Now()
			_, err = s.Begin([]jsonrpc.Message{mcptest.Parse(safeRequest(1))}, false)
			if d := time.Since(began); !errors.Is(err, stream.ErrUnavailable) || d > 2*storeTimeout {
				t.Errorf("%v after %v", err, d)
			}
			if !single {
				if _, _, err = keyedCall(t, s, "k", safeRequest(2)); !errors.Is(err, stream.ErrUnavailable) {
					t.Errorf("under a key: %v", err)
				}
			}
			if got := a.Calls(); got != 0 {
				t.Errorf("%d calls in flight", got)
			}
			a.node.before.Store(nil)
			time.Sleep(time.Minute)
			if !single { // now the call may begin
				first(t, s, "k", safeRequest(2))
			}
			a.kill()
			b.take(s)
			synctest.Wait()
			want := 0
			if !single {
				want = 1 // the call under the key
			}
			if got := b.Calls(); got != want {
				t.Errorf("%d calls go on, want %d", got, want)
			}
		})
	}
}

// TestNewUnavailable begins a session while the store is away.
func TestNewUnavailable(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a := f.add(t, "a", safeTools())
	a.kill()
	if _, err := a.New(newRequest(), caller.Principal{}, false, nil); !errors.Is(err, stream.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	mcptest.Eventually(t, "nothing to be left", time.Minute, func() bool { return a.Sessions() == 0 })
}

// TestShownWhenNoted begins a call, and gives a light call a stream, while the store
// is slow and takes a message of another call. Neither is shown to its client before
// its note is stored, as the client may then come back for it to another node.
func TestShownWhenNoted(t *testing.T) {
	t.Parallel()
	for _, light := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newShelf()
			a := f.add(t, "a", safeTools())
			defer a.Close()
			s := a.open("alice")
			other := begin(t, s, false, request(1))
			slow := func(records []stream.Record) error {
				if time.Sleep(2 * time.Second); len(records) == 0 {
					return stream.ErrUnavailable
				}
				return nil
			}
			a.node.before.Store(&slow)
			link := a.desk.last()
			var saying sync.WaitGroup
			saying.Go(func() { link.say(other, `{"jsonrpc":"2.0","id":1,"result":"done"}`) })
			synctest.Wait() // the store is busy

			c := begin(t, s, light, safeRequest(2))
			if light {
				if _, still := c.Wait(t.Context(), 10*time.Millisecond); still {
					t.Error("it is light")
				}
			}
			if _, kept := a.node.notes.Load(c.Number()); !kept {
				t.Errorf("light %v: the call is shown, and not on record", light)
			}
			saying.Wait()
			a.node.before.Store(nil)
		})
	}
}

// claimOf returns the claim of a session that begins a call: the sum of the call's body, and the session's key.
func claimOf(s *Session, body string) []byte {
	sum := idempotency.SumOf([]byte(body))
	return append(sum[:], s.key...)
}

package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/caller"
	"holdfast/internal/feature/resume"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/mcptest"
	"holdfast/internal/reading"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

func safeRequest(id int) string { return strings.Replace(request(id), `"x"`, `"safe"`, 1) }

// next returns the next message that a backend gets, which must be a request.
func (c *deskConn) next(t testing.TB, method string) backend.Inbound {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case in := <-c.in:
			if in.Method == method {
				return in
			}
		case <-timeout:
			t.Fatalf("no %s was delivered", method)
		}
	}
}

func wantTexts(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %q, want %q", what, got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("%s: message %d is %s, want %s", what, i, got[i], want[i])
		}
	}
}

const lostWith = "outcome unknown: the node that ran this call was lost"

// An idle session goes on at another node as the same session.
func TestTakeOverIdle(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", Options{}), f.add(t, "b", Options{})
	s := a.open("alice")
	_, at, err := b.Locate(t.Context(), s.key, caller.At("", "alice"))
	if err != nil || at.ID != s.ID() || at.Owner != "a" || at.Principal != caller.At("", "alice") || at.SingleStream {
		t.Fatalf("located %+v, %v", at, err)
	}
	if strings.Contains(fmt.Sprint(at.LogValue(), (&Redirect{at}).Error()), s.ID()) {
		t.Error("the secret id would be logged")
	}
	for _, who := range []string{"bob", ""} {
		if _, _, err := b.Locate(t.Context(), s.key, caller.At("", who)); !errors.Is(err, ErrNotFound) {
			t.Errorf("for %q: %v", who, err)
		}
	}
	if _, _, err := b.Locate(t.Context(), whereabouts.KeyOf("made up"), caller.At("", "alice")); !errors.Is(err, ErrNotFound) {
		t.Errorf("made up: %v", err)
	}
	a.kill()
	taken := b.take(s)
	if taken.ID() != s.ID() || taken.Revision() != "2025-11-25" || taken.lease.Epoch != 2 || taken.SingleStream() {
		t.Errorf("took %+v", taken)
	}
	if n := len(b.desk.links); n != 0 {
		t.Errorf("%d backends were opened before anybody asked", n)
	}
	c := begin(t, taken, true, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	b.desk.last().next(t, "notifications/initialized")
	b.desk.last().say(b.desk.last().next(t, "ping").Call, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	if answers, done := c.Wait(t.Context(), 0); !done || len(answers) != 1 {
		t.Errorf("got %q", answers)
	}
	// The client of a lost session may repeat its initialized notification: the server gets it once.
	if err := taken.Send(t.Context(), initialized, nil); err != nil || len(b.desk.last().in) != 0 {
		t.Errorf("initialized twice: %v, %d", err, len(b.desk.last().in))
	}
}

// The server that a session gets elsewhere is told what its client had set.
func TestTakeOverSettings(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", Options{}), f.add(t, "b", Options{})
	s := a.open("alice")
	for i, set := range []string{
		`"logging/setLevel","params":{"level":"error"}`, `"resources/subscribe","params":{"uri":"x:a"}`,
		`"resources/subscribe","params":{"uri":"x:b"}`, `"resources/unsubscribe","params":{"uri":"x:a"}`,
	} {
		c := begin(t, s, true, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%s}`, i, set))
		a.desk.last().say(c, response(i))
	}
	mcptest.Eventually(t, "the settings to be noted", time.Minute, func() bool {
		s.settingsNote.mu.Lock()
		defer s.settingsNote.mu.Unlock()
		return !s.settingsNote.due.Load() && s.log.IsIdle()
	})
	a.kill()
	begun := make(chan *Call, 1)
	taken := b.take(s)
	go func() { begun <- begin(t, taken, true, request(9)) }()
	mcptest.Eventually(t, "the server to be opened", time.Minute, func() bool { return b.desk.opened() > 0 })
	link := b.desk.last()
	for _, want := range []string{`notifications/initialized {}`, `logging/setLevel {"level":"error"}`, `resources/subscribe {"uri":"x:b"}`, `tools/call {"name":"x"}`} {
		in := <-link.in
		if got := in.Method + " " + cmp.Or(string(in.Params), "{}"); got != want {
			t.Fatalf("the server got %s, want %s", got, want)
		}
		if in.Kind == jsonrpc.Request {
			link.say(in.Call, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, in.ID))
		}
	}
	if answers, done := (<-begun).Wait(t.Context(), 0); !done || len(answers) != 1 {
		t.Errorf("got %q", answers)
	}
}

// However often the settings change while the store takes its time, they are noted once more, with the last of them.
func TestSettingsNotedAtATime(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a := f.add(t, "a", Options{})
	s := a.open("alice")
	mcptest.Eventually(t, "the session to be stored", time.Minute, s.log.IsIdle)
	var notes [][]byte
	began, goOn := make(chan struct{}, 100), make(chan struct{})
	hold := func(records []stream.Record) error { //nolint:unparam // other hooks fail
		for _, r := range records {
			if r.Note {
				notes = append(notes, slices.Clone(r.Data)) // one append at a time
			}
		}
		began <- struct{}{}
		<-goOn
		return nil
	}
	a.node.before.Store(&hold)
	for i := range 100 {
		locked(s, func() { s.backend.settings.level = fmt.Appendf(nil, `{"level":"%d"}`, i) })
		if s.noteSettings(); i == 0 {
			<-began
		}
		runtime.Gosched() // another goroutine that notes them, too, would begin
	}
	close(goOn)
	mcptest.Eventually(t, "the settings to be noted", time.Minute, func() bool {
		s.settingsNote.mu.Lock()
		defer s.settingsNote.mu.Unlock()
		return !s.settingsNote.due.Load() && s.log.IsIdle()
	})
	a.node.before.Store(nil)
	if len(notes) != 2 || !strings.Contains(string(notes[1]), `{"level":"99"}`) {
		t.Errorf("%d notes, the last %s", len(notes), notes[len(notes)-1])
	}
}

// A request that sets what is set already changes nothing, and needs no note.
func TestSettingsChange(t *testing.T) {
	t.Parallel()
	var all settings
	for _, x := range []struct {
		request string
		changes bool
	}{
		{`"logging/setLevel","params":{"level":"error"}`, true}, {`"logging/setLevel","params":{"level":"error"}`, false}, {`"logging/setLevel","params":{"level":"info"}`, true},
		{`"resources/subscribe","params":{"uri":"x:a"}`, true}, {`"resources/subscribe","params":{"uri":"x:a"}`, false},
		{`"resources/unsubscribe","params":{"uri":"x:b"}`, false}, {`"resources/unsubscribe","params":{"uri":"x:a"}`, true},
	} {
		m := mcptest.Parse(`{"jsonrpc":"2.0","id":1,"method":` + x.request + `}`)
		if sets, changes := all.take(&m); !sets || changes != x.changes {
			t.Errorf("%s sets: %v, changes: %v", x.request, sets, changes)
		}
	}
}

// A call that may not be made again ends. Its messages stay, and its readers keep their places.
func TestTakeOverUnsafe(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	c := begin(t, s, false, request(1))
	a.desk.last().say(c, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}`)
	a.kill()
	taken := b.take(s)
	wantTexts(t, "all", readAll(t, taken, c.Number()), `"progress":1`, lostWith)
	at := stream.Cursor{Stream: stream.ID{Session: s.key, Number: c.Number()}, Epoch: 1, Seq: 1}
	r, err := taken.Read(t.Context(), at.Stream.Number, at.Epoch, at.Seq, make(chan struct{}, 1))
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Next(t.Context(), make([]stream.Entry, 0, 4))
	if err != nil || len(got) != 1 || got[0].Epoch != 2 || !got[0].Last {
		t.Errorf("read on: %+v, %v", got, err)
	}
	r.Detach(false, true, false)
	if len(b.desk.links) != 0 || b.Calls() != 0 || taken.use.calls.Load() != 0 {
		t.Errorf("%d backends, %d calls", len(b.desk.links), b.Calls())
	}
	// The numbers of the two epochs do not meet.
	if c := begin(t, taken, false, request(1)); c.Number() != 1<<32+1 {
		t.Errorf("the next stream is %d", c.Number())
	}
}

// An owner seems to be gone, and writes once more while its session is taken over. Its
// message comes before the end, and there is one end.
func TestTakeOverOvertaken(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	c := begin(t, s, false, request(1))
	a.desk.last().say(c, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}`)
	late := func() { // the owner's append comes before the new owner's first
		a.desk.last().say(c, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":2}}`)
	}
	b.node.after.Store(&late)
	taken := b.take(s)
	wantTexts(t, "all", readAll(t, taken, c.Number()), `"progress":1`, `"progress":2`, lostWith)
	if epoch := taken.leased().Epoch; epoch != 3 {
		t.Errorf("epoch %d: not taken over again", epoch)
	}
	if n := taken.tenant.sessions; n != 1 || b.Calls() != 0 || taken.use.calls.Load() != 0 {
		t.Errorf("%d sessions of the tenant, %d calls", n, b.Calls())
	}
	// Another node may own the session by then.
	s = a.open("alice")
	_, at, err := b.Locate(t.Context(), s.key, caller.At("", "alice"))
	if err != nil {
		t.Fatal(err)
	}
	third := f.add(t, "c", safeTools())
	late = func() {
		if _, err := third.node.Acquire(t.Context(), *f.session(s.key)); err != nil {
			t.Error(err)
		}
	}
	b.node.after.Store(&late)
	if _, err := b.TakeOver(t.Context(), at); !errors.Is(err, stream.ErrConflict) {
		t.Errorf("taken over from another: %v", err)
	}
}

// A call that may be made again is made again under the same id, and its stream goes on.
func TestTakeOverSafe(t *testing.T) {
	t.Parallel()
	for _, light := range []bool{false, true} {
		f := newShelf()
		a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
		s := a.open("alice")
		writes := a.node.writes.Load()
		c := begin(t, s, light, safeRequest(1))
		if n := a.node.writes.Load() - writes; n != 0 && light || n != 1 && !light {
			t.Errorf("light %v: %d writes before it runs", light, n)
		}
		a.desk.last().say(c, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}`) // the message promotes it
		a.kill()
		taken := b.take(s)
		mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
		in := b.desk.last().next(t, "tools/call")
		if string(in.ID) != "1" || string(in.Raw) != safeRequest(1) || callOf(&in).Number() != c.Number() {
			t.Errorf("made again as %s", in.Raw)
		}
		b.desk.last().say(in.Call, `{"jsonrpc":"2.0","id":1,"result":"again"}`)
		wantTexts(t, "all", readAll(t, taken, c.Number()), `"progress":1`, "again")
	}
}

// A tool may turn out to be safe after its call has begun, as some servers are slow
// to list their tools. The next owner knows it, whether the node was killed or ended.
func TestTakeOverSafeLate(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(a *fleetNode){
		"killed": (*fleetNode).kill,
		"ended": func(a *fleetNode) {
			ctx, stop := context.WithCancel(context.Background())
			stop()
			_ = a.Departure.HandOver(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newShelf()
			a, b := f.add(t, "a", Options{}), f.add(t, "b", Options{})
			a.desk.tools = `{"name":"safe","annotations":{"readOnlyHint":true}}`
			a.desk.listing = make(chan struct{})
			s := a.open("alice")
			c, other := begin(t, s, false, safeRequest(1)), begin(t, s, false, request(2))
			writes := a.node.writes.Load()
			close(a.desk.listing)
			mcptest.Eventually(t, "the tools to be noted", time.Minute, func() bool { return a.node.writes.Load() > writes })
			end(a)
			taken := b.take(s)
			mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
			b.desk.last().say(b.desk.last().next(t, "tools/call").Call, `{"jsonrpc":"2.0","id":1,"result":"again"}`)
			wantTexts(t, "the safe one", readAll(t, taken, c.Number()), "again")
			wantTexts(t, "the other", readAll(t, taken, other.Number()), lostWith)
		})
	}
}

// A session may move on before its tools are known. The next owner then lists them
// itself, and the owner after that knows from it which tools are safe.
func TestTakeOverUnlisted(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b, c := f.add(t, "a", Options{}), f.add(t, "b", Options{}), f.add(t, "c", Options{})
	for _, n := range []*fleetNode{a, b, c} {
		n.desk.tools = `{"name":"safe","annotations":{"readOnlyHint":true}}`
	}
	s := a.open("alice")
	a.kill()
	taken := b.take(s)
	writes := b.node.writes.Load()
	call := begin(t, taken, false, safeRequest(1))
	mcptest.Eventually(t, "the call and the tools to be noted", time.Minute, func() bool { return b.node.writes.Load() >= writes+2 })
	b.kill()
	last := c.take(taken)
	mcptest.Eventually(t, "a backend", time.Minute, func() bool { return c.desk.opened() == 1 })
	c.desk.last().say(c.desk.last().next(t, "tools/call").Call, `{"jsonrpc":"2.0","id":1,"result":"again"}`)
	wantTexts(t, "the call", readAll(t, last, call.Number()), "again")
}

func (d *desk) opened() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.links)
}

// Of a batch, only the unanswered requests are made again, or ended.
func TestTakeOverBatch(t *testing.T) {
	t.Parallel()
	for _, single := range []bool{false, true} {
		f := newShelf()
		a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
		s, err := a.New(newRequest(), caller.Principal{}, single, nil)
		if err != nil {
			t.Fatal(err)
		}
		initialize := begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)
		mcptest.Eventually(t, "initialize", time.Minute, initialize.IsOver)
		unsafe := begin(t, s, single, request(1), request(2))
		safe := begin(t, s, single, safeRequest(3), safeRequest(4))
		for _, c := range []*Call{unsafe, unsafe, safe, safe} {
			in := a.desk.last().next(t, "tools/call")
			if string(in.ID) == "1" || string(in.ID) == "4" {
				a.desk.last().say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":"a"}`, in.ID))
			}
		}
		a.kill()
		taken := b.take(s)
		mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
		in := b.desk.last().next(t, "tools/call")
		if string(in.ID) != "3" || len(b.desk.last().in) != 0 {
			t.Errorf("made again: %s and %d more", in.ID, len(b.desk.last().in))
		}
		b.desk.last().say(in.Call, `{"jsonrpc":"2.0","id":3,"result":"b"}`)
		if !single {
			wantTexts(t, "unsafe", readAll(t, taken, unsafe.Number()), `"id":1,"result":"a"`, `"id":2,"error"`)
			wantTexts(t, "safe", readAll(t, taken, safe.Number()), `"id":4,"result":"a"`, `"id":3,"result":"b"`)
			continue
		}
		want := []string{`"id":"i"`, `"id":1,"result":"a"`, `"id":4,"result":"a"`, `"id":2,"error"`, `"id":3,"result":"b"`}
		ready := make(chan struct{}, 1)
		r, err := taken.Read(t.Context(), 0, 0, 0, ready)
		if err != nil {
			t.Fatal(err)
		}
		wantTexts(t, "single", some(t, r, ready, len(want)), want...)
		r.Detach(false, true, false)
		if taken.Busy() {
			t.Error("still busy")
		}
		// All calls have ended, and none is made again a second time.
		b.kill()
		third := f.add(t, "c", safeTools())
		if taken = third.take(s); taken.Busy() || third.desk.opened() != 0 {
			t.Error("made again, or ended, twice")
		}
	}
}

// some reads n messages of a reader's stream.
func some(t testing.TB, r *reading.Reader, ready <-chan struct{}, n int) []string {
	t.Helper()
	said, err := told(t, r, ready, n)
	if err != nil {
		t.Fatalf("Next: %v, after %q", err, said)
	}
	return said
}

// A call that is made again asks its question again, under another id. The answer
// to the old question is dropped.
func TestTakeOverAsked(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	c := begin(t, s, false, safeRequest(1))
	question := `{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{}}`
	a.desk.last().say(c, question)
	a.kill()
	taken := b.take(s)
	mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
	link := b.desk.last()
	link.say(link.next(t, "tools/call").Call, question)
	ready := make(chan struct{}, 1)
	r, err := taken.Read(t.Context(), c.Number(), 0, 0, ready)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Detach(false, true, false)
	said := some(t, r, ready, 2)
	old, now := mcptest.Parse(said[0]), mcptest.Parse(said[1])
	if string(old.ID) == string(now.ID) {
		t.Fatalf("both have the id %s", old.ID)
	}
	for i, id := range [][]byte{old.ID, now.ID} {
		if err := taken.Send(t.Context(), mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"n":%d}}`, id, i)), nil); err != nil {
			t.Error(err)
		}
	}
	in := <-link.in
	if in.Kind != jsonrpc.Response || string(in.ID) != "7" || string(in.Result) != `{"n":1}` || len(link.in) != 0 {
		t.Errorf("delivered %s", in.Raw)
	}
}

// A node that has not heard yet of a take-over does not refuse a stream, a request or a
// token that the client got from the new owner as unknown: it sends the client to that node.
func TestTakeOverUnheard(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(t *testing.T, old *Manager, s *Session, call *Call, now *Session, question jsonrpc.Message) error{
		"a later place in an older stream": func(t *testing.T, _ *Manager, s *Session, call *Call, _ *Session, _ jsonrpc.Message) error {
			_, err := s.Read(t.Context(), call.Number(), 2, 2, make(chan struct{}, 1))
			return err
		},
		"a newer stream": func(t *testing.T, _ *Manager, s *Session, _ *Call, now *Session, _ jsonrpc.Message) error {
			_, err := s.Read(t.Context(), begin(t, now, false, request(2)).Number(), 0, 0, make(chan struct{}, 1))
			return err
		},
		"an answer": func(t *testing.T, _ *Manager, s *Session, _ *Call, _ *Session, question jsonrpc.Message) error {
			return s.Send(t.Context(), mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, question.ID)), nil)
		},
		"a token": func(t *testing.T, old *Manager, _ *Session, _ *Call, now *Session, _ jsonrpc.Message) error {
			c := begin(t, now, false, request(2))
			_, _, err := old.resumes.Find(tokenFor(now, c.Number(), []byte("2")), []byte("2"), caller.At("", "alice"))
			var at *Redirect
			if errors.As(err, &at) && at.Owner == "b" {
				return ErrMoved
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newShelf()
			a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
			s, err := a.New(newRequest(), caller.At("", "alice"), false, nil)
			if err != nil {
				t.Fatal(err)
			}
			begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"resumableRequests":{},"roots":{},"sampling":{},"elicitation":{}}}}`)
			c := begin(t, s, false, safeRequest(1))
			taken := b.take(s)
			mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
			link := b.desk.last()
			again := link.next(t, "tools/call").Call
			link.say(again, `{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{}}`)
			question := mcptest.Parse(readSome(t, taken, c.Number(), 2)[1])
			if err := ask(t, a.Manager, s, c, taken, question); !errors.Is(err, ErrMoved) || !s.Moved() {
				t.Errorf("it said %v", err)
			}
		})
	}
}

// A client that comes back with nothing but its session gets the calls that it
// may have lost, but not the calls that it is known to have read.
func TestTakeOverLost(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	answer := func(id int) *Call {
		c := begin(t, s, false, request(id))
		a.desk.last().say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":"r"}`, id))
		return c
	}
	readAll(t, s, answer(1).Number())
	unread := answer(2)
	running := begin(t, s, false, request(3))
	a.kill()
	taken := b.take(s)
	taken.CameBack(0, nil)
	lost, _ := taken.streams.Lost(t.Context(), 0)
	var numbers []uint64
	for _, at := range lost {
		numbers = append(numbers, at.Stream.Number)
	}
	if fmt.Sprint(numbers) != fmt.Sprint([]uint64{unread.Number(), running.Number()}) {
		t.Errorf("lost: %v", numbers)
	}
	wantTexts(t, "unread", readAll(t, taken, unread.Number()), `"r"`)
}

// The next owner sends the standalone stream again from the place up to which its delivery is known.
func TestTakeOverStandalone(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", Options{}), f.add(t, "b", Options{})
	s := a.open("alice")
	ready := make(chan struct{}, 1)
	r, err := s.Read(t.Context(), 0, 0, 0, ready)
	if err != nil {
		t.Fatal(err)
	}
	say := func(n int) {
		a.desk.last().sink.EmitUnrelated(mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"n":%d}}`, n)))
	}
	for i := range noteEvery + 10 {
		say(i)
		some(t, r, ready, 1)
	}
	r.Detach(true, true, false)
	say(-1)
	a.kill()
	if taken := b.take(s); taken.streams.Delivered() != noteEvery+10 || taken.standalone.said != noteEvery+11 {
		t.Errorf("told %d of %d", taken.streams.Delivered(), taken.standalone.said)
	}
}

// A call with a note that is not stored does not run.
func TestNoteComesFirst(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a := f.add(t, "a", safeTools())
	s := a.open("alice")
	for _, cause := range []error{stream.ErrFull, stream.ErrTooLarge} {
		refuse := func(records []stream.Record) error {
			if len(records) > 0 && records[0].Note && records[0].Number > 0 {
				return cause
			}
			return nil
		}
		a.node.before.Store(&refuse)
		if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, false); !errors.Is(err, cause) {
			t.Errorf("begun, though %v: %v", cause, err)
		}
		if s.Busy() || a.Calls() != 0 {
			t.Error("still busy")
		}
	}
	held, let := make(chan struct{}, 1), make(chan struct{})
	hold := func([]stream.Record) error { //nolint:unparam // other hooks fail
		held <- struct{}{}
		<-let
		return nil
	}
	a.node.before.Store(&hold)
	done := make(chan *Call)
	go func() { done <- begin(t, s, false, request(1)) }()
	<-held
	if len(a.desk.last().in) != 0 {
		t.Error("it was delivered before it was stored")
	}
	close(let)
	<-done
	a.desk.last().next(t, "tools/call")
}

// Of several requests that want a session one gets it, and with it the other requests at its node.
func TestTakeOverRace(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a := f.add(t, "a", safeTools())
	s := a.open("alice")
	c := begin(t, s, false, request(1))
	nodes := []*fleetNode{f.add(t, "b", safeTools()), f.add(t, "c", safeTools())}
	a.kill()
	_, at, err := nodes[0].Locate(t.Context(), s.key, caller.At("", "alice"))
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	var got [2]sync.Map
	var conflicts, other atomic.Int32
	for i, n := range nodes {
		for range 8 {
			group.Go(func() {
				taken, err := n.TakeOver(t.Context(), at)
				switch {
				case err == nil:
					got[i].Store(taken, true)
				case errors.Is(err, stream.ErrConflict):
					conflicts.Add(1)
				default:
					other.Add(1)
				}
			})
		}
	}
	group.Wait()
	sessions := 0
	for i := range got {
		got[i].Range(func(any, any) bool { sessions++; return true })
	}
	if sessions != 1 || other.Load() != 0 {
		t.Errorf("%d sessions, %d conflicts, %d other errors", sessions, conflicts.Load(), other.Load())
	}
	for _, n := range nodes {
		if taken, _, _ := n.Locate(t.Context(), s.key, caller.At("", "alice")); taken != nil {
			wantTexts(t, "the call", readAll(t, taken, c.Number()), lostWith)
		}
	}
}

// Tokens, statuses, answers and cancellations find their session on any node.
func TestTakeOverResumable(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s, err := a.New(newRequest(), caller.At("", "alice"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"resumableRequests":{"eventIds":true},"roots":{},"sampling":{},"elicitation":{}}}}`)
	well, bad, running := begin(t, s, false, request(1)), begin(t, s, false, request(2)), begin(t, s, false, safeRequest(3))
	link := a.desk.last()
	link.say(well, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	link.say(bad, `{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"no"}}`)
	link.say(running, `{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{}}`)
	question := mcptest.Parse(readSome(t, s, running.Number(), 2)[1])
	token := func(c *Call, id int) string { return tokenFor(s, c.Number(), fmt.Append(nil, id)) }
	var at *Redirect
	for _, who := range []string{"alice", "bob"} {
		_, _, err := b.resumes.Find(token(running, 3), []byte("3"), caller.At("", who))
		if who == "alice" && (!errors.As(err, &at) || at.ID != s.ID()) || who == "bob" && !errors.Is(err, resume.ErrBadToken) {
			t.Errorf("%s resumes: %v", who, err)
		}
	}
	if _, _, err := b.resumes.Find(token(running, 3), []byte("4"), caller.At("", "alice")); !errors.Is(err, resume.ErrBadToken) {
		t.Errorf("another request's token: %v", err)
	}
	reply := mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, question.ID))
	if taken, err := b.Answer(t.Context(), caller.At("", "alice"), reply, nil); !taken || !errors.As(err, &at) {
		t.Errorf("answer: %v, %v", taken, err)
	}
	cancel := mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3,"_meta":{"holdfast/resumeToken":%q}}}`, token(running, 3)))
	if taken, err := b.resumes.Cancel(caller.At("", "alice"), &cancel, nil); !taken || !errors.As(err, &at) {
		t.Errorf("cancellation: %v, %v", taken, err)
	}
	stays := func(string) bool { return false }
	if got, err := b.Finder.LocateAll(t.Context(), caller.At("", "alice"), "", stays, 10); err != nil || fmt.Sprint(got.Owners) != "[a]" || len(got.Orphans) > 0 {
		t.Errorf("spread: %+v, %v", got, err)
	}
	a.kill()
	taken, err := b.TakeOver(t.Context(), at.Remote)
	if err != nil {
		t.Fatal(err)
	}
	if !taken.Resumes().EventIDs() {
		t.Error("the client's capability is forgotten")
	}
	for i, want := range []string{resume.Completed, resume.Failed, resume.Processing} {
		id := fmt.Append(nil, i+1)
		s, number, err := b.resumes.Find(token([]*Call{well, bad, running}[i], i+1), id, caller.At("", "alice"))
		if err != nil {
			t.Fatal(err)
		}
		if status, err := s.Resumes().Status(number, id); err != nil || status.Status != want {
			t.Errorf("request %s: %+v, %v", id, status, err)
		}
	}
	all := b.resumes.All(caller.At("", "alice"), nil, Range{})
	if text, _ := json.Marshal(all); len(all) != 3 || all[2].ResumeToken != token(running, 3) {
		t.Errorf("all: %s", text)
	}
	mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
	b.desk.last().next(t, "tools/call")
	if taken, err := b.Answer(t.Context(), caller.At("", "alice"), reply, nil); !taken || err != nil {
		t.Errorf("answer of a lost epoch: %v, %v", taken, err)
	}
	if taken, err := b.resumes.Cancel(caller.At("", "alice"), &cancel, nil); !taken || err != nil {
		t.Errorf("cancellation: %v, %v", taken, err)
	}
	b.desk.last().next(t, "notifications/cancelled")
	wantTexts(t, "cancelled", readAll(t, taken, running.Number()), "resumePolicy", "elicitation", "cancelled by its client")
}

// readSome reads the first n messages of a stream.
func readSome(t testing.TB, s *Session, number uint64, n int) []string {
	t.Helper()
	ready := make(chan struct{}, 1)
	r := mcptest.Must(s.Read(t.Context(), number, 0, 0, ready))(t)
	defer r.Detach(true, true, false)
	return some(t, r, ready, n)
}

// A call with a policy that was not stored emits it when its session is taken over, before any other message.
func TestTakeOverPolicy(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s, err := a.New(newRequest(), caller.Principal{}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"resumableRequests":{},"roots":{},"sampling":{},"elicitation":{}}}}`)
	fail := func(records []stream.Record) error { //nolint:unparam // other hooks fail
		if len(records) == 1 && !records[0].Note {
			a.kill() // after the note, if the node makes two appends
		}
		return nil
	}
	a.node.before.Store(&fail)
	c := begin(t, s, false, request(1))
	a.kill()
	wantTexts(t, "the call", readAll(t, b.take(s), c.Number()), "resumePolicy", lostWith)
}

// Webhooks hear of calls that ended with their node, and of calls that ended before
// and were not read, unless their clients come back in time.
func TestTakeOverWebhooks(t *testing.T) {
	t.Parallel()
	f := newShelf()
	var mu sync.Mutex
	told := map[string]int{}
	o := safeTools()
	o.OnEnded = func(e webhook.Ended) bool {
		mu.Lock()
		defer mu.Unlock()
		told[fmt.Sprintf("%s %s %v", e.ID, e.Webhook, e.Failed)]++
		return true
	}
	lost := safeTools()
	lost.OnEnded = func(webhook.Ended) bool { t.Error("the lost node told a webhook"); return true }
	a, b := f.add(t, "a", lost), f.add(t, "b", o)
	s := a.open("alice")
	awaitListed(t, s) // otherwise its calls would be left to the next owner, and a would not learn when it closes that it is lost
	hooked := func(id int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x","_meta":{"holdfast/webhook":{"url":"https://h/%d"}}}}`, id, id)
	}
	var calls [5]*Call
	for i := range calls {
		calls[i] = begin(t, s, false, hooked(i))
	}
	for i := range 2 { // their responses wait at the lost node
		a.desk.last().say(calls[i], fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, i))
	}
	a.kill()
	taken := b.take(s)
	readAll(t, taken, calls[1].Number())
	readAll(t, taken, calls[3].Number())
	b.Close() // Close does not wait for clients that might come back
	mu.Lock()
	defer mu.Unlock()
	want := map[string]int{"0 https://h/0 false": 1, "2 https://h/2 true": 1, "4 https://h/4 true": 1}
	if fmt.Sprint(told) != fmt.Sprint(want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// The next owner knows the tools from a list that a client asked for.
func TestTakeOverListed(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", Options{}), f.add(t, "b", Options{})
	a.desk.tools = `{"name":"again","annotations":{"idempotentHint":true}},{"name":"once"}`
	s := a.open("alice")
	list := begin(t, s, true, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if _, done := list.Wait(t.Context(), 0); !done {
		t.Fatal("not answered")
	}
	mcptest.Eventually(t, "it to be stored", time.Minute, s.log.IsIdle)
	a.kill()
	again := mcptest.Parse(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"again"}}`)
	if !b.take(s).Tools.Light(t.Context(), &again, nil) {
		t.Error("the next owner does not know the tool")
	}
	if n := b.desk.opened(); n != 0 {
		t.Errorf("%d backends were opened to learn it", n)
	}
}

// An initialize that was in flight is made again.
func TestTakeOverInitialize(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", Options{}), f.add(t, "b", Options{})
	a.desk.mute = true
	s, err := a.New(newRequest(), caller.Principal{}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	initialize := `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{"roots":{},"sampling":{},"elicitation":{}},` +
		`"clientInfo":{"name":"` + strings.Repeat("n", 2*shortInitialize) + `"}}}`
	begin(t, s, true, initialize)
	a.kill()
	var keeps counter
	b.keeper = &keeps
	taken := b.take(s)
	if got, want := keeps.Load(), sessionCost+initializeCost(len(initialize)); got != want {
		t.Errorf("%d bytes are counted, of %d", got, want)
	}
	wantTexts(t, "initialize", readSome(t, taken, 0, 1), `"protocolVersion":"2025-11-25"`)
	if taken.Revision() != "2025-11-25" || b.desk.opened() != 1 {
		t.Errorf("revision %q, %d backends", taken.Revision(), b.desk.opened())
	}
}

// Calls of a session that is taken over go on, though a node that had not begun them would have no memory for them.
func TestTakeOverMemory(t *testing.T) {
	t.Parallel()
	f := newShelf()
	few := safeTools()
	few.Flight = budget.NewFlight(64<<10, 1, 1)
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", few)
	s := a.open("alice")
	var calls []*Call
	for id := range 4 {
		text := strings.Replace(safeRequest(id), `"name"`, `"arguments":{"x":"`+strings.Repeat("x", 12<<10)+`"},"name"`, 1)
		calls = append(calls, begin(t, s, false, text))
	}
	a.kill()
	taken := b.take(s)
	mcptest.Eventually(t, "the backend to be opened", time.Minute, func() bool { return b.desk.opened() > 0 })
	for range calls {
		in := b.desk.last().next(t, "tools/call")
		b.desk.last().say(in.Call, `{"jsonrpc":"2.0","id":`+string(in.ID)+`,"result":"again"}`)
	}
	for _, c := range calls {
		wantTexts(t, "the call", readAll(t, taken, c.Number()), "again")
	}
}

// A backend that does not start holds up only the calls that wait for it.
func TestTakeOverSlowBackend(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s := a.open("alice")
	lost, again := begin(t, s, false, request(1)), begin(t, s, false, safeRequest(2))
	starts := make(chan struct{})
	b.desk.slow = func() { <-starts }
	a.kill()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	_, at, err := b.Locate(ctx, s.key, caller.At("", "alice"))
	if err != nil {
		t.Fatal(err)
	}
	taken, err := b.TakeOver(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	wantTexts(t, "lost", readAll(t, taken, lost.Number()), lostWith)
	close(starts)
	mcptest.Eventually(t, "a backend", time.Minute, func() bool { return b.desk.opened() == 1 })
	b.desk.last().say(b.desk.last().next(t, "tools/call").Call, `{"jsonrpc":"2.0","id":2,"result":"late"}`)
	wantTexts(t, "again", readAll(t, taken, again.Number()), "late")
}

// A store may lose a call's note, as one with a clock that jumped ahead does. The requests
// of the call are not known any more, and its readers get an error instead of its end.
func TestTakeOverWithoutNote(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b, c := f.add(t, "a", safeTools()), f.add(t, "b", safeTools()), f.add(t, "c", safeTools())
	s := a.open("alice")
	running, ended := begin(t, s, false, request(1)), begin(t, s, false, request(2))
	for _, call := range []*Call{running, ended} {
		a.desk.last().say(call, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}`)
	}
	a.desk.last().say(ended, `{"jsonrpc":"2.0","id":2,"result":"r"}`)
	b.node.forgetNotes.Store(true)
	c.node.forgetNotes.Store(true)
	for _, n := range []*fleetNode{b, c} {
		a.kill()
		a = n
		taken := n.take(s)
		for _, seq := range []uint64{0, 1} {
			_, err := taken.Read(t.Context(), running.Number(), 1, seq, make(chan struct{}, 1))
			if !errors.Is(err, stream.ErrTrimmed) {
				t.Errorf("at %s, after %d: %v", n.node.Node(), seq, err)
			}
		}
		wantTexts(t, "one that ended", readAll(t, taken, ended.Number()), `"progress":1`, `"r"`)
	}
}

// In a session with a single stream, a call without a note ends without a message on
// that stream, and the stream goes on.
func TestTakeOverWithoutNoteSingle(t *testing.T) {
	t.Parallel()
	f := newShelf()
	a, b := f.add(t, "a", safeTools()), f.add(t, "b", safeTools())
	s, err := a.New(newRequest(), caller.Principal{}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	initialize := begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)
	mcptest.Eventually(t, "initialize", time.Minute, initialize.IsOver)
	begin(t, s, true, request(1))
	b.node.forgetNotes.Store(true)
	a.kill()
	taken := b.take(s)
	mcptest.Eventually(t, "the call's own stream to end", time.Minute, func() bool {
		said, _ := b.node.Read(t.Context(), stream.Cursor{Stream: stream.ID{Session: s.key, Number: 2}}, make([]stream.Entry, 0, 9))
		return len(said) > 0 && said[len(said)-1].Last
	})
	c := begin(t, taken, true, request(2))
	b.desk.last().say(b.desk.last().next(t, "tools/call").Call, `{"jsonrpc":"2.0","id":2,"result":"r"}`)
	mcptest.Eventually(t, "the next call", time.Minute, c.IsOver)
	wantTexts(t, "the single stream", readSome(t, taken, 0, 2), `"protocolVersion"`, `"r"`)
}

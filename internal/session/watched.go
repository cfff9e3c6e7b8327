package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/pulse"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for calls whose clients were given a name in the place of the response: that of a task, or of an heir. All
// that there is of such a call is in its stream. What is kept beside it saves reading the stream, and is made again from
// it where the session is taken over.

// A watched is what is known of a call that may be asked for by a name. Guarded by watchedCalls.mu.
type watched struct {
	of      *watchedCalls
	message string    // of the last progress, or ""
	updated time.Time // when anything of it changed
	ended   time.Time // zero while the call runs
	read    bool      // what was said before there was the record
	stopped bool      // its client has cancelled it
	// askedFor: its client has a name for it. Any call of a tool that was taken over may have been given one.
	askedFor bool
	tool     string // that the request of an heir calls; else ""
	watch    []chan<- struct{}
	rounds   *rounds   // nil if its request is not kept; guarded by Session.mu
	since    time.Time // when its client was given its name; zero if that was so from the beginning
	deferred Deferred  // nil if its client was not answered when it began; it does not change
}

// watchedCalls are those of a session, by the numbers of their streams.
type watchedCalls struct {
	mu       sync.Mutex // taken last
	all      map[uint64]*watched
	answered map[uint64]uint64 // calls whose questions the client has answered, through which sequence
}

// keepUnknown is how long an ended call is kept at the least where it is not known how long
// the store keeps an ended call.
const keepUnknown = 10 * time.Minute

// KeepEnded is how long a call can be asked for by a name after its end.
func (m *Manager) KeepEnded() time.Duration {
	if m.opts.Keep > 0 {
		return m.opts.Keep
	}
	return keepUnknown
}

// watchedTable returns the session's watched calls.
func (s *Session) watchedTable() *watchedCalls {
	for {
		if t := s.watched.Load(); t != nil {
			return t
		}
		s.watched.CompareAndSwap(nil, &watchedCalls{all: make(map[uint64]*watched)})
	}
}

// NameCall has the client of the call of a stream be given a name for it: who knows it can ask for the call until some
// time after its end, on any node. The store has by then what another owner needs for that. The request is kept, so that
// it can be made again if its server asks by its result. since is when that was first done of the call, as far as this
// node knows. The error is [ErrNotFound] if the call has ended, or that of the store.
func (s *Session) NameCall(number uint64, m *jsonrpc.Message, header http.Header) (since time.Time, err error) {
	c := s.CallAt(number)
	if c == nil || c.isOver() {
		return since, ErrNotFound
	}
	if err := c.awaitStored(); err != nil {
		return since, err
	}
	s.use.hold(s.m.KeepEnded())
	t := s.addWatched(c, number)
	t.of.mu.Lock()
	if t.since.IsZero() {
		t.since = time.Now()
	}
	since = t.since
	t.of.mu.Unlock()
	made := newRounds(m, header)
	s.mu.Lock()
	if t.rounds == nil { // else the request was made again, under its idempotency key
		t.rounds = made
	}
	s.mu.Unlock()
	if c.watch != nil {
		c.watch.Happened(observe.BecameTask{})
	}
	return since, nil
}

// awaitStored waits until the store has the call's note, if there is to be one.
func (c *Call) awaitStored() error {
	if c.recovery == nil {
		return nil
	}
	c.mu.Lock()
	stored := c.recovery.stored
	c.mu.Unlock()
	if stored == nil {
		return ErrNotFound
	}
	switch late, err := c.recovery.awaitNote(stored); {
	case late:
		return fmt.Errorf("task not noted: %w", err)
	case err != nil:
		return err
	}
	return c.s.m.sync()
}

// addWatched makes the record of a call, if there is none, and returns it.
func (s *Session) addWatched(c *Call, number uint64) *watched {
	all := s.watchedTable()
	s.mu.Lock()
	s.requests.mu.Lock()
	c.mu.Lock()
	r := c.recorded()
	made := r.watched == nil
	if made {
		r.watched = &watched{of: all, updated: time.Now()}
		if c.isOver() {
			r.watched.ended = r.watched.updated
		}
	}
	t := r.watched
	c.mu.Unlock()
	s.requests.mu.Unlock()
	s.mu.Unlock()
	if made {
		all.mu.Lock()
		all.all[number] = t
		all.mu.Unlock()
	}
	return t
}

// restoreWatched makes the record of what its client may have a name for, of a session that was taken over and that no
// client knows yet.
func (s *Session) restoreWatched(c *Call) {
	heir := c.isHeir()
	if !heir && (s.modern == "" || !c.recovery.callsTool()) {
		return
	}
	s.use.hold(s.m.KeepEnded())
	switch t := s.addWatched(c, c.number); {
	case heir:
		t.tool = c.record.inherits.tool
	case !c.isOver():
		t.rounds = newRounds(&c.recovery.msgs[0], http.Header{})
	}
}

// lastMessage returns the message of the last progress. What the call had said before there was
// the record is read.
func (s *Session) lastMessage(t *watched, number uint64) string {
	t.of.mu.Lock()
	known := t.read || t.message != ""
	t.of.mu.Unlock()
	message := ""
	if !known {
		message = s.progressMessage(number, nil)
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.read = true; t.message == "" {
		t.message = message
	}
	return t.message
}

// progressMessage returns the message of the last progress in a stream, or "". If there are tokens
// it is that of requests with one of them: a batch has the progress of several.
func (s *Session) progressMessage(number uint64, tokens []string) (message string) {
	_ = s.EachEntry(s.m.work.Context(), number, math.MaxUint64, func(e *stream.Entry) {
		text, ok := progressText(e.Data)
		if ok && (tokens == nil || slices.Contains(tokens, string(jsonrpc.Key(jsonrpc.Field(e.Data, "params", "progressToken"))))) {
			message = text
		}
	})
	return message
}

// progressText returns the message of a progress notification.
func progressText(data []byte) (text string, ok bool) {
	if jsonrpc.String(jsonrpc.Field(data, "method")) != protocol.MethodProgress {
		return "", false
	}
	text = jsonrpc.String(jsonrpc.Field(data, "params", "message"))
	return text, text != "" && text != pulse.StillRunning
}

// EachEntry calls do with the entries of a stream up to one, as far as they are kept. The error
// is that of the store.
func (s *Session) EachEntry(ctx context.Context, number, seq uint64, do func(*stream.Entry)) error {
	at := stream.Cursor{Stream: stream.ID{Session: s.key, Number: number}, Seq: s.streams.Oldest(ctx, number)}
	buf := make([]stream.Entry, 0, 64)
	for at.Seq < seq {
		got, err := s.m.store.Read(ctx, at, buf[:0])
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for i := range got {
			if got[i].Seq <= seq {
				do(&got[i])
			}
			at.Seq, at.Epoch = got[i].Seq, got[i].Epoch
		}
		if err != nil || len(got) == 0 {
			break
		}
	}
	return nil
}

// said takes in what the call has said beside its response. Call.mu is held.
func (w *watched) said(data []byte) {
	text, ok := progressText(data)
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if w.updated = time.Now(); ok {
		w.message = text
	}
}

// end notes that the call has ended.
func (w *watched) end(c *Call) {
	c.s.use.hold(c.s.m.KeepEnded())
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.updated = time.Now()
	w.ended = w.updated
}

// WakeWatchers tells those who watch a call that what it says was stored, or that its client has
// answered.
func (s *Session) WakeWatchers(number uint64) {
	all := s.watched.Load()
	if all == nil {
		return
	}
	all.mu.Lock()
	var d Deferred
	if t := all.all[number]; t != nil {
		for _, ready := range t.watch {
			reading.Wake(ready)
		}
		d = t.deferred
	}
	all.mu.Unlock()
	if d != nil {
		d.Changed()
	}
}

func (w *watched) stored(c *Call) {
	if w.deferred == nil {
		return
	}
	w.deferred.Stored(c.number)
	c.s.m.resumer(c.s)
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.of.all[c.number] = w
}
func (w *watched) answered(c *Call, _ *inflight, _ bool, _ uint64) { w.end(c) }
func (w *watched) refused(c *Call, _ [][]byte, _ uint64)           { w.end(c) }
func (w *watched) left(c *Call)                                    { c.s.WakeWatchers(c.number) }

func (w *watched) cancelled(c *Call, _ *inflight) {
	w.end(c)
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.stopped = true
}

// A Standing is what there is to tell of a call.
type Standing struct {
	Running  bool
	Message  string            // of the last progress, or ""
	Updated  time.Time         // zero: not known
	Ended    time.Time         // zero if it runs, or it is not known
	Asked    []jsonrpc.Message // requests of the backend that wait for the client
	Response []byte            // of a call that has ended; nil if it was cancelled
}

// errEndLost ends a call of which the store has no response.
var errEndLost = outcomeUnknown("what became of the call is not kept")

// Standing returns how the call of a stream stands. The error is [ErrNotFound] if nothing is
// kept of it, [ErrMoved], or that of the store.
func (s *Session) Standing(ctx context.Context, number uint64) (st Standing, err error) {
	c := s.CallAt(number)
	if c == nil {
		return s.endedStanding(ctx, number)
	}
	t := s.addWatched(c, number)
	st = Standing{Running: true, Message: s.lastMessage(t, number)}
	t.of.mu.Lock()
	t.askedFor = true
	st.Updated = t.updated
	if t.stopped {
		st.Running, st.Ended = false, t.ended
	}
	t.of.mu.Unlock()
	if !st.Running {
		if c.awaitEndStored(ctx); s.Moved() { // its next owner says what it has
			err = ErrMoved
		}
		return st, err
	}
	if end := c.track.End(); end != nil {
		st.Running, st.Response, st.Ended = false, end.Data, st.Updated
		return st, nil
	}
	if asking, said := c.AwaitsInput(); asking {
		st.Asked, err = s.OpenRequests(ctx, number, said)
	}
	if errors.Is(err, stream.ErrNotFound) { // nothing is stored yet
		err = nil
	}
	return st, err
}

// storedWithin bounds how long the end of a cancelled call is waited for, where another goroutine appends it.
const storedWithin = 5 * time.Second

// awaitEndStored waits until the store has the end of the call, which was cancelled, so that the next owner of the session says the same
// of it.
func (c *Call) awaitEndStored(ctx context.Context) {
	ready := make(chan struct{}, 1)
	defer c.s.Watch(c.number, ready)()
	ctx, stop := context.WithTimeout(ctx, storedWithin)
	defer stop()
	for c.s.CallAt(c.number) == c && c.track.End() == nil && !c.s.Moved() {
		select {
		case <-ready:
		case <-ctx.Done():
			return
		}
	}
}

// endedStanding is Standing for a call that has ended.
func (s *Session) endedStanding(ctx context.Context, number uint64) (st Standing, err error) {
	all := s.watchedTable()
	all.mu.Lock()
	if t := all.all[number]; t != nil {
		st.Message, st.Updated, st.Ended = t.message, t.updated, t.ended
	}
	all.mu.Unlock()
	id := stream.ID{Session: s.key, Number: number}
	_, next, err := s.m.store.Bounds(ctx, id)
	var end [1]stream.Entry
	got := end[:0]
	if err == nil && next > 1 {
		got, err = s.m.store.Read(ctx, stream.Cursor{Stream: id, Seq: next - 2}, end[:0])
	}
	lost := len(got) == 0 || !got[0].Last || s.streams.IsBlind(number)
	switch {
	case err != nil && !errors.Is(err, io.EOF) && s.Moved():
		return st, ErrMoved
	case errors.Is(err, stream.ErrNotFound) || errors.Is(err, stream.ErrTrimmed):
		return st, ErrNotFound
	case err != nil && !errors.Is(err, io.EOF):
		return st, fmt.Errorf("task not read: %w", err)
	case lost && s.Moved():
		return st, ErrMoved
	case lost:
		st.Response = jsonrpc.AppendError(nil, []byte("0"), errEndLost)
	case len(got[0].Data) > 0:
		st.Response = got[0].Data
	}
	return st, nil
}

// Watch has ready be told when anything of a call changes, until stop is called.
func (s *Session) Watch(number uint64, ready chan<- struct{}) (stop func()) {
	all := s.watchedTable()
	c := s.CallAt(number)
	if c == nil {
		reading.Wake(ready)
		return func() {}
	}
	t := s.addWatched(c, number)
	all.mu.Lock()
	defer all.mu.Unlock()
	t.watch = append(t.watch, ready)
	return func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		if i := slices.Index(t.watch, ready); i >= 0 {
			t.watch = slices.Delete(t.watch, i, i+1)
		}
	}
}

// sweepWatched forgets calls that ended long ago.
func (s *Session) sweepWatched(now time.Time) {
	all := s.watched.Load()
	if all == nil {
		return
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	for number, t := range all.all {
		if !t.ended.IsZero() && now.Sub(t.ended) > s.m.KeepEnded()+time.Minute {
			delete(all.all, number)
		}
	}
}

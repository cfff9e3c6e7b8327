package session

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"holdfast/internal/again"
	"holdfast/internal/feature/webhook"
	"holdfast/stream"
)

// A Reader is one connection's place in one stream. It is used by one goroutine,
// but for Kick.
type Reader struct {
	s               *Session
	call            *Call // nil if the stream had ended when the reader came
	cursor          stream.Cursor
	began           uint64 // the sequence that it began after
	has             uint64 // what its client has for certain: it asked for what follows
	wrote           uint64 // the last entry that was written to the client
	acked           uint64 // the last that the client has said to have; guarded by table.mu
	since           time.Time
	ended           bool // Next has returned the last entry
	endWritten      bool // and it was written to the client
	cut             bool // see [Reader.NoteCut]
	gone            atomic.Bool
	aside           aside
	lostChanged     atomic.Bool
	ready           chan<- struct{}
	beside          beside
	outlet          *outlet // of a call that is told on its client's standalone stream; else nil
	before          *Reader // the reader of that kind whose place this one has taken, or nil
	stop            func()
	untold          *webhook.Call // nil for most streams
	disconnectAsked atomic.Pointer[disconnect]
	observed        *observedReader // nil where there are no observers
	like            again.Likeness  // of a call that had ended when the reader came
	sent            *sent           // what it has written to its end; guarded by table.mu
}

// beside is what a reader has to do with others of its stream, in a carrier. Guarded by table.mu.
type beside struct {
	older  *Reader // another one, if there is one
	leaves bool    // the reader's client has left
}

// ReadAs attaches a reader of a kind to a stream, after the entry seq that was written under
// epoch. It takes over from a reader that is there; but in a carrier, whose clients could not
// come back, it reads beside it. ready is told when there is
// something to read, and when the reader is gone or asked to disconnect; several readers may
// share it.
//
// The error is io.EOF for a finished stream of which nothing is left to read,
// [stream.ErrTrimmed] or [stream.ErrNotFound] where it can't be read from there,
// and [ErrMoved] where another node, which owns the session by now, may know more.
func (s *Session) ReadAs(ctx context.Context, kind ReaderKind, number, epoch, seq uint64, ready chan struct{}) (*Reader, error) {
	r, err := s.read(ctx, number, epoch, seq, ready, kind)
	return r, s.unlessMoved(ctx, err)
}

// A ReaderKind is how a reader begins, and how it ends.
type ReaderKind uint8

// The kinds.
const (
	ReaderSays    ReaderKind = iota // its client says itself that it has what comes before
	ReaderResumes                   // so does this one's, and does not get what it was told on its standalone stream since
	ReaderGoesOn                    // a node goes on by itself after what it has written, and its client may not have that
	ReaderStays                     // of the standalone stream, with a connection that may stay beside another: it asks [Reader.Aside]
)

// unlessMoved returns the error of a reader, or [ErrMoved] where another node may know more.
func (s *Session) unlessMoved(ctx context.Context, err error) error {
	if errors.Is(err, stream.ErrTrimmed) || errors.Is(err, stream.ErrNotFound) {
		if moved := s.checkOwner(ctx); moved != nil {
			return moved
		}
	}
	return err
}

// read attaches a reader.
func (s *Session) read(ctx context.Context, number, epoch, seq uint64, ready chan struct{}, kind ReaderKind) (*Reader, error) {
	if at := (stream.Cursor{Epoch: epoch, Seq: seq}); number == standalone && isBefore(s, at) {
		epoch, seq = 0, 0 // of what was said since the session has begun again its client has nothing
	}
	says := kind != ReaderGoesOn
	if at := (stream.Cursor{Stream: stream.ID{Number: number}, Seq: seq}); kind == ReaderResumes && s.streams.toldAll(at) {
		return nil, io.EOF
	}
	if s.streams.isBlind(number) {
		return nil, stream.ErrTrimmed
	}
	r := &Reader{
		s:      s,
		cursor: stream.Cursor{Stream: stream.ID{Session: s.key, Number: number}, Epoch: epoch, Seq: seq},
		began:  seq,
		since:  time.Now(),
		ready:  ready,
		aside:  aside{patient: kind == ReaderStays},
	}
	if says {
		r.has = seq
	}
	if epoch == 0 {
		r.cursor.Epoch = s.epochOf(ctx, r.cursor)
	}
	if number == standalone {
		r.call = s.standalone
	} else {
		r.call = s.streams.call(number)
	}
	stop, err := s.m.store.Watch(r.cursor.Stream, ready)
	if err != nil {
		return nil, err
	}
	// Look once before taking over: a bad cursor must not disturb a good reader.
	if err := r.check(ctx, says && epoch != 0); err != nil {
		stop()
		if errors.Is(err, io.EOF) && r.has > 0 && s.alone(r.call) {
			s.Acknowledge(number) // its client says that it has all
		}
		if seq == 0 || says && errors.Is(err, io.EOF) { // else the cursor is at fault, and not the stream
			s.streams.mu.Lock()
			s.streams.gaps.close(number)
			s.streams.mu.Unlock()
		}
		return nil, err
	}
	r.stop = stop
	if s.taken && r.call != nil && seq > 0 { // another node told its client so much
		r.call.mu.Lock()
		r.call.delivery.told = max(r.call.delivery.told, min(seq, r.call.said))
		r.call.mu.Unlock()
	}
	s.Touch()
	s.use.readers.Add(1)
	s.streams.attach(r)
	if r.call != nil {
		if k := r.call.takeDisconnect(); k != nil {
			r.disconnect(*k)
		}
	}
	if kind == ReaderResumes {
		r.skipTold(ctx)
	}
	r.wake() // for what is there already
	return r, nil
}

// epochOf returns the epoch under which the entry before a cursor was written.
func (s *Session) epochOf(ctx context.Context, at stream.Cursor) uint64 {
	if at.Seq > 0 {
		var one [1]stream.Entry
		at.Seq, at.Epoch = at.Seq-1, 0
		if got, err := s.m.store.Read(ctx, at, one[:0]); err == nil && len(got) > 0 {
			return got[0].Epoch
		}
	}
	return s.lease.Epoch
}

// supersedeWait bounds how long a new reader waits for the old one to leave. One
// that takes longer is stuck in writing to a client that does not read. What it is
// writing then comes again: a busy machine must not take as long.
const supersedeWait = 2 * time.Second

// SupersedeStandalone ends the connection on which the standalone stream is read, so that
// [Session.Delivered] says what was written there. It waits for that, but not long. If no other connection comes, keep has the one
// that there was go on.
func (s *Session) SupersedeStandalone(ctx context.Context) (keep func()) {
	t := &s.streams
	keep = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.streams[standalone].reader.comeBack()
	}
	t.mu.Lock()
	r := t.streams[standalone].reader
	if r == nil || r.aside.done {
		t.mu.Unlock()
		return keep
	}
	if t.superseded != r {
		t.superseded, t.left = r, make(chan struct{})
	}
	left := t.left
	t.displace(r)
	t.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, supersedeWait)
	defer stop()
	select {
	case <-left:
	case <-ctx.Done():
		r.end() // it is stuck
	}
	return keep
}

// wake tells the reader to look, without waiting.
func (r *Reader) wake() { Wake(r.ready) }

// all calls do with the reader, which may be nil, and those that read the stream beside it.
// table.mu is held.
func (r *Reader) all(do func(*Reader)) {
	for ; r != nil; r = r.beside.older {
		do(r)
	}
}

// unlink takes a reader out of those that read the stream beside r, which may be nil. table.mu
// is held.
func (r *Reader) unlink(gone *Reader) {
	r.all(func(x *Reader) {
		if x.beside.older == gone {
			x.beside.older = gone.beside.older
		}
	})
}

// LeavesLast notes that the reader's client has left, and reports whether those of all who read
// the stream have.
func (r *Reader) LeavesLast() bool {
	t := &r.s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	r.beside.leaves = true
	last := true
	t.streams[r.cursor.Stream.Number].reader.all(func(x *Reader) { last = last && x.beside.leaves })
	return last
}

// Wake tells whoever waits on ready to look again. It never waits.
func Wake(ready chan<- struct{}) {
	select {
	case ready <- struct{}{}:
	default:
	}
}

// check reports whether the stream can be read from the cursor. Where a client comes back (resumes) for a call that has ended without
// a response, there is nothing left to read but that.
func (r *Reader) check(ctx context.Context, resumes bool) error {
	var one [1]stream.Entry
	got, err := r.fetch(ctx, one[:0])
	if err == nil && resumes && len(got) == 1 && got[0].Last && len(got[0].Data) == 0 {
		return io.EOF
	}
	return err
}

func (t *table) attach(r *Reader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := r.cursor.Stream.Number
	switch old := t.streams[number].reader; {
	case old == nil:
	case r.s.modern != "":
		r.beside.older = old
	case number == standalone:
		t.displace(old)
		r.beside.older = old
		if old.Gone() {
			r.beside.older = old.beside.older
		}
		t.boundAside(r)
	default:
		old.end()
		if old.outlet != nil {
			r.before = old
		}
		t.addFollower(number)
	}
	t.setReader(number, r)
	t.unread.remove(number)
	if r.call == nil {
		r.like = t.gaps.likeness(number)
	}
	t.gaps.close(number)
	r.untold = r.s.untold.Of(number)
	if r.call != nil {
		r.untold = r.call.untold()
	}
	r.untold.Attached(r.has)
}

// Next appends to buf, up to its capacity, what follows. Entries count as read
// once [Reader.Delivered] says so. At the end of the stream it is io.EOF.
func (r *Reader) Next(ctx context.Context, buf []stream.Entry) ([]stream.Entry, error) {
	had := len(buf)
	buf, err := r.fetch(ctx, buf)
	if n := len(buf); n > had && err == nil {
		r.cursor.Seq = buf[n-1].Seq
		r.cursor.Epoch = buf[n-1].Epoch
		r.ended = buf[n-1].Last
	}
	return buf, err
}

// Rewind goes back to after an entry which the last Next returned, but not as its
// last: what follows it is read again.
func (r *Reader) Rewind(to stream.Entry) {
	r.cursor.Seq, r.cursor.Epoch = to.Seq, to.Epoch
	r.ended = false
}

// fetch reads what follows from the store, or what the store did not take from
// the call.
func (r *Reader) fetch(ctx context.Context, buf []stream.Entry) ([]stream.Entry, error) {
	if r.call != nil {
		if buf, ok, err := r.call.readUnstored(r.cursor.Seq, buf); ok {
			return buf, err
		}
	}
	had := len(buf)
	buf, err := r.s.m.store.Read(ctx, r.cursor, buf)
	if errors.Is(err, stream.ErrNotFound) && r.call != nil && r.cursor.Seq == 0 && !r.s.isDeleted() {
		if r.s.streams.writes(r.call, r.cursor.Stream.Number) {
			err = nil // nothing has been said yet
		} else { // it may have been said, and ended, since
			buf, err = r.s.m.store.Read(ctx, r.cursor, buf)
		}
	}
	if len(buf) == had && !errors.Is(err, io.EOF) && r.s.Moved() {
		err = ErrMoved
	}
	return buf, err
}

// Wrote notes that everything that Next returned has been written, to a client that has left, and may have read it before.
func (r *Reader) Wrote() { r.wrote = r.cursor.Seq }

// Delivered notes that everything that Next returned has been written to the client.
func (r *Reader) Delivered() {
	r.Wrote()
	r.endWritten = r.ended
	r.tells()
	r.observeRead()
	r.untold.Delivered(r.cursor.Stream.Number, r.cursor.Seq)
	c := r.call
	if c == nil {
		c = r.s.resumed(r.cursor.Stream.Number) // whose status tells, also after its end
	}
	if c == nil {
		return
	}
	c.mu.Lock()
	c.delivery.told = max(c.delivery.told, r.cursor.Seq)
	c.caughtUp()
	c.mu.Unlock()
	if c == r.s.standalone {
		r.s.noteDelivered(false)
	}
}

// Cursor returns the reader's place: after the last entry that Next returned.
func (r *Reader) Cursor() stream.Cursor { return r.cursor }

// AwaitsInput reports whether everything said has been read and the call waits for
// the client to answer.
func (r *Reader) AwaitsInput() bool {
	if r.call == nil || r.cursor.Stream.Number == standalone {
		return false
	}
	asking, said := r.call.AwaitsInput()
	return asking && said == r.cursor.Seq
}

// Gone reports whether a newer reader has taken over, or the session has ended and
// what it said has been read.
func (r *Reader) Gone() bool { return r.gone.Load() }

// DisconnectRequest says, once, that the connection should be ended, and how long the
// client is to be told to wait before it comes back. What the call had said when that
// was asked for has been read by then.
func (r *Reader) DisconnectRequest() (retry time.Duration, ok bool) {
	k := r.disconnectAsked.Load()
	if k == nil || r.cursor.Seq < k.after {
		return 0, false
	}
	r.disconnectAsked.Store(nil)
	return k.retry, true
}

// HasDisconnectRequest reports whether [Reader.DisconnectRequest] will say so, now or once more has been read.
func (r *Reader) HasDisconnectRequest() bool { return r.disconnectAsked.Load() != nil }

// disconnect asks the reader to end its connection. It never waits.
func (r *Reader) disconnect(k disconnect) {
	r.disconnectAsked.CompareAndSwap(nil, &k)
	r.wake()
}

// PastPolicy reports whether the reader has come past what tells its client how to resume
// the call (SEP-975), if that is told: a connection that ends before may have been all
// that the client had.
func (r *Reader) PastPolicy() bool {
	if r.call == nil {
		return true
	}
	r.call.mu.Lock()
	defer r.call.mu.Unlock()
	about := r.call.resume()
	return about == nil || r.cursor.Seq >= uint64(len(about.requests))
}

// end makes the reader see that it is gone.
func (r *Reader) end() {
	r.gone.Store(true)
	r.wake()
}

// Detach ends the reading. broke says that the connection broke before the end
// of the stream, and ids whether an event id was written to it: then the client
// may come back without one. besides says that it was read besides another
// stream: then the client may come back for that one only.
func (r *Reader) Detach(broke, ids, besides bool) {
	r.stop()
	r.observeWent(broke)
	if c := r.s.resumed(r.cursor.Stream.Number); c != nil {
		c.clientSeen() // from now on it is away
	}
	if r.s.streams.detach(r, broke, ids, besides) {
		r.s.m.strand(r.s, r.cursor.Stream.Number, r.likeness(), false, nil)
	}
	if r.call == r.s.standalone {
		r.s.noteDelivered(true)
	}
	r.untold.Dispatch(r.cursor.Stream.Number)
	r.s.Touch()
	r.s.use.readers.Add(-1)
}

// detach reports whether the stream's client has lost it.
func (t *table) detach(r *Reader, broke, ids, besides bool) (lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopTelling(r)
	if t.superseded == r {
		close(t.left)
		t.superseded, t.left = nil, nil
	}
	number := r.cursor.Stream.Number
	if newest := t.streams[number].reader; newest != r || r.beside.older != nil {
		if newest == r {
			t.setReader(number, r.beside.older)
			r.beside.older.comeBack()
		}
		newest.unlink(r)
		return false // another reads it
	}
	t.setReader(number, nil)
	if number == standalone {
		return false
	}
	switch {
	case t.streams[number].call == nil && !r.endWritten && r.s.modern == "":
		t.unread.add(number, awaitedFor)
	case r.endWritten && r.s.m.shared != nil:
		t.noteEnd(number)
	}
	if broke && r.s.modern == "" { // in a carrier no client has but one call to come back to
		kind := gapPartial
		if !ids {
			kind = gapNoID
		}
		t.lost(gap{number: number, seq: max(r.has, r.acked), told: r.wrote, kind: kind, since: r.since, like: r.likeness()}, besides)
	}
	return broke
}

package reading

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"holdfast/internal/likeness"
	"holdfast/stream"
)

// A Reader is one connection's place in one stream. It is used by one goroutine.
type Reader struct {
	t               *Streams
	call            Call // nil if the stream had ended when the reader came
	cursor          stream.Cursor
	began           uint64 // the sequence that it began after
	has             uint64 // the last entry that its client has for certain: it asked for those after it
	wrote           uint64 // the last entry that was written to the client
	acked           uint64 // the last entry that the client has acknowledged; guarded by Streams.mu
	since           time.Time
	ended           bool // Next has returned the last entry
	endWritten      bool // and it was written to the client
	cut             bool // see [Reader.NoteCut]
	leaves          bool // its client has left, in a carrier; guarded by Streams.mu
	gone            atomic.Bool
	aside           aside
	lostChanged     atomic.Bool
	ready           chan<- struct{}
	older           *Reader // the next older reader of the stream: in a carrier, or one that has stepped aside; guarded by Streams.mu
	outlet          *Outlet // if its call is told on the client's standalone stream; else nil
	before          *Reader // the reader with an outlet that this one has taken the place of, or nil
	stop            func()
	disconnectAsked atomic.Pointer[Disconnect]
	observed        *observed         // nil if there are no observers
	like            likeness.Likeness // of a call that had ended when the reader came
	sent            Sent              // the answer that it has written to its end; guarded by Streams.mu
}

// Read attaches a reader of a kind to a stream, after the entry of a cursor, which has the epoch under which the entry was written
// (0: not known). It takes over from the stream's reader; but in a carrier, where clients could not come back, it reads beside it.
// ready is told when there are entries to read, and when the reader is gone or asked to disconnect; several readers may share it.
//
// The error is io.EOF for a finished stream with no entries left to read,
// [stream.ErrTrimmed] or [stream.ErrNotFound] if it can't be read from there, and
// [ErrMoved] if another node, which owns the session by now, may know more.
func (t *Streams) Read(ctx context.Context, kind Kind, after stream.Cursor, ready chan struct{}) (*Reader, error) {
	return t.ReadOn(ctx, kind, after, ready, nil)
}

// ReadOn is Read for a reader that continues a call on a connection of the standalone stream, if on is not nil. The client may have given
// the call up, and make it again.
func (t *Streams) ReadOn(ctx context.Context, kind Kind, after stream.Cursor, ready chan struct{}, on *Outlet) (*Reader, error) {
	r, err := t.attached(ctx, kind, after, ready, on)
	if errors.Is(err, stream.ErrTrimmed) || errors.Is(err, stream.ErrNotFound) {
		err = t.owner.Missed(ctx, err)
	}
	return r, err
}

// Peek returns a reader of the kept entries of a stream that is not attached: it must not be detached, and is woken by nothing. c
// writes the stream; nil: no call does any more.
func (t *Streams) Peek(ctx context.Context, number uint64, c Call) *Reader {
	at := stream.Cursor{Stream: t.id(number), Seq: t.Oldest(ctx, number)}
	at.Epoch = t.epochOf(ctx, at)
	return &Reader{t: t, call: c, cursor: at}
}

// A Kind is how a reader begins, and how it ends.
type Kind uint8

// Kinds.
const (
	Says    Kind = iota // the client says itself that it has the entries before
	Resumes             // the client says so, too, and does not get the entries that it was told on its standalone stream since
	GoesOn              // a node goes on by itself after the entries that it has written, which the client may not have
	Stays               // of the standalone stream, with a connection that may stay beside another: it asks [Reader.Aside]
)

// IsForgotten reports whether the stream of a cursor is of an earlier life of the session, of which nothing is kept.
func (t *Streams) IsForgotten(at stream.Cursor) bool {
	now, first := t.owner.Epochs()
	return first != 0 && (at.Epoch != 0 && at.Epoch < first || at.Epoch > now)
}

// attached attaches a reader.
func (t *Streams) attached(ctx context.Context, kind Kind, after stream.Cursor, ready chan struct{}, on *Outlet) (*Reader, error) {
	after.Stream.Session = t.key
	number := after.Stream.Number
	if number == Standalone && t.IsForgotten(after) {
		after.Epoch, after.Seq = 0, 0 // the client has no entry of the session's new life
	}
	says := kind != GoesOn
	if kind == Resumes && t.toldAll(after) {
		return nil, io.EOF
	}
	if t.IsBlind(number) {
		return nil, stream.ErrTrimmed
	}
	r := &Reader{t: t, cursor: after, began: after.Seq, since: time.Now(), ready: ready, aside: aside{patient: kind == Stays}, outlet: on}
	if on != nil {
		on.left = make(chan struct{})
	}
	if says {
		r.has = after.Seq
	}
	if after.Epoch == 0 {
		r.cursor.Epoch = t.epochOf(ctx, after)
	}
	if r.call = t.standalone; number != Standalone {
		r.call = t.Call(number)
	}
	stop, err := t.opts.Store.Watch(after.Stream, ready)
	if err != nil {
		return nil, err
	}
	// Look once before taking over: a bad cursor must not disturb a good reader.
	if err := r.check(ctx, says && after.Epoch != 0); err != nil {
		stop()
		t.refuse(r, says, err)
		return nil, err
	}
	r.stop = stop
	t.owner.Heard(r, Comes)
	t.attach(r)
	if r.call != nil {
		if k := r.call.Came(after.Seq); k != nil {
			r.disconnect(*k)
		}
	}
	t.owner.Heard(r, Came)
	switch {
	case on != nil:
		t.owner.Heard(r, Lost)
	case kind == Resumes:
		r.skipTold(ctx)
	}
	r.wake() // there may be entries already
	return r, nil
}

// refuse notes that a reader can't read its stream. says: its client says itself how far it has read.
func (t *Streams) refuse(r *Reader, says bool, err error) {
	over := errors.Is(err, io.EOF)
	if over && r.has > 0 && t.owner.IsAlone(r.call) {
		t.HasAll(r.cursor.Stream.Number) // its client says that it has all
	}
	if r.began == 0 || says && over { // else the cursor is at fault, and not the stream
		t.Found(r.cursor.Stream.Number)
	}
}

// epochOf returns the epoch under which the entry before a cursor was written.
func (t *Streams) epochOf(ctx context.Context, at stream.Cursor) uint64 {
	if at.Seq > 0 {
		var one [1]stream.Entry
		at.Seq, at.Epoch = at.Seq-1, 0
		if got, err := t.opts.Store.Read(ctx, at, one[:0]); err == nil && len(got) > 0 {
			return got[0].Epoch
		}
	}
	now, _ := t.owner.Epochs()
	return now
}

// supersedeWait bounds how long a new reader waits for the old one to leave. A
// reader that takes longer is stuck in writing to a client that does not read. The
// entries that it is writing come again then: a busy machine must not take as long.
const supersedeWait = 2 * time.Second

// Supersede ends the connection on which the standalone stream is read, or makes it step aside, so that [Streams.Delivered] says how far
// the stream was written there. It waits for that, but not long. If no other connection comes, keep makes one that has stepped aside go on.
func (t *Streams) Supersede(ctx context.Context) (keep func()) {
	keep = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.streams[Standalone].reader.comeBack()
	}
	t.mu.Lock()
	r := t.streams[Standalone].reader
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

// all calls do with the reader, which may be nil, and the older readers of the stream. Streams.mu is held.
func (r *Reader) all(do func(*Reader)) {
	for ; r != nil; r = r.older {
		do(r)
	}
}

// unlink takes a reader out of the list of older readers of r, which may be nil. Streams.mu is held.
func (r *Reader) unlink(gone *Reader) {
	r.all(func(x *Reader) {
		if x.older == gone {
			x.older = gone.older
		}
	})
}

// LeavesLast notes that the reader's client has left, and reports whether the clients of all readers of the stream have.
func (r *Reader) LeavesLast() bool {
	t := r.t
	t.mu.Lock()
	defer t.mu.Unlock()
	r.leaves = true
	last := true
	t.streams[r.cursor.Stream.Number].reader.all(func(x *Reader) { last = last && x.leaves })
	return last
}

// check reports whether the stream can be read from the cursor. It returns io.EOF if a client comes back (resumes) for a call that
// has ended without a response, and has all else.
func (r *Reader) check(ctx context.Context, resumes bool) error {
	var one [1]stream.Entry
	got, err := r.fetch(ctx, one[:0])
	if err == nil && resumes && len(got) == 1 && got[0].Last && len(got[0].Data) == 0 {
		return io.EOF
	}
	return err
}

func (t *Streams) attach(r *Reader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := r.cursor.Stream.Number
	switch old := t.streams[number].reader; {
	case old == nil:
	case t.carrier:
		r.older = old
	case number == Standalone:
		t.displace(old)
		r.older = old
		if old.Gone() {
			r.older = old.older
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
	if t.lost.number == number && t.lost.back == nil && r.outlet == nil {
		t.lost.back = r
	}
	t.unread.remove(number)
	if r.call == nil {
		r.like = t.gaps.likeness(number)
	}
	t.gaps.close(number)
}

// Next appends the next entries to buf, up to its capacity. Entries count as read
// once [Reader.Delivered] says so. At the end of the stream the error is io.EOF.
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
// last: the entries after it are read again.
func (r *Reader) Rewind(to stream.Entry) {
	r.cursor.Seq, r.cursor.Epoch = to.Seq, to.Epoch
	r.ended = false
}

// fetch reads the next entries from the store, or from the call if the store did not take them.
func (r *Reader) fetch(ctx context.Context, buf []stream.Entry) ([]stream.Entry, error) {
	if r.call != nil {
		if buf, ok, err := r.call.Track().Unstored(r.cursor.Seq, buf); ok {
			return buf, err
		}
	}
	t, had := r.t, len(buf)
	buf, err := t.opts.Store.Read(ctx, r.cursor, buf)
	if errors.Is(err, stream.ErrNotFound) && r.call != nil && r.cursor.Seq == 0 && t.owner.Life() != Deleted {
		if n := r.cursor.Stream.Number; n == Standalone || t.Call(n) == r.call {
			err = nil // nothing has been said yet
		} else { // the call may have said something, and ended, since
			buf, err = t.opts.Store.Read(ctx, r.cursor, buf)
		}
	}
	if len(buf) == had && !errors.Is(err, io.EOF) && t.owner.Life() == Moved {
		err = ErrMoved
	}
	return buf, err
}

// Wrote notes that all entries that Next returned have been written to a client that has left, and may have read them before.
func (r *Reader) Wrote() { r.wrote = r.cursor.Seq }

// Delivered notes that all entries that Next returned have been written to the client.
func (r *Reader) Delivered() {
	r.Wrote()
	r.endWritten = r.ended
	r.tells()
	r.observeRead()
	r.t.owner.Heard(r, Told)
}

// Has is the sequence of the last entry that the reader's client had for certain when it came.
func (r *Reader) Has() uint64 { return r.has }

// Call returns the call that writes the stream; nil if that had ended when the reader came.
func (r *Reader) Call() Call { return r.call }

// Likeness returns the likeness by which other requests are known as the reader's call made again.
func (r *Reader) Likeness() likeness.Likeness {
	if r.call == nil {
		return r.like
	}
	return r.call.Likeness()
}

// Cursor returns the reader's place: after the last entry that Next returned.
func (r *Reader) Cursor() stream.Cursor { return r.cursor }

// AwaitsInput reports whether all entries have been read and the call waits for the client to answer.
func (r *Reader) AwaitsInput() bool {
	if r.call == nil || r.cursor.Stream.Number == Standalone {
		return false
	}
	p := r.call.Progress()
	return p.Asks && p.Said == r.cursor.Seq
}

// Ping makes the call send a ping, if it has sent no message yet, so that the client gets an event id. It does not wait.
func (r *Reader) Ping() {
	if r.call != nil && r.cursor.Stream.Number != Standalone {
		r.call.Ping()
	}
}

// Gone reports whether a newer reader has taken over, or the session has ended, left or fallen asleep.
func (r *Reader) Gone() bool { return r.gone.Load() }

// DisconnectRequest says, once, that the connection should be ended, and how long the
// client has to wait before it comes back. The entries that the call had said when
// that was asked for have been read by then.
func (r *Reader) DisconnectRequest() (retry time.Duration, ok bool) {
	k := r.disconnectAsked.Load()
	if k == nil || r.cursor.Seq < k.After {
		return 0, false
	}
	r.disconnectAsked.Store(nil)
	return k.Retry, true
}

// HasDisconnectRequest reports whether [Reader.DisconnectRequest] will say so, now or once more has been read.
func (r *Reader) HasDisconnectRequest() bool { return r.disconnectAsked.Load() != nil }

// disconnect asks the reader to end its connection. It never waits.
func (r *Reader) disconnect(k Disconnect) {
	r.disconnectAsked.CompareAndSwap(nil, &k)
	r.wake()
}

// PastPolicy reports whether the reader has come past the entries that tell its client how to resume the call
// (SEP-975), if there are any: a client that loses the connection before them may have no way back.
func (r *Reader) PastPolicy() bool {
	return r.call == nil || r.cursor.Seq >= r.call.Progress().Policy
}

// end makes the reader see that it is gone.
func (r *Reader) end() {
	r.gone.Store(true)
	r.wake()
}

// Detach ends the reading. broke says that the connection broke before the end of
// the stream, and ids whether an event id was written to it: if not, the client can
// only come back without one. besides says that the stream was read beside another:
// then the client may come back for the other one only.
func (r *Reader) Detach(broke, ids, besides bool) {
	r.stop()
	r.observeWent(broke)
	r.t.owner.Heard(r, Leaves)
	t, like := r.t, r.Likeness()
	if broke {
		t.loses(r.cursor.Stream.Number, func() bool { return t.detach(r, like, true, ids, besides) }, func() { t.owner.Heard(r, Lost) })
	} else {
		t.mu.Lock()
		t.detach(r, like, false, ids, besides)
		t.mu.Unlock()
	}
	t.owner.Heard(r, Left)
}

// detach reports whether the stream's client has lost it. t.mu is held.
func (t *Streams) detach(r *Reader, like likeness.Likeness, broke, ids, besides bool) (lost bool) {
	t.stopTelling(r)
	if t.superseded == r {
		close(t.left)
		t.superseded, t.left = nil, nil
	}
	number := r.cursor.Stream.Number
	if newest := t.streams[number].reader; newest != r || r.older != nil {
		if newest == r {
			t.setReader(number, r.older)
			r.older.comeBack()
		}
		newest.unlink(r)
		return false // another reader reads it
	}
	t.setReader(number, nil)
	if number == Standalone {
		return false
	}
	switch {
	case t.streams[number].call == nil && !r.endWritten && !t.carrier:
		t.unread.add(number, awaitedFor)
	case r.endWritten && t.opts.Shared && len(t.read) < mostRead && !slices.Contains(t.read, number):
		t.read = append(t.read, number)
	}
	if broke && !t.carrier { // in a carrier clients have one call each
		kind := gapPartial
		if !ids {
			kind = gapNoID
		}
		t.lose(gap{number: number, seq: max(r.has, r.acked), told: r.wrote, kind: kind, since: r.since, like: like}, besides)
	}
	return broke
}

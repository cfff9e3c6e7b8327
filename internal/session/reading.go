package session

import (
	"context"
	"time"

	"holdfast/internal/likeness"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// isProgress reports whether a message is a progress notification: it is old once another message follows, and must not be sent twice.
func isProgress(data []byte) bool {
	m, err := jsonrpc.Parse(data)
	return err == nil && m.Kind == jsonrpc.Notification && m.Method == protocol.MethodProgress
}

// Streams returns the session's streams, with their readers.
func (s *Session) Streams() *reading.Streams { return &s.streams }

// A readerOwner is a session as its readers know it. It implements [reading.Owner].
type readerOwner struct{ *Session }

// Life implements [reading.Owner].
func (o readerOwner) Life() reading.Life {
	switch {
	case o.Moved():
		return reading.Moved
	case o.state() == sessionDeleted:
		return reading.Deleted
	case o.Ended():
		return reading.Ended
	}
	return reading.Lives
}

// Epochs implements [reading.Owner].
func (o readerOwner) Epochs() (now, first uint64) { return o.lease.Epoch, o.firstEpoch }

// Missed implements [reading.Owner].
func (o readerOwner) Missed(ctx context.Context, err error) error {
	if moved := o.checkOwner(ctx); moved != nil {
		return moved
	}
	return err
}

// IsAlone implements [reading.Owner].
func (o readerOwner) IsAlone(by reading.Call) bool {
	c := written(by)
	if c == nil {
		return !o.keyed.Load() && !o.taken && o.Resumes() == nil
	}
	return c.record == nil || c.record.key == nil && c.record.untold == nil && c.record.resume == nil
}

// Arrived implements [reading.Owner]. A stream is not dropped while webhooks have yet to be told its outcomes. Nor is one that a
// client may ask for again, of a call with an idempotency key or a resume token (see IsAlone).
func (o readerOwner) Arrived(number uint64) {
	if o.untold.Of(number) == nil {
		o.m.store.Acknowledge(stream.ID{Session: o.key, Number: number})
	}
}

// Sent implements [reading.Owner].
func (o readerOwner) Sent(r *reading.Reader, besides bool) reading.Sent {
	return o.m.flights.Sent(flightSession(o), r.Cursor().Stream.Number, r.Likeness(), besides)
}

// Observed implements [reading.Owner].
func (o readerOwner) Observed(e observe.Event) { o.events.happened(e) }

// Heard implements [reading.Owner].
func (o readerOwner) Heard(r *reading.Reader, e reading.Event) {
	s, number := o.Session, r.Cursor().Stream.Number
	switch e {
	case reading.Comes:
		s.use.touch()
		s.use.readers.Add(1)
	case reading.Came:
		s.untoldTo(r).Attached(r.Has())
	case reading.Back:
		s.m.flights.Drop(flightSession{s}, number)
	case reading.Told:
		o.told(r)
	case reading.Lost:
		s.m.flights.Strand(flightSession{s}, number, r.Likeness())
	case reading.Leaves:
		s.Resumes().Seen(number) // from now on the client is away
	case reading.Left:
		if number == standalone {
			s.noteDelivered(true)
		}
		s.untoldTo(r).Dispatch(number)
		s.use.touch()
		s.use.readers.Add(-1)
	}
}

// told notes how far a reader has told its client.
func (o readerOwner) told(r *reading.Reader) {
	at := r.Cursor()
	o.untoldTo(r).Delivered(at.Stream.Number, at.Seq)
	c := written(r.Call())
	if c == nil {
		o.Resumes().Told(at.Stream.Number, at.Seq)
		return
	}
	paced{c}.told(at.Seq)
	if c == o.standalone {
		o.noteDelivered(false)
	}
}

// A paced is a call as its pace knows it: see [pace.Stream].
type paced struct{ *Call }

func (c paced) ID() stream.ID       { return stream.ID{Session: c.s.key, Number: c.Number()} }
func (c paced) Lease() stream.Lease { return c.s.lease }
func (c paced) IsOver() bool        { return c.Call.IsOver() || c.s.Moved() }

func (c paced) Read() (said uint64, since time.Time, expected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said, c.s.streams.Since(c.number), c.expected
}

// told notes that a client was told the entries of the stream up to seq.
func (c paced) told(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pace.Reach(&c.s.m.pace, seq, c.said)
}

// A writer is a call as the readers of its stream know it. It implements [reading.Call].
type writer struct{ *Call }

// written returns the call that writes a stream, or nil.
func written(by reading.Call) *Call {
	w, _ := by.(writer)
	return w.Call
}

// CallAt returns the call that still writes a stream, or nil.
func (s *Session) CallAt(number uint64) *Call { return written(s.streams.Call(number)) }

// Progress implements [reading.Call].
func (w writer) Progress() reading.Progress {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := reading.Progress{Said: w.said, Told: w.pace.Told(), Asks: w.client.isOpen() && !w.IsOver()}
	if about := w.resume(); about != nil {
		p.Policy = uint64(about.Len())
	}
	return p
}

// Came implements [reading.Call].
func (w writer) Came(after uint64) *reading.Disconnect {
	w.mu.Lock()
	if w.s.taken { // another node told the client the entries up to after
		w.pace.Reach(&w.s.m.pace, min(after, w.said), w.said)
	}
	w.mu.Unlock()
	return w.takeDisconnect()
}

// Likeness implements [reading.Call].
func (w writer) Likeness() likeness.Likeness {
	if w.standing.IsLate() {
		return likeness.Likeness{}
	}
	return w.standing.Like()
}

// Observe implements [reading.Call].
func (w writer) Observe() *observe.Watch { return w.watch }

// Like returns the likeness by which other requests are known as the call made again. c may be nil: no request is like it.
func (c *Call) Like() likeness.Likeness {
	if c == nil {
		return likeness.Likeness{}
	}
	return c.standing.Like()
}

// CameBack notes that the client has come back: for the call of a stream, with an event id or something else that says how far it has read;
// number 0: with nothing but its session. conn is its connection, or nil if that cannot be asked.
func (s *Session) CameBack(number uint64, conn Connection) {
	if c := s.CallAt(number); c != nil {
		c.standing.CameBack(conn)
	}
	s.streams.CameBack(number != 0)
}

// SignalInputOnce reports whether a client that shows no event id may be told that the stream's call waits for its
// input: once after a message of the call, and from then on every other time. In between the client is told the
// messages again, which may not have arrived.
func (s *Session) SignalInputOnce(number uint64) bool {
	c := s.CallAt(number)
	return c != nil && c.client.signal()
}

// ConnectionLost notes that the connection of a light call broke before its answer was
// written, so that its client may come back with nothing but its session id.
func (c *Call) ConnectionLost() {
	c.Promote()
	number := c.Number()
	if number == 0 {
		c.s.m.flights.StrandAnswer(flightCall{c}, c.takeAnswer())
		return
	}
	_ = c.takeDisconnect() // the client that was to be sent away has gone
	c.untold().Release(number)
	c.s.streams.Cut(number, c.Like(), func() {
		if !c.standing.IsLate() {
			c.s.m.flights.Strand(flightSession{c.s}, number, c.Like())
		}
	})
}

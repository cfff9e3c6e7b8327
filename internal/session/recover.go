package session

import (
	"slices"
	"time"

	"holdfast/stream"
)

// What follows is for clients that come back with nothing but their session id:
// which calls they may have lost. docs/decisions/0001-session-id-only.md says
// what can be known of that, and what is done where it can't.

// broken is a stream whose connection broke, or may have, so that its client may
// come back with nothing but its session id.
type broken struct {
	number  uint64
	seq     uint64    // what its client has for certain: it asked for what follows
	certain bool      // no event id was written, so none can have arrived
	silent  bool      // nothing was written but an id, and nothing says that it has arrived
	whole   bool      // all was written, and it is doubted that all has arrived
	ended   bool      // nobody knows how much of it was written, and that may be all
	since   time.Time // when the connection began to read it
	at      time.Time // when it broke, or all was written
	asked   time.Time // when the client first came back, and may have meant this one; zero: not yet
	// from is the address of a client to whom all was written, as long as nothing
	// says that it left with some of it unread; else "".
	from string
	// alone: nobody else has a claim on how the call ended (see [Session.alone]).
	alone bool
}

const (
	// mostBroken bounds how many broken streams a session remembers.
	mostBroken = 64

	// doubtFor is how long it is remembered that all was written. A client that lost
	// it without a trace, and is not back by then, is not told.
	doubtFor = time.Minute

	// silentFor is how long a client that may know an event id, and nothing else of a
	// call, is given at the least to come back with it, where all that it has besides
	// is a connection that it had before.
	silentFor = 5 * time.Second

	// lapse is the same for a client that may have read some of the call, and would
	// read that again.
	lapse = 30 * time.Second

	// late bounds the time by which the network, or a proxy, may bring the end of a
	// connection later than what its client sent on another one afterwards.
	late = time.Second
)

// ReturnedWithoutID notes that the client has come back with nothing but its session.
func (s *Session) ReturnedWithoutID() {
	t := &s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = time.Now()
	for i := range t.broken {
		t.ask(&t.broken[i])
	}
}

// ask notes that b is asked for, if the client has come back since the time at
// which it can have meant this one. A client that got no id has no other way to
// ask. t.mu is held.
func (t *table) ask(b *broken) {
	if !b.asked.IsZero() {
		return
	}
	after := b.since
	switch {
	case b.certain:
		b.asked = b.at
		return
	case b.whole && b.at.Add(-late).After(after):
		after = b.at.Add(-late)
	}
	if t.asked.After(after) {
		b.asked = t.asked
	}
}

// due returns when b is to be continued on the standalone stream, if its client has
// not come back for it by then; zero: not without being asked for. patience is for a
// client that may be about to come back with an id.
func (b *broken) due(patience time.Duration) time.Time {
	when := b.at
	switch {
	case b.from != "":
		return time.Time{}
	case b.certain:
		return when
	case !b.asked.IsZero():
		if b.asked.After(when) {
			when = b.asked
		}
		return when.Add(patience)
	case b.whole, b.ended:
		return time.Time{}
	case b.silent:
		return when.Add(max(patience, silentFor))
	}
	return when.Add(max(patience, lapse))
}

// LostStreams returns where to continue the streams that the client has lost, and can only
// hear of on the standalone stream: it has asked for them, now or before, with nothing
// but its session, or it has not come back for them. Those to whose connection an
// event id was written are given after patience: their client may be about to come
// back with the id. due is when the next of them will be given, or zero.
// [Reader.LostChanged] of the standalone stream's reader says when to call it again.
func (s *Session) LostStreams(patience time.Duration) (at []stream.Cursor, due time.Time) {
	t := &s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.prune(now)
	for i := range t.broken {
		b := &t.broken[i]
		switch when := b.due(patience); {
		case when.IsZero():
		case !now.Before(when):
			at = append(at, stream.Cursor{Stream: stream.ID{Number: b.number}, Seq: b.seq})
		case due.IsZero() || when.Before(due):
			due = when
		}
	}
	return at, due
}

// Completed notes that all of the stream was written to the client, which is at an
// address ("": it has lost connections of this call before, and if it comes back
// with nothing but its session it has lost this one). It may yet turn out to have
// left with some of it unread. besides says that it was read besides another
// stream: then the client may come back for that one only.
func (r *Reader) Completed(from string, besides bool) {
	t := &r.s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	number := r.cursor.Stream.Number
	if number != standalone && t.readers[number] == r {
		if from != "" {
			r.s.doubts.Store(true)
		}
		t.lost(broken{number: number, seq: r.began, whole: true, since: r.since, from: from, alone: r.s.alone(r.call)}, besides)
	}
}

// Disconnected notes that the client at an address left without a word. What was written to
// it after the given time has probably not arrived.
func (s *Session) Disconnected(from string, after time.Time) {
	t := &s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.broken {
		if b := &t.broken[i]; b.from == from && b.at.After(after) {
			b.from = ""
			t.wake()
		}
	}
}

// Unconfirmed says whether something was written to a client of which it is not known yet
// whether it has arrived: see [Session.ConfirmArrival].
func (s *Session) Unconfirmed() bool { return s.doubts.Load() }

// ConfirmArrival notes that the client at an address has sent a request on a connection on
// which one follows the other: what was written to it before has arrived.
func (s *Session) ConfirmArrival(from string) {
	t := &s.streams
	var arrived []uint64
	t.mu.Lock()
	t.broken = slices.DeleteFunc(t.broken, func(b broken) bool {
		if b.from == from && b.alone {
			arrived = append(arrived, b.number)
		}
		return b.from == from
	})
	s.doubts.Store(slices.ContainsFunc(t.broken, func(b broken) bool { return b.from != "" }))
	t.mu.Unlock()
	for _, number := range arrived {
		s.Acknowledge(number)
	}
}

// Acknowledge notes that the client has all that the stream of a call says, if that has
// ended: the store may drop it before its time. A stream that somebody may ask for
// again is not dropped for that: one of a call with an idempotency key, of one that can
// be resumed by a token, or that several clients follow.
func (s *Session) Acknowledge(number uint64) {
	s.streams.mu.Lock()
	c := s.streams.calls[number]
	_, followed := s.streams.followed[number]
	_, hooked := s.streams.hooked[number]
	s.streams.mu.Unlock()
	if number != standalone && c == nil && !followed && !hooked {
		s.m.store.Acknowledge(stream.ID{Session: s.key, Number: number})
	}
}

// alone says whether only the one who reads a call may ask how it ended; c is nil for
// one that had ended when the reader came.
func (s *Session) alone(c *Call) bool {
	if c == nil {
		return !s.keyed.Load() && !s.taken && s.resumes.Load() == nil
	}
	return c.record == nil || c.record.key == nil && c.record.hooks == nil && c.record.resume == nil
}

// lost remembers a stream that its client may have to ask for. t.mu is held.
func (t *table) lost(b broken, besides bool) {
	b.at = time.Now()
	if besides {
		b.asked = b.at
	}
	t.ask(&b)
	t.prune(b.at)
	if len(t.broken) >= mostBroken {
		// Rather one that has probably arrived.
		i := max(0, slices.IndexFunc(t.broken, func(b broken) bool { return b.from != "" }))
		t.broken = slices.Delete(t.broken, i, i+1)
	}
	t.broken = append(t.broken, b)
	t.wake()
}

// prune forgets what is no longer doubted. t.mu is held.
func (t *table) prune(now time.Time) {
	t.broken = slices.DeleteFunc(t.broken, func(b broken) bool { return b.whole && now.Sub(b.at) > doubtFor })
}

// wake tells the reader of the standalone stream, if there is one, that there may
// be calls to continue. t.mu is held.
func (t *table) wake() {
	if r := t.readers[standalone]; r != nil {
		r.lost.Store(true)
		r.poke()
	}
}

// LostChanged says, once, that [Session.LostStreams] may have more to say than when it was last
// asked. The reader is the standalone stream's.
func (r *Reader) LostChanged() bool { return r.lost.Swap(false) }

// found takes a stream off the broken ones: it is read again, or can't be any
// more. t.mu is held.
func (t *table) found(number uint64) {
	t.broken = slices.DeleteFunc(t.broken, func(b broken) bool { return b.number == number })
}

// ConnectionLost notes that the connection of a light call broke before its answer was
// written, so that its client may come back with nothing but its session id.
func (c *Call) ConnectionLost() {
	c.Promote()
	number := c.Number()
	if number == 0 {
		return
	}
	_ = c.takeKick() // who was to be sent away has gone
	c.release(number)
	c.s.streams.mu.Lock()
	defer c.s.streams.mu.Unlock()
	c.s.streams.lost(broken{number: number, certain: true, since: time.Now()}, false)
}

package session

import (
	"slices"
	"time"

	"holdfast/stream"
)

// What follows is for clients that come back with nothing but their session id:
// which calls they may have lost. docs/decisions/0001-session-id-only.md says
// what can be known of that, and what is done where it can't.

// broken is a stream whose connection broke, so that its client may come back
// with nothing but its session id.
type broken struct {
	number  uint64
	seq     uint64 // what its client has for certain: it asked for what follows
	certain bool   // no event id was written, so none can have arrived
	at      time.Time
	asked   time.Time // when its client first came back with nothing but its session
	// from is the address of a client to whom all was written, and who may yet turn
	// out to have left with some of it unread; "" where that is known, or likely.
	from  string
	until time.Time // when this is no longer of interest; zero: never
}

// mostBroken bounds how many broken streams a session remembers.
const mostBroken = 64

// LastStream returns the number of the newest stream.
func (s *Session) LastStream() uint64 {
	t := &s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// Broken returns where to continue the streams, up to a number, whose connection
// broke and was not resumed since, for a client that came back with nothing but
// its session: now, at the time asked, or, if that is zero, before. Those to
// whose connection an event id was written are given after patience: their client
// may be about to come back with the id. due is when the next of them will be
// given, or zero. unread says whether the client at an address left, since the
// given time, with bytes unread.
func (s *Session) Broken(upTo uint64, unread func(string, time.Time) bool, asked time.Time, patience time.Duration) (at []stream.Cursor, due time.Time) {
	t := &s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.broken = slices.DeleteFunc(t.broken, func(b broken) bool {
		return !b.until.IsZero() && now.Sub(b.until) > patience
	})
	if !asked.IsZero() && !asked.Before(t.asked) {
		t.asked, t.askedTo = asked, upTo
	}
	for i := range t.broken {
		b := &t.broken[i]
		// A POST that was sent, and given up, before this GET may arrive after it.
		crossed := b.certain && !asked.IsZero() && b.at.Sub(asked) <= 2*Noticed
		if b.number > upTo && !crossed {
			continue
		}
		if b.from != "" && !unread(b.from, b.at) {
			continue
		}
		if b.asked.IsZero() {
			b.asked = asked
		}
		if b.asked.IsZero() {
			continue
		}
		when := b.asked
		if !b.certain {
			when = when.Add(patience)
		}
		switch {
		case !now.Before(when):
			at = append(at, stream.Cursor{Stream: stream.ID{Number: b.number}, Seq: b.seq})
		case due.IsZero() || when.Before(due):
			due = when
		}
	}
	return at, due
}

// Written notes that all of the stream was written to the client, which is at an
// address ("": it has lost connections of this call before, and if it comes back
// with nothing but its session it has lost this one). It may yet turn out to have
// left with some of it unread. besides says that it was read besides another
// stream: then the client may come back for that one only.
func (r *Reader) Written(from string, besides bool) {
	t := &r.s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	number := r.cursor.Stream.Number
	if number != standalone && t.readers[number] == r {
		b := broken{number: number, seq: r.began, at: time.Now(), from: from}
		b.until = b.at.Add(doubtFor)
		if besides {
			b.asked = b.at
		}
		t.lost(b)
	}
}

// Left notes that the client at an address left without a word. What was written to
// it just before has probably not arrived.
func (s *Session) Left(from string) {
	t := &s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.broken {
		if b := &t.broken[i]; b.from == from && time.Since(b.at) < time.Second {
			b.from = ""
		}
	}
}

// Noticed is how long it takes at the most to notice that a connection broke: its
// client may be back before.
const Noticed = 250 * time.Millisecond

// lost remembers a stream that its client may have to ask for. t.mu is held.
func (t *table) lost(b broken) {
	if b.from == "" && b.asked.IsZero() && b.number <= t.askedTo && b.at.Sub(t.asked) <= Noticed {
		b.asked = t.asked
	}
	if len(t.broken) >= mostBroken {
		t.broken = slices.Delete(t.broken, 0, 1)
	}
	t.broken = append(t.broken, b)
}

// doubtFor is how long it takes at the most until a client that lost an answer is
// back for it.
const doubtFor = 10 * time.Second

// found takes a stream off the broken ones: it is read again, or can't be any
// more. t.mu is held.
func (t *table) found(number uint64) {
	t.broken = slices.DeleteFunc(t.broken, func(b broken) bool { return b.number == number })
}

// Break notes that the connection of a light call broke before its answer was
// written, so that its client may come back with nothing but its session id.
func (c *Call) Break() {
	c.Promote()
	number := c.Number()
	if number == 0 {
		return
	}
	c.release(number)
	c.s.streams.mu.Lock()
	defer c.s.streams.mu.Unlock()
	c.s.streams.lost(broken{number: number, certain: true, at: time.Now()})
}

package session

import (
	"context"

	"holdfast/stream"
)

// Delivered returns the sequence of the last message of the standalone stream that
// was written to a client.
func (s *Session) Delivered() uint64 {
	s.standalone.mu.Lock()
	defer s.standalone.mu.Unlock()
	return s.standalone.delivery.told
}

// Oldest returns the sequence before the oldest message of the standalone stream
// that is still kept.
func (s *Session) Oldest(ctx context.Context) uint64 { return s.OldestOf(ctx, standalone) }

// OldestOf returns the sequence before the oldest message of a stream that is
// still kept; 0 if there is none.
func (s *Session) OldestOf(ctx context.Context, number uint64) uint64 {
	oldest, _, err := s.m.store.Bounds(ctx, stream.ID{Session: s.key, Number: number})
	if err != nil {
		return 0
	}
	return oldest - 1
}

// AwaitsInputAt reports whether the stream's call has said nothing after the cursor
// and waits for its client to answer.
func (s *Session) AwaitsInputAt(at stream.Cursor) bool {
	c := s.streams.call(at.Stream.Number)
	if c == nil {
		return false
	}
	asking, said := c.AwaitsInput()
	return asking && said == at.Seq
}

// SignalInputOnce reports whether a client that shows no event id may be told that the stream's
// call waits for its input: once for each time that it is told of what the call said.
// What was written to it may not have arrived.
func (s *Session) SignalInputOnce(number uint64) bool {
	c := s.streams.call(number)
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delivery.signalled = !c.delivery.signalled
	return c.delivery.signalled
}

// HasReader reports whether somebody reads a stream.
func (s *Session) HasReader(number uint64) bool { return s.streams.read(number) }

// DeliveredAt moves a cursor on to the last entry of its stream that was written to
// a client, if the connection did not break after that.
func (s *Session) DeliveredAt(at stream.Cursor) stream.Cursor {
	t := &s.streams
	t.mu.Lock()
	lost := t.gaps.has(at.Stream.Number)
	t.mu.Unlock()
	if lost {
		return at
	}
	if c := s.streams.call(at.Stream.Number); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.delivery.told > at.Seq {
			at.Seq, at.Epoch = c.delivery.told, 0
		}
	}
	return at
}

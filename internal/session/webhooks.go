package session

import (
	"holdfast/internal/feature/webhook"
	"holdfast/internal/reading"
)

// This file is for calls with outcomes that webhooks are told, if no client hears them.

// untold returns the call's outcomes that webhooks may be told; nil for most calls.
func (c *Call) untold() *webhook.Call {
	if c == nil || c.record == nil {
		return nil
	}
	return c.record.untold
}

// untoldTo returns the outcomes in a reader's stream that webhooks may be told, or nil.
func (s *Session) untoldTo(r *reading.Reader) *webhook.Call {
	if c := written(r.Call()); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.untold()
	}
	return s.untold.Of(r.Cursor().Stream.Number)
}

// untold is a call's [feature].
type untold struct{ *webhook.Call }

func (u untold) stored(c *Call)                          { u.Stored(c.said) }
func (u untold) cancelled(_ *Call, rq *inflight)         { u.Cancelled(rq.id) }
func (u untold) refused(_ *Call, _ [][]byte, seq uint64) { u.Refused(seq) }
func (u untold) left(*Call)                              {} // the next owner tells them
func (u untold) answered(c *Call, rq *inflight, failed bool, seq uint64) {
	stream := uint64(0)
	switch {
	case c.hasJournal():
		stream = c.recovery.journal
	case c.s.single: // an heir has a stream there
		stream = c.number
	}
	u.Answered(rq.id, failed, seq, stream)
}

// An untoldOwner is a session as its untold outcomes know it. It implements [webhook.Owner].
type untoldOwner struct{ s *Session }

func (o untoldOwner) Moved() bool               { return o.s.Moved() }
func (o untoldOwner) IsRead(number uint64) bool { return o.s.streams.IsRead(number) }

func (o untoldOwner) Note() {
	if !o.s.isClosed() {
		o.s.noteSession(nil, false)
		o.s.log.Flush()
	}
}

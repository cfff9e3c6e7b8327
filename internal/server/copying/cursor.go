package copying

import (
	"context"

	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/stream"
)

// CursorOf returns the cursor that an event id of a session stands for. The error is [ticket.ErrBadEvent].
func CursorOf(s *session.Session, id string) (at stream.Cursor, err error) {
	e, err := ticket.ParseEvent(s.ID(), id)
	if err != nil {
		return at, err
	}
	return stream.Cursor{Stream: stream.ID{Session: stream.SessionKey(s.Name()), Number: e.Number}, Epoch: e.Epoch, Seq: e.Seq}, nil
}

// CursorAfter returns the place in a stream after an event, or, where its id is "",
// before the oldest that is kept.
func CursorAfter(ctx context.Context, s *session.Session, number uint64, last string) (stream.Cursor, error) {
	if last == "" {
		return stream.Cursor{Stream: stream.ID{Number: number}, Seq: s.Streams().Oldest(ctx, number)}, nil
	}
	at, err := CursorOf(s, last)
	if err == nil && at.Stream.Number != number {
		err = ticket.ErrBadEvent
	}
	return at, err
}

package server

import (
	"context"
	"errors"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// cursorOf returns the cursor that an event id of a session stands for. The error is [ticket.ErrBadEvent].
func cursorOf(s *session.Session, id string) (at stream.Cursor, err error) {
	e, err := ticket.ParseEvent(s.ID(), id)
	if err != nil {
		return at, err
	}
	return stream.Cursor{Stream: stream.ID{Session: stream.SessionKey(s.Name()), Number: e.Number}, Epoch: e.Epoch, Seq: e.Seq}, nil
}

// cursorAfter returns the place in a stream after an event, or, where its id is "",
// before the oldest that is kept.
func cursorAfter(ctx context.Context, s *session.Session, number uint64, last string) (stream.Cursor, error) {
	if last == "" {
		return stream.Cursor{Stream: stream.ID{Number: number}, Seq: s.Streams().Oldest(ctx, number)}, nil
	}
	at, err := cursorOf(s, last)
	if err == nil && at.Stream.Number != number {
		err = ticket.ErrBadEvent
	}
	return at, err
}

// lastEventID returns the id of the event that the client has last seen, or "".
func lastEventID(r *http.Request) string {
	if v := r.Header[protocol.HeaderLastEventID]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// streamAt returns the place in its session's stream that a stream URL names. The URL is
// enough: whoever has it was given it, but must still be the same principal.
func (h *Handler) streamAt(x *exchange) (at stream.Cursor, err error) {
	s := x.session
	if !h.mayRead(x, s) {
		return at, session.ErrNotFound
	}
	at, err = cursorOf(s, x.place())
	if errors.Is(err, ticket.ErrBadEvent) {
		return at, session.ErrNotFound // who guesses URLs learns nothing
	}
	if err == nil && x.last != "" {
		at, err = cursorAfter(x.r.Context(), s, at.Stream.Number, x.last)
	}
	return at, err
}

// mayRead reports whether the session header of a request, if it has one, lets it have a
// stream of s: it must not be another client's. A named principal may come with
// another of its sessions, and so may a client that resumes its requests (SEP-975).
func (h *Handler) mayRead(x *exchange, s *session.Session) bool {
	if x.r.Header[protocol.HeaderSession] == nil || s.HasID(x.secret) {
		return true
	}
	_, err := h.sessions.Find(x.secret, x.principal)
	if err != nil && h.nodes != nil {
		_, _, err = h.sessions.Locate(x.r.Context(), whereabouts.KeyOf(x.secret), x.principal)
	}
	return err == nil && (!x.principal.IsAnonymous() || s.Resumes() != nil)
}

// streamParam returns the stream that a stream URL names, or "".
func streamParam(r *http.Request) string {
	if r.URL.RawQuery == "" {
		return ""
	}
	return r.URL.Query().Get(protocol.ParamStream)
}

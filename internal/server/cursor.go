package server

import (
	"errors"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/internal/server/copying"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/internal/whereabouts"
	"holdfast/stream"
)

// streamAt returns the place in its session's stream that a stream URL names. The URL is
// enough: whoever has it was given it, but must still be the same principal.
func (h *Handler) streamAt(x *exchange.Exchange) (at stream.Cursor, err error) {
	s := x.Session
	if !h.mayRead(x, s) {
		return at, session.ErrNotFound
	}
	at, err = copying.CursorOf(s, x.Place())
	if errors.Is(err, ticket.ErrBadEvent) {
		return at, session.ErrNotFound // who guesses URLs learns nothing
	}
	if err == nil && x.Last != "" {
		at, err = copying.CursorAfter(x.HTTP.Context(), s, at.Stream.Number, x.Last)
	}
	return at, err
}

// mayRead reports whether the session header of a request, if it has one, lets it have a
// stream of s: it must not be another client's. A named principal may come with
// another of its sessions, and so may a client that resumes its requests (SEP-975).
func (h *Handler) mayRead(x *exchange.Exchange, s *session.Session) bool {
	if x.HTTP.Header[protocol.HeaderSession] == nil || s.HasID(x.Secret) {
		return true
	}
	_, err := h.sessions.Find(x.Secret, x.Principal)
	if err != nil && h.nodes != nil {
		_, _, err = h.sessions.Locate(x.HTTP.Context(), whereabouts.KeyOf(x.Secret), x.Principal)
	}
	return err == nil && (!x.Principal.IsAnonymous() || s.Resumes() != nil)
}

// streamParam returns the stream that a stream URL names, or "".
func streamParam(r *http.Request) string {
	if r.URL.RawQuery == "" {
		return ""
	}
	return r.URL.Query().Get(protocol.ParamStream)
}

package server

import (
	"context"
	"net/http"

	"holdfast/internal/observe"
)

type tellerKey struct{}

// told returns the request with what [TellRefused] needs in its context.
func (h *Handler) told(r *http.Request) *http.Request {
	if h.opts.Observers == nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), tellerKey{}, h))
}

// TellRefused tells observers of a request that Options.Authenticate refuses. The reason is one of few,
// in lower case with underscores. With status 403, Options.Principal must say who was proven to make
// the request, or "".
func TellRefused(r *http.Request, reason string, status int) {
	h, ok := r.Context().Value(tellerKey{}).(*Handler)
	if !ok {
		return
	}
	e := observe.Refused{Reason: reason, Status: status}
	switch status {
	case http.StatusUnauthorized:
		e.Denied = h.answers.Denied(r, nil, "")
	case http.StatusForbidden:
		e.Denied = h.answers.Denied(r, nil, h.callers.asker(r))
	}
	h.opts.Observers.Happened(e)
}

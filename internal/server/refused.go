package server

import (
	"context"
	"errors"
	"net/http"

	"holdfast/internal/observe"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/stream"
)

// tellRefused tells observers of a request that is answered with a status because of err.
func (h *Handler) tellRefused(status int, err error) {
	if h.opts.Observers != nil && status >= http.StatusBadRequest {
		h.opts.Observers.Happened(observe.Refused{Reason: reasonOf(status, err), Status: status})
	}
}

type tellerKey struct{}

// told returns the request with what [TellRefused] needs in its context.
func (h *Handler) told(r *http.Request) *http.Request {
	if h.opts.Observers == nil {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), tellerKey{}, h))
}

// TellRefused tells observers of a request that Options.Authenticate refuses, by its context. The
// reason is one of few, in lower case with underscores.
func TellRefused(ctx context.Context, reason string, status int) {
	if h, ok := ctx.Value(tellerKey{}).(*Handler); ok {
		h.opts.Observers.Happened(observe.Refused{Reason: reason, Status: status})
	}
}

// A reasoned error says for which reason a request is refused. It is one of few, in lower case
// with underscores.
type reasoned interface{ Reason() string }

// reasons are those of errors, the first that fits.
var reasons = []struct {
	err    error
	reason string
}{
	{errUnknown, "outcome_unknown"},
	{session.ErrNotFound, "session_not_found"},
	{session.ErrDuplicate, "duplicate_id"},
	{session.ErrKeyReused, "key_reused"},
	{session.ErrGone, "gone"},
	{errNoRoom, "memory"},
	{session.ErrBusy, "busy"},
	{session.ErrClosing, "draining"},
	{errLeaving, "draining"},
	{session.ErrNotDelivered, "not_delivered"},
	{session.ErrMoved, "moved"},
	{errUnreached, "node_unreached"},
	{stream.ErrConflict, "moved"},
	{stream.ErrTooLarge, "too_large"},
	{session.ErrInitialize, "too_large"},
	{stream.ErrFull, "store_full"},
	{session.ErrRefused, "backend_refused"},
	{session.ErrBadID, "bad_event_id"},
	{session.ErrBadToken, "bad_token"},
	{stream.ErrTrimmed, "gone"},
	{stream.ErrNotFound, "gone"},
}

// statusReasons are those of statuses of which no error says more.
var statusReasons = map[int]string{
	http.StatusBadRequest:            "invalid",
	http.StatusUnauthorized:          "unauthorized",
	http.StatusForbidden:             "forbidden",
	http.StatusNotFound:              "not_found",
	http.StatusMethodNotAllowed:      "method",
	http.StatusNotAcceptable:         "not_acceptable",
	http.StatusRequestTimeout:        "timeout",
	http.StatusRequestEntityTooLarge: "too_large",
	http.StatusUnsupportedMediaType:  "media_type",
	http.StatusMisdirectedRequest:    "moved",
	http.StatusTooManyRequests:       "busy",
	http.StatusServiceUnavailable:    "unavailable",
}

// reasonOf returns the reason for which a request is refused: one of few.
func reasonOf(status int, err error) string {
	var says reasoned
	var refused *protocol.Unauthorized
	var panicked *panics.Error
	switch {
	case errors.As(err, &says):
		return says.Reason()
	case errors.As(err, &refused):
		if refused.Text != "" {
			return "insufficient_scope"
		}
		if status == http.StatusForbidden {
			return "forbidden"
		}
		return "unauthorized"
	case errors.As(err, &panicked):
		return "panic"
	}
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.reason
		}
	}
	if session.StoreErrorText(err) != "" {
		return "store_unavailable"
	}
	if reason, ok := statusReasons[status]; ok {
		return reason
	}
	return "other"
}

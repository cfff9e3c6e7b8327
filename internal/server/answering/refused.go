package answering

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/feature/resume"
	"holdfast/internal/observe"
	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/guard"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// TellRefused tells observers of a request that is answered with a status because of err, if that is 400 or above. w is nil for a
// message of a mux.
func (a *Writer) TellRefused(w http.ResponseWriter, status int, err error) {
	a.TellDenied(w, status, err, nil)
}

// TellDenied is TellRefused for a request that may have been refused with status 401 or 403. denied may be nil.
func (a *Writer) TellDenied(w http.ResponseWriter, status int, err error, denied *observe.Denied) {
	if status < http.StatusBadRequest {
		return
	}
	if w != nil {
		if _, forwarded := w.Header()[placement.HeaderRefused]; forwarded {
			w.Header()[placement.HeaderRefused] = []string{reasonOf(status, err)}
		}
	}
	if a.Observers == nil {
		return
	}
	if status != http.StatusUnauthorized && status != http.StatusForbidden {
		denied = nil
	}
	a.Observers.Happened(observe.Refused{Reason: reasonOf(status, err), Status: status, Denied: denied})
}

// Denied describes an unauthorized request: m is the refused message, or nil; principal is the one
// that the request has proven to be, or "". It returns nil if there are no observers.
func (a *Writer) Denied(r *http.Request, m *jsonrpc.Message, principal string) *observe.Denied {
	if a.Observers == nil {
		return nil
	}
	d := &observe.Denied{At: time.Now(), Server: a.Server(r.Context()), Principal: principal, HTTP: begin(r.Method), Remote: guard.Bare(r.RemoteAddr)}
	if m != nil {
		d.Method = begin(m.Method)
		if m.Method == protocol.MethodCallTool {
			d.Tool = begin(jsonrpc.String(jsonrpc.Field(m.Params, "name")))
		}
	}
	return d
}

// begin returns the beginning of a client's text, at most [observe.MostDenied] bytes.
func begin(text string) string {
	if len(text) <= observe.MostDenied {
		return text
	}
	return strings.Clone(strings.ToValidUTF8(text[:observe.MostDenied], "")) // so that the rest is not held in memory
}

// A reasoned error has the reason that a request is refused, one of a small set, in lower case with underscores.
type reasoned interface{ Reason() string }

// reasons are the reasons of errors. The first that fits counts.
var reasons = []struct {
	err    error
	reason string
}{
	{placement.ErrUnknown, "outcome_unknown"},
	{session.ErrNotFound, "session_not_found"},
	{session.ErrDuplicate, "duplicate_id"},
	{idempotency.ErrReused, "key_reused"},
	{idempotency.ErrGone, "gone"},
	{ErrNoRoom, "memory"},
	{budget.ErrConnections, "memory"},
	{session.ErrBusy, "busy"},
	{session.ErrClosing, "draining"},
	{placement.ErrLeaving, "draining"},
	{session.ErrNotDelivered, "not_delivered"},
	{session.ErrMoved, "moved"},
	{placement.ErrUnreached, "node_unreached"},
	{stream.ErrConflict, "moved"},
	{stream.ErrTooLarge, "too_large"},
	{session.ErrInitialize, "too_large"},
	{session.ErrClient, "too_large"},
	{stream.ErrFull, "store_full"},
	{session.ErrRefused, "backend_refused"},
	{ticket.ErrBadEvent, "bad_event_id"},
	{resume.ErrBadToken, "bad_token"},
	{stream.ErrTrimmed, "gone"},
	{stream.ErrNotFound, "gone"},
}

// statusReasons are the reasons of statuses, where the error has none.
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

// reasonOf returns the reason that a request is refused, one of a small set.
func reasonOf(status int, err error) string {
	var says reasoned
	var refused *protocol.Unauthorized
	var panicked *panics.Error
	switch {
	case errors.As(err, &says):
		return says.Reason()
	case errors.As(err, &refused):
		if status == http.StatusBadGateway { // the operator's credentials
			return "backend_refused"
		}
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

// FailDenied is Fail for a request that may not be authorized. denied may be nil.
func (a *Writer) FailDenied(w http.ResponseWriter, err error, denied *observe.Denied) {
	if errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler) // the application asks for that
	}
	var refused *protocol.Unauthorized
	if errors.As(err, &refused) && len(refused.Challenge) > 0 {
		w.Header()["Www-Authenticate"] = refused.Challenge
	}
	status, e := a.Explain(err)
	SetRetryAfter(w, status, err)
	a.TellDenied(w, status, err, denied)
	a.RejectAs(w, status, jsonrpc.AppendError(nil, nil, e))
}

package answering

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/feature/resume"
	"holdfast/internal/limit"
	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// Reject answers a request with an HTTP status and a JSON-RPC error with the id null, as it is about the HTTP request.
func (a *Writer) Reject(w http.ResponseWriter, status int, e *jsonrpc.Error) {
	a.TellRefused(w, status, e)
	a.RejectAs(w, status, jsonrpc.AppendError(nil, nil, e))
}

// Forbid is Reject with status 403, for a request that has proven no principal.
func (a *Writer) Forbid(w http.ResponseWriter, r *http.Request, e *jsonrpc.Error) {
	a.TellDenied(w, http.StatusForbidden, e, a.Denied(r, nil, ""))
	a.RejectAs(w, http.StatusForbidden, jsonrpc.AppendError(nil, nil, e))
}

// RejectAs answers a request with an HTTP status and JSON-RPC errors.
func (a *Writer) RejectAs(w http.ResponseWriter, status int, body []byte) {
	head := w.Header()
	head["Content-Type"] = typeJSON
	head.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_ = a.Finish(w, body) // the client may have left
}

// Fail answers a request with the status and the JSON-RPC error that explain err.
func (a *Writer) Fail(w http.ResponseWriter, err error) { a.FailDenied(w, err, nil) }

// FailMessages is Fail for messages. If their outcome may be unknown, a limit has refused them,
// or their params are invalid, each request gets an error response with its id.
func (a *Writer) FailMessages(w http.ResponseWriter, err error, msgs []jsonrpc.Message, batch bool) {
	var answers [][]byte
	var limited *limit.Refusal
	var known *jsonrpc.Error
	status, unknown := http.StatusBadGateway, errors.Is(err, placement.ErrUnknown)
	params := errors.As(err, &known) && known.Code == jsonrpc.CodeInvalidParams
	if unknown || params || errors.As(err, &limited) {
		var says *jsonrpc.Error
		if status, says = a.Explain(err); unknown {
			status = http.StatusBadGateway
		}
		for i := range msgs {
			if msgs[i].Kind == jsonrpc.Request {
				answers = append(answers, jsonrpc.AppendError(nil, msgs[i].ID, says))
			}
		}
	}
	if answers == nil {
		a.Fail(w, err)
		return
	}
	SetRetryAfter(w, status, err)
	a.TellRefused(w, status, err)
	a.RejectAs(w, status, Append(nil, answers, batch))
}

// Explain returns the HTTP status and the JSON-RPC error for an error of
// the floors below. It logs errors that concern the operator.
func (a *Writer) Explain(err error) (status int, e *jsonrpc.Error) {
	var known *jsonrpc.Error
	var panicked *panics.Error
	var refused *protocol.Unauthorized
	var limited *limit.Refusal
	var notStarted *protocol.NotStarted
	var away *Moved
	var ended interface{ NothingBegan() bool }
	var silent *protocol.NoAnswer
	switch {
	case errors.As(err, &away):
		return http.StatusNotFound, jsonrpc.Errorf(jsonrpc.CodeServer, "%v", away)
	case errors.As(err, &limited):
		return explainLimit(limited)
	case errors.As(err, &refused):
		return refused.Status, jsonrpc.Errorf(jsonrpc.CodeServer, "%v", refused)
	case errors.As(err, &panicked): // logged already
		return http.StatusInternalServerError, jsonrpc.Errorf(jsonrpc.CodeInternal, "internal error: %v", panicked)
	case errors.Is(err, session.ErrInitialize):
		return http.StatusRequestEntityTooLarge, session.ErrInitialize
	case errors.Is(err, session.ErrClient):
		return http.StatusRequestEntityTooLarge, session.ErrClient
	case errors.As(err, &known):
		return http.StatusBadRequest, known
	case errors.Is(err, placement.ErrUnknown):
		if text := session.StoreErrorText(err); text != "" {
			a.Logger.Warn("request not settled", "error", err)
			return http.StatusBadGateway, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%v: %s", placement.ErrUnknown, text)
		}
		return http.StatusBadGateway, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%v", err)
	case errors.Is(err, session.ErrNotFound):
		return http.StatusNotFound, jsonrpc.Errorf(jsonrpc.CodeServer,
			"session not found: it has ended or expired; start a new one with an initialize request")
	case errors.Is(err, session.ErrCancelled): // of 2026-07-28; older revisions have no answer then
		return http.StatusOK, ErrCancelled
	case errors.Is(err, session.ErrDuplicate):
		return http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v: use an id once", err)
	case errors.Is(err, idempotency.ErrReused):
		return http.StatusUnprocessableEntity, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v: use a new key for a new request", err)
	case errors.Is(err, idempotency.ErrGone):
		return http.StatusGone, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "outcome unknown: %v", err)
	case errors.Is(err, idempotency.ErrOtherCredential):
		return http.StatusGone, jsonrpc.Errorf(protocol.CodeOutcomeUnknown,
			"outcome unknown: %v; make it again with that Authorization to get its result, or find out whether it ran and use a new key", err)
	case errors.Is(err, session.ErrBusy), errors.Is(err, ErrNoRoom), errors.Is(err, budget.ErrConnections):
		return http.StatusTooManyRequests, jsonrpc.Errorf(jsonrpc.CodeServer, "%v: try again later", err)
	case errors.Is(err, session.ErrClosing), errors.Is(err, session.ErrNotDelivered), errors.Is(err, session.ErrMoved),
		errors.Is(err, placement.ErrUnreached), errors.Is(err, placement.ErrLeaving), errors.Is(err, stream.ErrConflict):
		return http.StatusServiceUnavailable, jsonrpc.Errorf(jsonrpc.CodeServer, "%v: try again later", err)
	case errors.Is(err, stream.ErrTooLarge):
		return http.StatusRequestEntityTooLarge, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", stream.ErrTooLarge)
	case errors.Is(err, backend.ErrNoServer):
		return http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", err)
	case errors.Is(err, session.ErrRefused) && errors.Is(err, context.Canceled):
		// The client has left, or has sent a FIN as it sends no more, which net/http
		// takes for the same.
		a.Logger.Debug("session not opened", "error", err)
		return http.StatusServiceUnavailable, jsonrpc.Errorf(jsonrpc.CodeServer, "the connection ended while the server was being started: try again")
	case errors.As(err, &notStarted): // logged already
		return http.StatusBadGateway, jsonrpc.Errorf(jsonrpc.CodeServer, "%v", notStarted)
	case errors.Is(err, session.ErrRefused):
		level := slog.LevelError
		if errors.As(err, &ended) && ended.NothingBegan() && !errors.As(err, &silent) {
			level = slog.LevelDebug // its end was logged
		}
		a.Logger.Log(context.Background(), level, "session not opened", "error", err)
		return http.StatusBadGateway, jsonrpc.Errorf(jsonrpc.CodeServer, "%v", err)
	case errors.Is(err, ticket.ErrBadEvent):
		return http.StatusBadRequest, jsonrpc.Errorf(jsonrpc.CodeInvalidParams,
			"%v: resume with an id that was received in this session", err)
	case errors.Is(err, resume.ErrBadToken):
		return http.StatusOK, jsonrpc.Errorf(jsonrpc.CodeInvalidParams,
			"%v: the token is not its own, or what became of it is no longer kept", err)
	case errors.Is(err, stream.ErrTrimmed), errors.Is(err, stream.ErrNotFound):
		return http.StatusGone, jsonrpc.Errorf(protocol.CodeOutcomeUnknown,
			"outcome unknown: %v; they were dropped after the time or the size they are kept for", stream.ErrTrimmed)
	}
	if text := session.StoreErrorText(err); text != "" {
		if !errors.Is(err, stream.ErrFull) && !errors.Is(err, stream.ErrTooLarge) {
			a.Outage.Refused()
		}
		a.Logger.Warn("request not served", "error", err)
		return http.StatusServiceUnavailable, jsonrpc.Errorf(jsonrpc.CodeServer, "%s: try again later", text)
	}
	if errors.Is(err, context.Canceled) { // the client has left, or the process is about to end
		a.Logger.Debug("request not served", "error", err)
		return http.StatusServiceUnavailable, jsonrpc.Errorf(jsonrpc.CodeServer, "%v: try again later", session.ErrClosing)
	}
	a.Logger.Error("request failed", "error", err)
	return http.StatusInternalServerError, jsonrpc.Errorf(jsonrpc.CodeInternal, "internal error: %v", err)
}

// Errors of a front.
var (
	// ErrNoRoom refuses a message, as the messages being read take up the memory for them.
	ErrNoRoom = errors.New("messages that are being read take up what --memory has room for")
	// ErrCancelled answers a request of revision 2026-07-28 that was cancelled while its client was there.
	ErrCancelled = jsonrpc.Errorf(jsonrpc.CodeServer, "the request was cancelled")
)

// A Moved refuses a session or a call that would begin at a server's old path.
type Moved struct{ To string }

// Error implements error.
func (m *Moved) Error() string {
	return "the server is not at this path any more: it was moved to " + m.To + "; connect there"
}

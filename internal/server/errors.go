package server

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
	"holdfast/internal/observe"
	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

const codeInvalid = jsonrpc.CodeInvalidRequest

func errf(code int, format string, args ...any) *jsonrpc.Error {
	return jsonrpc.Errorf(code, format, args...)
}

// reject answers a request with an HTTP status and a JSON-RPC error that has no
// id: it is about the HTTP request.
func (a *answerer) reject(w http.ResponseWriter, status int, e *jsonrpc.Error) {
	a.tellRefused(w, status, e)
	a.rejectAs(w, status, jsonrpc.AppendError(nil, nil, e))
}

// forbid is reject with status 403, for a request of which nobody knows who makes it.
func (a *answerer) forbid(w http.ResponseWriter, r *http.Request, e *jsonrpc.Error) {
	a.tellDenied(w, http.StatusForbidden, e, a.denied(r, nil, ""))
	a.rejectAs(w, http.StatusForbidden, jsonrpc.AppendError(nil, nil, e))
}

// rejectAs answers a request with an HTTP status and JSON-RPC errors.
func (a *answerer) rejectAs(w http.ResponseWriter, status int, body []byte) {
	head := w.Header()
	head["Content-Type"] = typeJSON
	head.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_ = a.finish(w, body) // who has gone does not hear it
}

// fail answers a request with what an error of the floors below means in HTTP.
func (a *answerer) fail(w http.ResponseWriter, err error) { a.failDenied(w, err, nil) }

// failDenied is fail for a request that may not be authorized. denied may be nil.
func (a *answerer) failDenied(w http.ResponseWriter, err error, denied *observe.Denied) {
	if errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler) // as code of the user has it
	}
	var refused *protocol.Unauthorized
	if errors.As(err, &refused) && len(refused.Challenge) > 0 {
		w.Header()["Www-Authenticate"] = refused.Challenge
	}
	status, e := a.explain(err)
	setRetryAfter(w, status, err)
	a.tellDenied(w, status, err, denied)
	a.rejectAs(w, status, jsonrpc.AppendError(nil, nil, e))
}

// failMessages is fail for messages of which nobody may know what became of them, or that a limit
// has refused, or whose params are not taken: then each request is told so.
func (a *answerer) failMessages(w http.ResponseWriter, err error, msgs []jsonrpc.Message, batch bool) {
	var answers [][]byte
	var limited *limit.Refusal
	var known *jsonrpc.Error
	status, unknown := http.StatusBadGateway, errors.Is(err, placement.ErrUnknown)
	params := errors.As(err, &known) && known.Code == jsonrpc.CodeInvalidParams
	if unknown || params || errors.As(err, &limited) {
		var says *jsonrpc.Error
		if status, says = a.explain(err); unknown {
			status = http.StatusBadGateway
		}
		for i := range msgs {
			if msgs[i].Kind == jsonrpc.Request {
				answers = append(answers, jsonrpc.AppendError(nil, msgs[i].ID, says))
			}
		}
	}
	if answers == nil {
		a.fail(w, err)
		return
	}
	setRetryAfter(w, status, err)
	a.tellRefused(w, status, err)
	a.rejectAs(w, status, appendAnswers(nil, answers, batch))
}

// explain returns what an error of the floors below means: in HTTP, and to
// whoever made a request. What is the operator's business is logged.
func (a *answerer) explain(err error) (status int, e *jsonrpc.Error) {
	var known *jsonrpc.Error
	var panicked *panics.Error
	var refused *protocol.Unauthorized
	var limited *limit.Refusal
	var notStarted *protocol.NotStarted
	var away *moved
	var ended interface{ NothingBegan() bool }
	var silent *protocol.NoAnswer
	switch {
	case errors.As(err, &away):
		return http.StatusNotFound, errf(jsonrpc.CodeServer, "%v", away)
	case errors.As(err, &limited):
		return explainLimit(limited)
	case errors.As(err, &refused):
		return refused.Status, errf(jsonrpc.CodeServer, "%v", refused)
	case errors.As(err, &panicked): // and was logged
		return http.StatusInternalServerError, errf(jsonrpc.CodeInternal, "internal error: %v", panicked)
	case errors.Is(err, session.ErrInitialize):
		return http.StatusRequestEntityTooLarge, session.ErrInitialize
	case errors.Is(err, session.ErrClient):
		return http.StatusRequestEntityTooLarge, session.ErrClient
	case errors.As(err, &known):
		return http.StatusBadRequest, known
	case errors.Is(err, placement.ErrUnknown):
		if text := session.StoreErrorText(err); text != "" {
			a.logger.Warn("request not settled", "error", err)
			return http.StatusBadGateway, errf(protocol.CodeOutcomeUnknown, "%v: %s", placement.ErrUnknown, text)
		}
		return http.StatusBadGateway, errf(protocol.CodeOutcomeUnknown, "%v", err)
	case errors.Is(err, session.ErrNotFound):
		return http.StatusNotFound, errf(jsonrpc.CodeServer,
			"session not found: it has ended or expired; start a new one with an initialize request")
	case errors.Is(err, session.ErrCancelled): // of 2026-07-28; others get no answer
		return http.StatusOK, errCancelled
	case errors.Is(err, session.ErrDuplicate):
		return http.StatusBadRequest, errf(codeInvalid, "%v: use an id once", err)
	case errors.Is(err, idempotency.ErrReused):
		return http.StatusUnprocessableEntity, errf(codeInvalid, "%v: use a new key for a new request", err)
	case errors.Is(err, idempotency.ErrGone):
		return http.StatusGone, errf(protocol.CodeOutcomeUnknown, "outcome unknown: %v", err)
	case errors.Is(err, idempotency.ErrOtherCredential):
		return http.StatusGone, errf(protocol.CodeOutcomeUnknown,
			"outcome unknown: %v; make it again with that Authorization to get its result, or find out whether it ran and use a new key", err)
	case errors.Is(err, session.ErrBusy), errors.Is(err, errNoRoom), errors.Is(err, budget.ErrConnections):
		return http.StatusTooManyRequests, errf(jsonrpc.CodeServer, "%v: try again later", err)
	case errors.Is(err, session.ErrClosing), errors.Is(err, session.ErrNotDelivered), errors.Is(err, session.ErrMoved),
		errors.Is(err, placement.ErrUnreached), errors.Is(err, placement.ErrLeaving), errors.Is(err, stream.ErrConflict):
		return http.StatusServiceUnavailable, errf(jsonrpc.CodeServer, "%v: try again later", err)
	case errors.Is(err, stream.ErrTooLarge):
		return http.StatusRequestEntityTooLarge, errf(codeInvalid, "%v", stream.ErrTooLarge)
	case errors.Is(err, backend.ErrNoServer):
		return http.StatusBadRequest, errf(codeInvalid, "%v", err)
	case errors.Is(err, session.ErrRefused) && errors.Is(err, context.Canceled):
		// The client did not wait, or said with a FIN that it has no more to say, which
		// net/http takes for the same.
		a.logger.Debug("session not opened", "error", err)
		return http.StatusServiceUnavailable, errf(jsonrpc.CodeServer, "the connection ended while the server was being started: try again")
	case errors.As(err, &notStarted): // and was logged
		return http.StatusBadGateway, errf(jsonrpc.CodeServer, "%v", notStarted)
	case errors.Is(err, session.ErrRefused):
		level := slog.LevelError
		if errors.As(err, &ended) && ended.NothingBegan() && !errors.As(err, &silent) {
			level = slog.LevelDebug // its end has a line
		}
		a.logger.Log(context.Background(), level, "session not opened", "error", err)
		return http.StatusBadGateway, errf(jsonrpc.CodeServer, "%v", err)
	case errors.Is(err, ticket.ErrBadEvent):
		return http.StatusBadRequest, errf(jsonrpc.CodeInvalidParams,
			"%v: resume with an id that was received in this session", err)
	case errors.Is(err, resume.ErrBadToken):
		return http.StatusOK, errf(jsonrpc.CodeInvalidParams,
			"%v: the token is not its own, or what became of it is no longer kept", err)
	case errors.Is(err, stream.ErrTrimmed), errors.Is(err, stream.ErrNotFound):
		return http.StatusGone, errf(protocol.CodeOutcomeUnknown,
			"outcome unknown: %v; they were dropped after the time or the size they are kept for", stream.ErrTrimmed)
	}
	if text := session.StoreErrorText(err); text != "" {
		if !errors.Is(err, stream.ErrFull) && !errors.Is(err, stream.ErrTooLarge) {
			a.outage.Refused()
		}
		a.logger.Warn("request not served", "error", err)
		return http.StatusServiceUnavailable, errf(jsonrpc.CodeServer, "%s: try again later", text)
	}
	if errors.Is(err, context.Canceled) { // its client has left, or all is about to end
		a.logger.Debug("request not served", "error", err)
		return http.StatusServiceUnavailable, errf(jsonrpc.CodeServer, "%v: try again later", session.ErrClosing)
	}
	a.logger.Error("request failed", "error", err)
	return http.StatusInternalServerError, errf(jsonrpc.CodeInternal, "internal error: %v", err)
}

var (
	typeJSON   = []string{"application/json"}
	typeSSE    = []string{sse.ContentType}
	noCache    = []string{"no-cache, no-transform"}
	unbuffered = []string{"no"}
)

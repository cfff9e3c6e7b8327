package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"holdfast/internal/placement"
	"holdfast/internal/server/copying"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows answers stored calls with plain JSON ([ResponseJSON]): the call is on
// record before it runs, and its answer is stored before it is sent.

// plain answers a POST with the responses of a stored call, as soon as it has ended; or
// with its stream, if that has anything else in it that the client takes. An error says that nothing was
// answered.
func (h *Handler) plain(w http.ResponseWriter, x *exchange.Exchange, o *outcome) error {
	r := x.HTTP
	c := h.responses.To(w, x, o.Session)
	c.Call = o.Call
	err := c.Read(r.Context(), o.beginning())
	switch {
	case err == nil:
	case o.kind == outcomeLight:
		return h.unreadable(w, x, o.Call, err)
	case o.Call != nil:
		return h.undelivered(w, o.Call, x.Msgs, err)
	case o.kind == outcomeStream && errors.Is(err, io.EOF):
		w.WriteHeader(http.StatusNoContent) // all was said
		return nil
	default:
		return err
	}
	if o.kind != outcomeLight { // else its messages are delivered
		o.Deliver(x.Values(), x.Msgs, r.Header)
		confirmDelivery(w, x)
	}
	err = c.Respond(r.Context(), x, o.Call)
	switch {
	case errors.Is(err, copying.ErrNotPlain):
		c.Link()
		if err = c.Open(nil); err == nil {
			err = c.Copy(r.Context())
		}
		c.Close(err)
		return nil
	case err == nil, c.IsRead(), r.Context().Err() != nil:
		c.Detach(err)
		return nil
	}
	c.Detach(nil)
	return h.interrupted(w, x, o, err)
}

// interrupted answers a POST whose call can't be read to its end here: as a rule its
// session has left this node. Whoever sent the POST on asks for the call, by the name
// that it has, where the session is now.
func (h *Handler) interrupted(w http.ResponseWriter, x *exchange.Exchange, o *outcome, err error) error {
	switch moved := errors.Is(err, session.ErrMoved); {
	case moved && x.From != nil:
		panic(http.ErrAbortHandler)
	case moved && (x.Once.Name != "" || o.Call != nil && o.Call.Retriable()):
		return session.ErrMoved
	}
	h.logger.Warn("call not read to its end", "session", o.Session.Name(), "error", err)
	h.answers.FailMessages(w, fmt.Errorf("%w: %w", placement.ErrUnknown, err), x.Msgs, x.Batch)
	return nil
}

// undelivered ends a call that has begun, and whose stream can't be read: it does not
// run. The error says that nothing was answered.
func (h *Handler) undelivered(w http.ResponseWriter, call *session.Call, msgs []jsonrpc.Message, err error) error {
	call.Abort(msgs, errf(jsonrpc.CodeServer, "not delivered: its stream cannot be read: %v", err))
	if errors.Is(err, session.ErrMoved) {
		return err
	}
	h.answers.Fail(w, err)
	return nil
}

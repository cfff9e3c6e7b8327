package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// decodePost decodes a POST of messages (2025-11-25, Transports, "Sending Messages to the
// Server"). If it is false the request was answered.
func (h *Handler) decodePost(w http.ResponseWriter, x *exchange) bool {
	if !h.readPost(w, x) {
		return false
	}
	ofModern := isModern(x)
	if !h.bodies.admits(w, x, ofModern) {
		return false
	}
	if ofModern {
		x.principal = h.callers.principal(x.r)
		return h.decodeModern(w, x)
	}
	if h.opts.Eras.refusesLegacy() && x.from == nil {
		h.answers.rejectLegacy(w, x)
		return false
	}
	if !h.identify(w, x) {
		return false
	}
	var err error
	switch {
	case h.opts.Stateless:
		return h.decodeStateless(w, x)
	case !x.batch && (h.ours(&x.msgs[0]) || x.from != nil && isBetweenNodes(x.msgs[0].Method)):
		x.purpose = forRequest
	case requests(x.msgs) == 0:
		x.purpose = forMessages
		return h.roamed(w, x)
	case initializes(x.msgs) && x.secret == "" && x.r.Header[protocol.HeaderSession] == nil:
		x.purpose = forSession
		err = checkMessages(x.msgs, x.batch, stageNew, "")
	default:
		x.purpose = forMessages
	}
	if err != nil {
		h.answers.fail(w, err)
	}
	return err == nil
}

// requests returns how many of the messages are requests.
func requests(msgs []jsonrpc.Message) (n int) {
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			n++
		}
	}
	return n
}

// startMessages begins to serve what was POSTed to a session.
func (h *Handler) startMessages(x *exchange, o *outcome) (err error) {
	revision := ""
	if x.batch {
		revision = x.session.Revision()
	}
	if err := checkMessages(x.msgs, x.batch, stageOpen, revision); err != nil {
		return err
	}
	if requests(x.msgs) == 0 {
		o.kind = outcomeAccepted
		return h.send(x)
	}
	if x.once.key, err = keyOf(x.r, x.msgs); err != nil {
		return errf(codeInvalid, "%v", err)
	}
	if len(x.msgs) == 1 {
		var defers bool
		if x.session, defers, err = x.session.Home(&x.msgs[0]); err != nil {
			return err
		}
		if defers {
			return h.startAnswered(x, o)
		}
	}
	return h.startCall(x, o)
}

// startCall begins the call of the requests of an exchange, or finds the one that they
// have begun before.
func (h *Handler) startCall(x *exchange, o *outcome) (err error) {
	light := x.once.key == "" && h.starter.light(x.r.Context(), x.r.Header, x.session, x.msgs)
	from := h.starter.origin(x)
	from.Guest = x.guest(h.sessions)
	o.begun, err = begin(x.session, x.msgs, light, x.once, from)
	for tries := 3; errors.Is(err, session.ErrDuplicate); tries-- {
		var ended bool
		switch o.begun, ended, err = h.starter.attach(x, from.Guest, err); {
		case ended && tries > 0:
			from.Pass, from.Admitted = nil, false // it was given back
			o.begun, err = begin(x.session, x.msgs, light, x.once, from)
		case err != nil:
			return err
		}
	}
	if err != nil {
		if o.begun, err = h.starter.beginInTurn(x, x.msgs, light, err); err != nil {
			return err
		}
	}
	switch {
	case o.number == 0:
		o.kind = outcomeLight
	case h.opts.Response == ResponseJSON && x.once.key == "" && x.form != onlyEvents:
		o.kind = outcomeJSON
	case o.call != nil:
		o.kind = outcomeCall
	default: // it was begun before: after the event that the client has last seen, or from the oldest that is kept
		o.kind = outcomeStream
		o.at, err = cursorAfter(x.r.Context(), o.session, o.number, x.last)
	}
	return err
}

// accepted answers notifications and responses that were handed over, which have no answer.
func (a *answerer) accepted(w http.ResponseWriter, x *exchange) {
	w.WriteHeader(http.StatusAccepted)
	if x.purpose != forPairMessages {
		return
	}
	if _, err := io.WriteString(w, "Accepted"); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		a.logger.Debug("202 not written", "error", err)
	}
}

// send hands over notifications and responses. A response that the backend does
// not take now has to be sent again, and so has all that comes to a session which
// is no longer here, or whose backend cannot be opened for now: that is an error.
func (h *Handler) send(x *exchange) error {
	ctx := x.values()
	if guest := x.guest(h.sessions); guest != "" {
		x.session.CancelGuest(guest, jsonrpc.Field(x.msgs[0].Params, "requestId"))
		return nil
	}
	for i := range x.msgs {
		err := x.session.Send(ctx, x.msgs[i], x.r.Header)
		if errors.Is(err, session.ErrNotDelivered) || errors.Is(err, session.ErrMoved) || errors.Is(err, session.ErrBusy) {
			return err
		}
		if x.mayBeGuest(h.sessions) && placement.IsElsewhere(err) { // that of a request which waits elsewhere
			return err
		}
		if err != nil {
			h.logger.Warn("message not delivered", "session", x.session.Name(), "method", x.msgs[i].Method, "error", err)
		}
	}
	return nil
}

// answerLight answers requests whose call is light with JSON, unless it is stored before
// it ends: then its stream is the answer.
//
//go:noinline
func (h *Handler) answerLight(w http.ResponseWriter, x *exchange, o *outcome) (stored bool, err error) {
	defer o.call.Answered()
	o.deliver(x.values(), x.msgs, x.r.Header)
	x.confirmDelivery(w)
	after := h.opts.UpgradeAfter
	if h.opts.Response == ResponseJSON || h.opts.Stateless {
		after = 0
	}
	ctx, attended := x.r.Context(), func() {}
	if after == 0 && x.from != nil && x.once.name != "" { // it may take long
		ctx, attended = h.nodes.WatchRequest(ctx, x.once.name)
	}
	answers, done := o.call.Wait(ctx, after)
	left := ctx.Err() != nil
	attended()
	switch {
	case o.call.Retriable():
		return false, session.ErrMoved // and it may be made again there
	case done && o.call.Refusal() != nil:
		return false, o.call.Refusal()
	case done:
		if o.call.Method() == "initialize" {
			if revision := o.session.Revision(); revision != "" {
				w.Header()[protocol.HeaderVersion] = []string{revision}
			} else if err := o.session.Refusal(); err != nil {
				return false, err
			} else {
				w.Header().Del(protocol.HeaderSession) // it failed, and its session ends
			}
		}
		_ = h.answers.answer(w, x.form, answers, x.batch) // what is lost on the way can be had only by asking again
		return false, nil
	case left:
		o.call.ConnectionLost()
		return false, nil
	}
	return true, nil
}

// cancelsKeyed reports whether a message is a notifications/cancelled that comes with an
// idempotency key.
func cancelsKeyed(msg *jsonrpc.Message, header http.Header) bool {
	return msg.Kind == jsonrpc.Notification && msg.Method == protocol.MethodCancelled &&
		(header[protocol.HeaderIdempotencyKey] != nil || jsonrpc.Field(msg.Params, "_meta", protocol.MetaIdempotencyKey) != nil)
}

// keyOf returns the idempotency key of a POST, "" if it has none: the header's,
// else that of its one message.
func keyOf(r *http.Request, msgs []jsonrpc.Message) (string, error) {
	switch header := r.Header[protocol.HeaderIdempotencyKey]; {
	case len(header) > 1:
		return "", fmt.Errorf("%s stands there twice", protocol.HeaderIdempotencyKey)
	case len(header) == 1:
		return protocol.IdempotencyKey(header[0])
	case len(msgs) > 1:
		return "", nil
	}
	return messageKey(&msgs[0])
}

// messageKey returns the idempotency key that a message itself carries, or "".
func messageKey(m *jsonrpc.Message) (string, error) {
	if !bytes.Contains(m.Params, []byte("idempotencyKey")) { // as nearly always
		return "", nil
	}
	raw := jsonrpc.Field(m.Params, "_meta", protocol.MetaIdempotencyKey)
	if raw == nil {
		return "", nil
	}
	key := jsonrpc.String(raw)
	return key, protocol.CheckKey(key)
}

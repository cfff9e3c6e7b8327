package server

import (
	"context"
	"errors"
	"io"
	"net/http"

	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// decodePost decodes a POST of messages (2025-11-25, Transports, "Sending Messages to the
// Server"). If it returns false, the request was answered.
func (h *Handler) decodePost(w http.ResponseWriter, x *exchange.Exchange) bool {
	if !h.readPost(w, x) {
		return false
	}
	ofModern := modernfront.IsModern(x)
	if !h.bodies.admits(w, x, ofModern) {
		return false
	}
	if ofModern {
		x.Principal = h.callers.principal(x.HTTP)
		return h.modern.Decode(w, x)
	}
	if h.opts.Eras.RefusesLegacy() && x.From == nil {
		h.modern.RejectLegacy(w, x)
		return false
	}
	if !h.identify(w, x) {
		return false
	}
	var err error
	switch {
	case h.opts.Stateless:
		return h.decodeStateless(w, x)
	case !x.Batch && (x.Msgs[0].Kind == jsonrpc.Request && protocol.Resumes(x.Msgs[0].Method) || x.From != nil && exchange.IsBetweenNodes(x.Msgs[0].Method)):
		x.Purpose = exchange.ForRequest
	case exchange.Requests(x.Msgs) == 0:
		x.Purpose = exchange.ForMessages
		return h.roamed(w, x)
	case exchange.Initializes(x.Msgs) && x.Secret == "" && x.HTTP.Header[protocol.HeaderSession] == nil:
		x.Purpose = exchange.ForSession
		err = exchange.Check(x.Msgs, x.Batch, exchange.StageNew, "")
	default:
		x.Purpose = exchange.ForMessages
	}
	if err != nil {
		h.answers.Fail(w, err)
	}
	return err == nil
}

// serveModern serves a request of revision 2026-07-28 from a connection that carries many exchanges.
func (h *Handler) serveModern(to *placement.Answer, x *exchange.Exchange) {
	if h.bodies.admits(to, x, true) && h.modern.Decode(to, x) {
		h.serve(to, x)
	}
}

// startMessages begins to serve messages that were POSTed to a session.
func (h *Handler) startMessages(x *exchange.Exchange, o *outcome) (err error) {
	revision := ""
	if x.Batch {
		revision = x.Session.Revision()
	}
	if err := exchange.Check(x.Msgs, x.Batch, exchange.StageOpen, revision); err != nil {
		return err
	}
	if exchange.Requests(x.Msgs) == 0 {
		o.kind = outcomeAccepted
		return h.send(x)
	}
	if x.Once.Key, err = exchange.KeyOf(x.HTTP, x.Msgs); err != nil {
		return errf(codeInvalid, "%v", err)
	}
	if len(x.Msgs) == 1 {
		var defers bool
		if x.Session, defers, err = x.Session.Home(x.HTTP.Context(), &x.Msgs[0], x.HTTP.Header); err != nil {
			return err
		}
		if defers {
			return h.startAnswered(x, o)
		}
	}
	return h.startCall(x, o)
}

// startCall begins a call for the requests of an exchange, or finds the call that they have begun before.
func (h *Handler) startCall(x *exchange.Exchange, o *outcome) (err error) {
	light := x.Once.Key == "" && h.light(x.HTTP.Context(), x.HTTP.Header, x.Session, x.Msgs)
	from := h.starter.Origin(x)
	from.Guest = x.Guest(h.sessions)
	o.Begun, err = exchange.Begin(x.Session, x.Msgs, light, x.Once, from)
	for tries := 3; errors.Is(err, session.ErrDuplicate); tries-- {
		var ended bool
		switch o.Begun, ended, err = h.starter.Attach(x, from.Guest, err); {
		case ended && tries > 0:
			from.Pass, from.Admitted = nil, false // Begin has released it
			o.Begun, err = exchange.Begin(x.Session, x.Msgs, light, x.Once, from)
		case err != nil:
			return err
		}
	}
	if err != nil {
		if o.Begun, err = h.starter.BeginInTurn(x, x.Msgs, light, err); err != nil {
			return err
		}
	}
	switch {
	case o.Number == 0:
		o.kind = outcomeLight
	case h.opts.Response == ResponseJSON && x.Once.Key == "" && x.Form != answering.OnlyEvents:
		o.kind = outcomeJSON
	case o.Call != nil:
		o.kind = outcomeCall
	default: // the call was begun before: from the client's last event, or from the oldest that is kept
		o.kind = outcomeStream
		o.at, err = streaming.CursorAfter(x.HTTP.Context(), o.Session, o.Number, x.Last)
	}
	return err
}

// startAnswered begins a call that goes on after its request was answered, or finds the call that the same request has begun before. Such
// a call is an experimental task of revision 2025-11-25 (package legacytask), which package session knows as a service.
func (h *Handler) startAnswered(x *exchange.Exchange, o *outcome) (err error) {
	if o.Begun, err = h.starter.Start(x, x.Msgs, false); err != nil {
		return err
	}
	o.kind = outcomeBegun
	o.body = o.Session.Deferral(x.HTTP.Context(), o.Number, &x.Msgs[0])
	return nil
}

// light reports whether the call of msgs starts light. Where other nodes may take the session
// over, a call that is not safe to repeat never does, whatever the form of the answer.
func (h *Handler) light(ctx context.Context, header http.Header, s *session.Session, msgs []jsonrpc.Message) bool {
	switch {
	case h.opts.Response == ResponseJSON && !h.sessions.Shared(), h.opts.Stateless:
		return true
	case h.opts.Response == ResponseSSE:
		return false
	}
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request && !s.Tools.Light(ctx, &msgs[i], header) {
			return false
		}
	}
	return true
}

// accepted answers a POST of notifications and responses with 202.
func (h *Handler) accepted(w http.ResponseWriter, x *exchange.Exchange) {
	w.WriteHeader(http.StatusAccepted)
	if x.Purpose != exchange.ForPairMessages {
		return
	}
	if _, err := io.WriteString(w, "Accepted"); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		h.logger.Debug("202 not written", "error", err)
	}
}

// send hands notifications and responses to the session. A response that the backend does not take now is handed over in the
// background, as not all clients send it again. An error says that the client has to send them again: there was no room for that and the
// backend did not take the response in time, the backend cannot be opened now, or the session is no longer here.
func (h *Handler) send(x *exchange.Exchange) error {
	if guest := x.Guest(h.sessions); guest != "" {
		x.Session.CancelGuest(guest, jsonrpc.Field(x.Msgs[0].Params, "requestId"))
		return nil
	}
	for i := range x.Msgs {
		err := h.handOver(x, &x.Msgs[i])
		if errors.Is(err, session.ErrNotDelivered) || errors.Is(err, session.ErrMoved) || errors.Is(err, session.ErrBusy) {
			return err
		}
		if x.MayBeGuest(h.sessions) && placement.IsElsewhere(err) { // the request that waits for it is on another node
			return err
		}
		h.notHandedOver(x.Session, x.Msgs[i].Method, err)
	}
	return nil
}

// handOver hands a notification or a response to the session, in the background if need be: [exchange.Untaken.Send].
func (h *Handler) handOver(x *exchange.Exchange, msg *jsonrpc.Message) error {
	s, method := x.Session, msg.Method
	return h.untaken.Send(x.Values(), s, *msg, x, func(err error) { h.notHandedOver(s, method, err) })
}

// notHandedOver logs why a message was not delivered; nil: it was.
func (h *Handler) notHandedOver(s *session.Session, method string, err error) {
	if err != nil {
		h.logger.Warn("message not delivered", "session", s.Name(), "method", method, "error", err)
	}
}

// answerLight answers the requests of a light call with JSON, unless the call is stored before it ends: then its stream is the answer.
//
//go:noinline
func (h *Handler) answerLight(w http.ResponseWriter, x *exchange.Exchange, o *outcome) (stored bool, err error) {
	defer o.Call.Answered()
	o.Deliver(x.Values(), x.Msgs, x.HTTP.Header)
	confirmDelivery(w, x)
	after := h.opts.UpgradeAfter
	if h.opts.Response == ResponseJSON || h.opts.Stateless {
		after = 0
	}
	ctx, attended := x.HTTP.Context(), func() {}
	if after == 0 && x.From != nil && x.Once.Name != "" { // the call may take long, so the client's own node is watched
		ctx, attended = h.nodes.WatchRequest(ctx, x.Once.Name)
	}
	answers, done := o.Call.Wait(ctx, after)
	left := ctx.Err() != nil
	attended()
	switch {
	case o.Call.Retriable():
		return false, session.ErrMoved // the session's new node may make the call again
	case done && o.Call.Refusal() != nil:
		return false, o.Call.Refusal()
	case done:
		if o.Call.Method() == "initialize" {
			if revision := o.Session.Revision(); revision != "" {
				w.Header()[protocol.HeaderVersion] = []string{revision}
			} else if err := o.Session.Refusal(); err != nil {
				return false, err
			} else {
				w.Header().Del(protocol.HeaderSession) // initialize failed, and its session ends
			}
		}
		_ = h.answers.Answer(w, x.Form, answers, x.Batch) // after an error the client can only make the request again
		return false, nil
	case left:
		o.Call.ConnectionLost()
		return false, nil
	}
	return true, nil
}

// confirmDelivery tells the node that forwarded a request, with status 102, that the request was delivered. It does so if the client's
// connection carries many exchanges.
//
//go:noinline
func confirmDelivery(w http.ResponseWriter, x *exchange.Exchange) {
	if x.From != nil && x.From.Stays {
		w.WriteHeader(http.StatusProcessing)
	}
}

const codeInvalid = jsonrpc.CodeInvalidRequest

func errf(code int, format string, args ...any) *jsonrpc.Error {
	return jsonrpc.Errorf(code, format, args...)
}

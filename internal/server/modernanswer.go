package server

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows answers requests of revision 2026-07-28: with JSON if nothing comes before
// the response and that comes soon, else with a stream of events. The stream has no event ids,
// because it cannot be resumed.

// serveModern serves a modern request. An error says that nothing was answered, and that it
// may be placed elsewhere.
//
//go:noinline
func (h *Handler) serveModern(w http.ResponseWriter, of *exchange) (err error) {
	for _, f := range h.features {
		if result, ours, err := f.Serve(&of.modern.Request, &of.msgs[0]); ours {
			return h.answerOwn(w, of, result, err)
		}
	}
	y := struct { // a reply keeps it
		exchange
		msgs [1]jsonrpc.Message // which get other ids; if it is placed elsewhere they keep theirs
	}{*of, [1]jsonrpc.Message(of.msgs)}
	x, m := &y.exchange, &y.msgs[0]
	x.msgs = y.msgs[:]
	switch {
	case m.Kind == jsonrpc.Notification:
		return h.cancelModern(w, x)
	case m.Method == protocol.MethodResume && !h.opts.Stateless:
		return h.resumeModern(w, x)
	case isWaitingState(m):
		return h.continueModern(w, x)
	}
	if x.once.key, err = keyOf(x.r, x.msgs); err != nil {
		return errf(codeInvalid, "%v", err)
	}
	if err := h.movedModern(x); err != nil {
		return err
	}
	if x.isListen() {
		x.once.key = "" // which nobody could come back to
	}
	if h.life.TakesNothing() && (x.once.key == "" || !h.sessions.BegunOnce(x.client(h.sessions), x.once.key)) {
		return h.life.NotHere()
	}
	var listen modern.Listen
	for i := 0; i < len(h.features) && listen == nil && m.Method == protocol.MethodSubscriptions; i++ {
		if listen, err = h.features[i].Listen(&x.modern.Request, m, h.again(x)); err != nil {
			return err
		}
	}
	defer func() { x.once.pass.Release() }() // what the call has not taken
	if err = h.findCarrier(x); err != nil {
		return err
	}
	defer x.session.Release()
	if listen != nil {
		return h.listenModern(w, x, listen)
	}
	return h.callModern(w, x, of.msgs)
}

// answerOwn answers a request that a feature has served. An error says that nothing was answered.
func (h *Handler) answerOwn(w http.ResponseWriter, x *exchange, result []byte, err error) error {
	var known *jsonrpc.Error
	switch {
	case errors.As(err, &known), errors.Is(err, session.ErrNotFound):
		h.failModern(w, x, err)
	case err != nil:
		return err
	default:
		response := make([]byte, 0, len(result)+len(x.modern.ID)+40)
		h.writeModern(w, x, jsonrpc.AppendResult(response, x.modern.ID, result))
	}
	return nil
}

// again serves requests in the place of an exchange, as ours; nil: there is no other node that they may be served on.
func (h *Handler) again(x *exchange) modern.Again {
	if x.from != nil || x.modern.follows {
		return nil
	}
	of := *x
	of.session, of.msgs = nil, nil
	return func(ctx context.Context, w http.ResponseWriter, m jsonrpc.Message) {
		y, own := of, *of.modern
		own.ID, own.follows = m.ID, true
		y.modern, y.msgs, y.r = &own, []jsonrpc.Message{m}, of.r.WithContext(ctx)
		h.serve(w, &y)
	}
}

// callModern begins the call of a modern request in its carrier, and answers it. came is the
// request as it came.
func (h *Handler) callModern(w http.ResponseWriter, x *exchange, came []jsonrpc.Message) error {
	s := x.session
	if !h.checkParams(w, x) {
		return nil
	}
	if x.once.key == "" && !x.modern.resumes && x.r.Context().Err() != nil {
		return nil // its client has left, which cancels it, before it has begun
	}
	id := s.NextID()
	x.msgs[0].Raw = x.msgs[0].WithID(id)
	x.msgs[0].ID = id
	b, err := h.starter.beginModern(x, h.starter.origin(x))
	if err != nil {
		if b, err = h.starter.beginModernInTurn(x, err); err != nil {
			return err
		}
	}
	began := time.Now()
	resumes := b.number != 0 && x.modern.resumes
	if !resumes {
		b.deliver(x.values(), x.msgs, x.r.Header)
	}
	if b.call != nil && b.number == 0 {
		if h.waitLight(w, x, b.call) {
			return nil
		}
		b.number = b.call.Number()
	}
	p := h.newReply(w, x, b.session, b.call)
	if b.call == nil {
		p.door = observe.DoorKey
	}
	if resumes {
		if err := p.begins(x.r.Context(), &b, x.msgs); err != nil {
			return err
		}
	}
	p.began = began
	x.modern.sum = modern.SumOf(&x.msgs[0])
	if !h.sessions.Shared() && p.early == nil { // else a note may need them yet, or a feature
		clear(x.msgs) // the call may last for long, and must not hold the body
	}
	clear(came)
	return p.answer(x.r.Context(), b.number, 0)
}

// checkParams checks the headers that repeat arguments: those of a POST. If it is false the request was answered.
func (h *Handler) checkParams(w http.ResponseWriter, x *exchange) bool {
	if x.muxed || x.from != nil && x.from.Stays {
		return true
	}
	err := x.session.Tools.CheckHeaders(x.r.Context(), &x.msgs[0], x.r.Header)
	if err != nil {
		h.rejectModern(w, x, http.StatusBadRequest, errf(protocol.CodeHeaderMismatch, "%v", err))
	}
	return err == nil
}

// waitLight waits for a call to be answered while it is light, and reports whether the
// client was answered, or has left. If not, the call has a stream.
func (h *Handler) waitLight(w http.ResponseWriter, x *exchange, call *session.Call) (done bool) {
	ctx, wait, over := x.r.Context(), h.sessions.Waiter(h.cuts.patience(x)), false
	defer func() { wait.Stop(over) }() // else it may be told yet
	defer call.Answered()
	call.Notify(wait.Ready)
	<-wait.Ready // of what has happened before
	for {
		answers, ended, number := call.Answers()
		switch {
		case ended:
			over = true
			if ctx.Err() != nil && x.method() == protocol.MethodCallTool {
				call.ConnectionLost() // nobody hears it
				return true
			}
			h.answerModern(w, x, call, answers)
			return true
		case number != 0:
			return false
		}
		select {
		case <-wait.Ready:
		case <-wait.Late:
			call.Promote()
		case <-ctx.Done():
			h.cuts.cut(x, call)
			return true
		}
	}
}

// answerModern answers a modern request whose call has ended while it was light.
func (h *Handler) answerModern(w http.ResponseWriter, x *exchange, call *session.Call, answers [][]byte) {
	if err := call.Refusal(); err != nil {
		h.failModern(w, x, err)
		return
	}
	if len(answers) == 0 {
		h.writeModern(w, x, answering.Error(x.modern.ID, answering.ErrCancelled))
		return
	}
	h.writeModern(w, x, x.own(answers[0]))
}

// patience is how long a call stays light: until its client has to hear something.
func (c *cuts) patience(x *exchange) time.Duration {
	after := c.opensAfter()
	if f, early := c.features.first(&x.modern.Request); f != nil && (after <= 0 || after > early) {
		return early
	}
	return after
}

// writeModern answers a modern request with one message: as JSON, or as the only event of a
// stream. An error that has a status of its own is JSON.
func (h *Handler) writeModern(w http.ResponseWriter, x *exchange, message []byte) {
	status := x.statusOf(message)
	switch {
	case status != http.StatusOK:
		h.answers.RejectAs(w, status, message)
	case h.opts.Response == ResponseSSE && x.form == answering.AnyForm:
		_ = h.answers.Answer(w, answering.OnlyEvents, [][]byte{message}, false) // who has gone does not hear it
	default:
		_ = h.answers.Answer(w, x.form, [][]byte{message}, false)
	}
}

// rejectModern answers a modern request with an error. Unlike older revisions this one knows
// no id that is null.
func (h *Handler) rejectModern(w http.ResponseWriter, x *exchange, status int, e *jsonrpc.Error) {
	h.answers.TellRefused(w, status, e)
	h.answers.RejectAs(w, status, answering.Error(x.modern.ID, e))
}

// failModern answers a modern request with what an error means.
func (h *Handler) failModern(w http.ResponseWriter, x *exchange, err error) {
	var refused *protocol.Unauthorized
	if errors.As(err, &refused) && len(refused.Challenge) > 0 {
		w.Header()["Www-Authenticate"] = refused.Challenge
	}
	status, e := h.answers.Explain(err)
	for _, f := range x.modern.features {
		if no := f.NotFound(x.msgs[0].Method); no != nil && errors.Is(err, session.ErrNotFound) {
			status, e = http.StatusOK, no
		}
	}
	if status == http.StatusTooManyRequests {
		limited := *e
		limited.Code = protocol.CodeRateLimited
		e = &limited
	}
	answering.SetRetryAfter(w, status, err)
	h.answers.TellRefused(w, status, err)
	h.answers.RejectAs(w, status, answering.Error(x.modern.ID, e))
}

// own returns a response with the client's id in the place of ours. A listen's
// response names the id in its _meta too.
func (x *exchange) own(response []byte) []byte {
	id := x.modern.ID
	switch x.method() {
	case protocol.MethodSubscriptions:
		if jsonrpc.Field(response, "result", "_meta", protocol.MetaSubscriptionID) != nil {
			response = x.subscribed(response, "result")
		}
	case protocol.MethodDiscover:
		response = x.modern.discovered(response)
	default:
		response = x.modern.features.own(&x.modern.Request, response)
	}
	// As a rule the response begins as ours do, and has the id there.
	if rest, ok := bytes.CutPrefix(response, []byte(openingID)); ok {
		if n := bytes.IndexByte(rest, ','); n > 0 && rest[0] >= '0' && rest[0] <= '9' {
			own := make([]byte, 0, len(response)+len(id))
			return append(append(append(own, openingID...), id...), rest[n:]...)
		}
	}
	response, _ = jsonrpc.Set(response, id, "id")
	return response
}

// openingID is how our responses begin, and most of others.
const openingID = `{"jsonrpc":"2.0","id":`

// isListen reports whether the request is a subscriptions/listen.
func (x *exchange) isListen() bool { return x.method() == protocol.MethodSubscriptions }

// method returns the method of a modern request, which its header repeats.
func (x *exchange) method() string {
	if m := x.r.Header[protocol.HeaderMethod]; len(m) > 0 {
		return m[0]
	}
	return ""
}

// subscribed has a message of a listen name the subscription by the client's id, in its params or its result. Each
// notification of a listen does so (2026-07-28, Subscriptions), whatever its server has forgotten.
func (x *exchange) subscribed(message []byte, of string) []byte {
	message, _ = jsonrpc.Set(message, x.modern.ID, of, "_meta", protocol.MetaSubscriptionID)
	return message
}

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows answers stored calls with plain JSON ([ResponseJSON]): the call is on
// record before it runs, and its answer is stored before it is sent.

// errNotPlain says that the stream of a call can't be answered with JSON: it holds more
// than responses, or the connection is to be ended before it ends.
var errNotPlain = errors.New("the call needs a stream")

// A plain is the sink of a stream that is answered with JSON: it gathers the responses
// in it, and writes them at its end.
type plain struct {
	*events
	of      *http.Request
	form    answering.Form
	batch   bool
	answers [][]byte
	more    bool          // the stream holds more than responses
	asked   [][]byte      // the ids of requests of the backend that the client will not get
	call    *session.Call // nil if it was begun before
}

// isAll reports whether responses are all that the client takes.
func (p *plain) isAll() bool { return p.form == answering.OnlyJSON }

// plain answers a POST with the responses of a stored call, as soon as it has ended; or
// with its stream, if that has anything else in it that the client takes. An error says that nothing was
// answered.
func (h *Handler) plain(w http.ResponseWriter, x *exchange, o *outcome) error {
	r := x.r
	c := h.newConn(w, x, o.session)
	c.call = o.call
	err := c.read(r.Context(), o.beginning())
	switch {
	case err == nil:
	case o.kind == outcomeLight:
		return h.unreadable(w, x, o.call, err)
	case o.call != nil:
		return h.undelivered(w, o.call, x.msgs, err)
	case o.kind == outcomeStream && errors.Is(err, io.EOF):
		w.WriteHeader(http.StatusNoContent) // all was said
		return nil
	default:
		return err
	}
	if o.kind != outcomeLight { // else its messages are delivered
		o.deliver(x.values(), x.msgs, r.Header)
		x.confirmDelivery(w)
	}
	err = c.respond(r.Context(), x, o.call)
	switch {
	case errors.Is(err, errNotPlain):
		c.link()
		if err = c.open(nil); err == nil {
			err = c.copy(r.Context())
		}
		c.close(err)
		return nil
	case err == nil, c.state >= last, r.Context().Err() != nil:
		c.detach(err)
		return nil
	}
	c.detach(nil)
	return h.interrupted(w, x, o, err)
}

// respond waits for the end of the stream, and answers with the responses in it. After
// errNotPlain the stream is where it was before.
func (c *events) respond(ctx context.Context, x *exchange, call *session.Call) error {
	begin := c.r.Cursor()
	p := &plain{events: c, of: x.r, form: x.form, batch: x.batch, call: call}
	c.sink = p
	err := c.run(ctx)
	if p.isAll() {
		return err
	}
	if p.more || errors.Is(err, errSuperseded) || errors.Is(err, errNotPlain) {
		c.r.Rewind(stream.Entry{Seq: begin.Seq, Epoch: begin.Epoch})
		c.state, c.sink = attached, c
		return errNotPlain
	}
	return err
}

// append implements [sink].
func (p *plain) append(text, _, data []byte) []byte {
	switch {
	case isResponse(data):
		p.answers = append(p.answers, data)
	case jsonrpc.String(jsonrpc.Field(data, "method")) == protocol.MethodResumePolicy: // of no use with an answer
	case p.isAll():
		if id := jsonrpc.Field(data, "id"); id != nil {
			p.asked = append(p.asked, bytes.Clone(id))
		}
	default:
		p.more = true
	}
	return text
}

// write implements [sink]. If the client had left before all was written, it was not:
// then the error says so.
func (p *plain) write(_ []byte, last bool) error {
	p.refuseAsked()
	switch {
	case p.more:
		return errNotPlain
	case !last && p.isAll() && len(p.answers) == 0:
		return nil // what was read is not for the client, and no backend is to wait until it is
	case !last:
		return errHeld
	}
	if p.call != nil && p.call.Refusal() != nil {
		p.h.answers.Fail(p.w, p.call.Refusal())
	} else if err := p.h.answers.Answer(p.w, p.form, p.answers, p.batch); err != nil {
		return err
	}
	if p.gone() || p.via.isSeen() && p.h.nodes.HasLeft(p.from, p.opened) {
		return errLeft
	}
	return nil
}

// errNotAsked is what a backend gets that asks a client which takes only JSON.
var errNotAsked = errf(codeInvalid, "the client takes only application/json, so that it cannot be asked in a call: "+
	"it has to send Accept: "+usualAccept)

// refuseAsked answers requests of the backend that the client will not get.
func (p *plain) refuseAsked() {
	for _, id := range p.asked {
		m, err := jsonrpc.Parse(jsonrpc.AppendError(nil, id, errNotAsked))
		if err == nil {
			err = p.s.Send(context.WithoutCancel(p.of.Context()), m, p.of.Header)
		}
		if err != nil {
			p.h.logger.Warn("request of the server not refused", "session", p.s.Name(), "error", err)
		}
	}
	p.asked = nil
}

// idle implements [sink].
func (p *plain) idle(context.Context, time.Time) (time.Time, error) {
	if p.r.HasDisconnectRequest() && !p.isAll() {
		return time.Time{}, errNotPlain
	}
	return time.Time{}, nil
}

// isResponse reports whether a message is the response to a request.
func isResponse(data []byte) bool {
	return jsonrpc.Field(data, "id") != nil && jsonrpc.Field(data, "method") == nil
}

// interrupted answers a POST whose call can't be read to its end here: as a rule its
// session has left this node. Whoever sent the POST on asks for the call, by the name
// that it has, where the session is now.
func (h *Handler) interrupted(w http.ResponseWriter, x *exchange, o *outcome, err error) error {
	switch moved := errors.Is(err, session.ErrMoved); {
	case moved && x.from != nil:
		panic(http.ErrAbortHandler)
	case moved && (x.once.name != "" || o.call != nil && o.call.Retriable()):
		return session.ErrMoved
	}
	h.logger.Warn("call not read to its end", "session", o.session.Name(), "error", err)
	h.answers.FailMessages(w, fmt.Errorf("%w: %w", placement.ErrUnknown, err), x.msgs, x.batch)
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

package copying

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows answers stored calls with plain JSON: their answers are stored before they are sent.

// ErrNotPlain says that the stream of a call can't be answered with JSON: it holds more
// than responses, or the connection is to be ended before it ends.
var ErrNotPlain = errors.New("the call needs a stream")

// A plain is the sink of a stream that is answered with JSON: it gathers the responses in it, and writes them at its end.
type plain struct {
	*Events
	request *http.Request
	form    answering.Form
	batch   bool
	answers [][]byte
	more    bool          // the stream holds more than responses
	asked   [][]byte      // the ids of requests of the backend that the client will not get
	call    *session.Call // nil if it was begun before
}

// isAll reports whether responses are all that the client takes.
func (p *plain) isAll() bool { return p.form == answering.OnlyJSON }

// Respond waits for the end of the stream, and answers with the responses in it. After
// ErrNotPlain the stream is where it was before.
func (c *Events) Respond(ctx context.Context, x *exchange.Exchange, call *session.Call) error {
	begin := c.Reader.Cursor()
	p := &plain{Events: c, request: x.HTTP, form: x.Form, batch: x.Batch, call: call}
	c.Sink = p
	err := c.Run(ctx)
	if p.isAll() {
		return err
	}
	if p.more || errors.Is(err, ErrSuperseded) || errors.Is(err, ErrNotPlain) {
		c.Reader.Rewind(stream.Entry{Seq: begin.Seq, Epoch: begin.Epoch})
		c.state, c.Sink = attached, c
		return ErrNotPlain
	}
	return err
}

// Append implements [Sink].
func (p *plain) Append(text, _, data []byte) []byte {
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

// Write implements [Sink]. If the client had left before all was written, it was not: then the error says so.
func (p *plain) Write(_ []byte, last bool) error {
	p.refuseAsked()
	switch {
	case p.more:
		return ErrNotPlain
	case !last && p.isAll() && len(p.answers) == 0:
		return nil // what was read is not for the client, and no backend is to wait until it is
	case !last:
		return ErrHeld
	}
	if p.call != nil && p.call.Refusal() != nil {
		p.of.Answers.Fail(p.W, p.call.Refusal())
	} else if err := p.of.Answers.Answer(p.W, p.form, p.answers, p.batch); err != nil {
		return err
	}
	if p.Gone() || p.Via.IsSeen() && p.of.Nodes.HasLeft(p.From, p.opened) {
		return ErrLeft
	}
	return nil
}

// errNotAsked is what a backend gets that asks a client which takes only JSON.
var errNotAsked = jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "the client takes only application/json, so that it cannot be asked in a call: "+
	"it has to send Accept: application/json, text/event-stream")

// refuseAsked answers requests of the backend that the client will not get.
func (p *plain) refuseAsked() {
	for _, id := range p.asked {
		m, err := jsonrpc.Parse(jsonrpc.AppendError(nil, id, errNotAsked))
		if err == nil {
			err = p.Session.Send(context.WithoutCancel(p.request.Context()), m, p.request.Header)
		}
		if err != nil {
			p.of.Logger.Warn("request of the server not refused", "session", p.Session.Name(), "error", err)
		}
	}
	p.asked = nil
}

// Idle implements [Sink].
func (p *plain) Idle(context.Context, time.Time) (time.Time, error) {
	if p.Reader.HasDisconnectRequest() && !p.isAll() {
		return time.Time{}, ErrNotPlain
	}
	return time.Time{}, nil
}

// isResponse reports whether a message is the response to a request.
func isResponse(data []byte) bool {
	return jsonrpc.Field(data, "id") != nil && jsonrpc.Field(data, "method") == nil
}

// What follows is for servers that check the tokens of clients themselves: a token may expire in the middle of a session. A
// client gets a new one if its request has status 401, and not if its call ends with an error. So the answer to a call that is
// stored, or was stored since the server took its time, waits a moment for the server before it shows the client an event id.

// refusedWithin is how long a server has to refuse a call. One that says nothing meanwhile has taken it, as a rule.
const refusedWithin = time.Second

// A refusable is the sink of a call that its server may refuse. It writes nothing else.
type refusable struct {
	*Events
	call  *session.Call
	until time.Time
}

// IsRefused waits until the server has refused a call, or has said anything of it, or a moment
// has passed. If it is true the client was answered. Else the stream is where it was before.
func (c *Events) IsRefused(ctx context.Context, call *session.Call) bool {
	begin := c.Reader.Cursor()
	c.Sink = &refusable{Events: c, call: call, until: time.Now().Add(refusedWithin)}
	err := c.Run(ctx)
	if c.state >= last && (err == nil || !errors.Is(err, errNotRefused)) {
		c.Detach(err)
		return true
	}
	c.Reader.Rewind(stream.Entry{Seq: begin.Seq, Epoch: begin.Epoch})
	c.state, c.Sink = attached, c
	return false
}

// errNotRefused says that a call is to be answered with its stream.
var errNotRefused = errors.New("the server has not refused the call")

// Append implements [Sink].
func (f *refusable) Append(text, _, _ []byte) []byte { return text }

// Write implements [Sink].
func (f *refusable) Write(_ []byte, last bool) error {
	refused := f.call.Refusal()
	if !last || refused == nil {
		return errNotRefused
	}
	f.of.Answers.Fail(f.W, refused)
	if f.Gone() {
		return ErrLeft
	}
	return nil
}

// Idle implements [Sink].
func (f *refusable) Idle(_ context.Context, now time.Time) (time.Time, error) {
	if f.Reader.HasDisconnectRequest() || !now.Before(f.until) {
		return time.Time{}, errNotRefused
	}
	return f.until, nil
}

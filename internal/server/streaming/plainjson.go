package streaming

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

// This file answers stored calls with plain JSON: their answers are stored before they are sent.

// ErrNotPlain says that a call can't be answered with JSON: its stream has other
// messages than responses, or the connection is to be ended before it.
var ErrNotPlain = errors.New("the call needs a stream")

// A plain is the sink of a call that is answered with JSON: it gathers the responses, and writes them at the end of the stream.
type plain struct {
	*Events
	request *http.Request
	form    answering.Form
	batch   bool
	answers [][]byte
	more    bool          // the stream has other messages than responses
	asked   [][]byte      // ids of requests of the backend that the client will not get
	call    *session.Call // nil if the call was begun before
}

// isAll reports whether the client takes only responses.
func (p *plain) isAll() bool { return p.form == answering.OnlyJSON }

// Respond waits for the end of the stream, and answers with its responses. After
// ErrNotPlain the copier is where it was before.
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
	case jsonrpc.String(jsonrpc.Field(data, "method")) == protocol.MethodResumePolicy: // of no use with the answer
	case p.isAll():
		if id := jsonrpc.Field(data, "id"); id != nil {
			p.asked = append(p.asked, bytes.Clone(id))
		}
	default:
		p.more = true
	}
	return text
}

// Write implements [Sink]. The error is ErrLeft if the client has left by the end of the write.
func (p *plain) Write(_ []byte, last bool) error {
	p.refuseAsked()
	switch {
	case p.more:
		return ErrNotPlain
	case !last && p.isAll() && len(p.answers) == 0:
		return nil // the entries are not for the client, but count as delivered, as the backend may wait for that
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

// errNotAsked answers a backend's request to a client that takes only JSON.
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

// The following is for servers that check the tokens of clients themselves: a token may expire in the middle of a session. A
// client gets a new token if its request has status 401, and not if its call ends with an error. So the answer to a stored
// call waits up to refusedWithin for the server, before it has status 200 and an event id.

// refusedWithin is how long a server has to refuse a call. A server that is silent for that long has accepted it, as a rule.
const refusedWithin = time.Second

// A refusable is the sink of a call that its server may refuse. It writes only the refusal.
type refusable struct {
	*Events
	call  *session.Call
	until time.Time
}

// IsRefused waits until the server has refused a call or sent a message about it, or refusedWithin
// has passed. If it returns true, the client was answered; else the copier is where it was before.
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

// errNotRefused says that a call is answered with its stream.
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

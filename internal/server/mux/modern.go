package mux

import (
	"bytes"
	"context"
	"net/http"

	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// This file serves requests of revision 2026-07-28 on a connection that carries many: each as a POST, with headers made
// from the message. Such a connection needs no session. notifications/cancelled ends a request, as the end of its POST
// does over HTTP (2026-07-28, Cancellation, "stdio").

// A modernRequest is a request of revision 2026-07-28 on a [mux], and the sink of an answer that is a stream.
type modernRequest struct {
	got    placement.Answer
	m      *mux
	msg    jsonrpc.Message
	ctx    context.Context         // ends with the connection, or when the client cancels the request
	cancel context.CancelCauseFunc // called with nil when the request is over or not served
	token  []byte                  // to come back for the call with; nil: none was sent. Guarded by traffic.mu
	last   bool                    // the response was written
}

// isModern reports whether a message is of revision 2026-07-28: it names the revision, or it cancels a request that does.
func (m *mux) isModern(msgs []jsonrpc.Message, batch bool) bool {
	msg := &msgs[0]
	switch {
	case batch || msg.Kind == jsonrpc.Response:
		return false
	case msg.Kind == jsonrpc.Request && msg.Method == protocol.MethodDiscover, modern.MetaVersion(msg) != nil:
		return true
	}
	return m.withdrawn(msg) != nil
}

// takeModern takes a message of revision 2026-07-28. It does not wait.
func (m *mux) takeModern(msg *jsonrpc.Message) {
	of := m.withdrawn(msg)
	switch {
	case of != nil:
		m.await(func() func() { return of.withdraw })
		return
	case msg.Kind == jsonrpc.Request && m.clashes("", msg.ID):
		m.fail([]jsonrpc.Message{*msg}, session.ErrDuplicate)
		return
	case m.client.returns && msg.Method == protocol.MethodSubscriptions && m.front.Life.IsDraining():
		m.comeBack() // the client listens again on its next connection
		return
	}
	x := &modernRequest{m: m, msg: *msg}
	x.got.Events = x
	x.ctx, x.cancel = context.WithCancelCause(m.ctx)
	taken, err := m.serveModern(x)
	if !taken {
		x.cancel(nil)
	}
	if err != nil {
		m.fail([]jsonrpc.Message{*msg}, err)
	}
}

// refuseLegacy answers messages of revisions that have sessions, where those are refused.
func (m *mux) refuseLegacy(msgs []jsonrpc.Message, batch bool) {
	if exchange.Requests(msgs) == 0 {
		return
	}
	var answer placement.Answer
	m.front.Modern.RejectLegacy(&answer, &exchange.Exchange{HTTP: m.client.request(), Msgs: msgs, Batch: batch})
	m.queue.text(answer.Text())
}

// key returns the request's key in traffic.modern. A notification, which is over soon, has the key "".
func (x *modernRequest) key() string {
	if x.msg.Kind != jsonrpc.Request {
		return ""
	}
	return string(jsonrpc.Key(x.msg.ID))
}

// serve serves the request, and answers it if it has no response yet.
func (x *modernRequest) serve() {
	err := x.run()
	switch {
	case x.msg.Kind != jsonrpc.Request || x.last || x.ctx.Err() != nil:
		return
	case err != nil:
		x.answer(x.m.refusal([][]byte{x.msg.ID}, err))
	case placement.IsEvents(x.got.Header()) && x.msg.Method == protocol.MethodSubscriptions: // the client listens again
		x.answer(append(modern.ListenEnded(x.msg.ID), '\n'))
	case placement.IsEvents(x.got.Header()): // over HTTP the stream would end without a response
		x.answer(x.m.refusal([][]byte{x.msg.ID}, placement.ErrUnknown))
	default:
		if text := bytes.TrimSpace(x.got.Text()); len(text) > 0 {
			x.answer(append(text, '\n'))
		}
	}
}

// run serves the request as a POST.
func (x *modernRequest) run() (err error) {
	defer panics.Catch(&err, x.m.front.Logger, "a connection's request", "")
	r := exchange.OwnPost(x.m.client.request()).WithContext(x.ctx)
	r.Header.Del(protocol.HeaderSession)
	r.Header[protocol.HeaderMethod] = []string{x.msg.Method}
	if version := jsonrpc.String(modern.MetaVersion(&x.msg)); version != "" {
		r.Header[protocol.HeaderVersion] = []string{version}
	}
	if last := jsonrpc.String(jsonrpc.Field(x.msg.Params, "_meta", protocol.MetaLastEventID)); last != "" {
		r.Header[protocol.HeaderLastEventID] = []string{last}
	}
	if field := protocol.NameField(x.msg.Method); field != "" {
		if name := jsonrpc.String(jsonrpc.Field(x.msg.Params, field)); name != "" {
			r.Header[protocol.HeaderName] = []string{protocol.EncodeHeader(name)}
		}
	}
	ex := exchange.Exchange{HTTP: r, Principal: x.m.client.principal, Msgs: []jsonrpc.Message{x.msg}, Muxed: true, MuxDoor: x.m.client.door}
	x.m.front.ServeModern(&x.got, &ex)
	return nil
}

// withdraw cancels the request. A call that goes on without its connection is cancelled by its token or its key, on any node.
func (x *modernRequest) withdraw() {
	x.m.mu.Lock()
	token := x.token
	x.m.mu.Unlock()
	x.cancel(modernfront.ErrWithdrawn)
	key, _ := exchange.MessageKey(&x.msg)
	if token == nil && key == "" {
		return
	}
	params, _ := jsonrpc.Set([]byte(`{}`), x.msg.ID, "requestId")
	if token != nil {
		params, _ = jsonrpc.Set(params, token, "_meta", protocol.MetaResumeToken)
	} else {
		params, _ = jsonrpc.Set(params, jsonrpc.Quote(key), "_meta", protocol.MetaIdempotencyKey)
	}
	params, _ = jsonrpc.Set(params, jsonrpc.Quote(protocol.V20260728), "_meta", protocol.MetaProtocolVersion)
	msg, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, nil, protocol.MethodCancelled, params))
	if err == nil {
		no := &modernRequest{m: x.m, msg: msg, ctx: x.m.ctx, cancel: func(error) {}}
		no.got.Events = no // as for a client's request, and not one of this node
		err = no.run()
	}
	if err != nil {
		x.m.front.Logger.Warn("a request was not cancelled", "method", x.msg.Method, "error", err)
	}
}

// Open implements [placement.Sink].
func (x *modernRequest) Open(http.Header) {}

// Append implements [placement.Sink].
func (x *modernRequest) Append(text, id, data []byte) []byte {
	if len(data) == 0 {
		return text
	}
	switch method := jsonrpc.Field(data, "method"); {
	case method == nil:
		x.last = true
	case jsonrpc.String(method) == protocol.MethodResumePolicy:
		x.m.mu.Lock()
		x.token = bytes.Clone(jsonrpc.Field(data, "params", "resumeToken"))
		x.m.mu.Unlock()
	}
	if len(id) > 0 {
		id = jsonrpc.Quote(string(id))
	}
	return appendTagged(text, id, data)
}

// Write implements [placement.Sink].
func (x *modernRequest) Write(lines []byte) error {
	if err := x.m.hears(x.ctx); err != nil {
		return err
	}
	if x.last {
		x.m.freeModern(x)
	}
	x.say(lines)
	return nil
}

// answer writes the response. The request's id is freed before the client gets the response.
func (x *modernRequest) answer(lines []byte) {
	x.m.freeModern(x)
	x.say(lines)
}

// say writes messages to the client.
func (x *modernRequest) say(lines []byte) {
	if len(lines) > 0 {
		x.m.say(lines)
	}
}

package mux

import (
	"bytes"
	"context"
	"net/http"

	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows serves requests of revision 2026-07-28 on a connection that carries many: each as if it had been POSTed,
// with what its headers would repeat. Such a connection needs no session. notifications/cancelled ends a request, as the
// end of its POST does over HTTP (2026-07-28, Cancellation, "stdio").

// mostModern is how many requests of that revision a connection has in flight: as many as a session.
const mostModern = exchange.MostBatch

// A modernRequest is a request of revision 2026-07-28 on a [mux], and the sink of an answer that is a stream.
type modernRequest struct {
	got    placement.Answer
	m      *mux
	msg    jsonrpc.Message
	ctx    context.Context         // ends with the connection, or when the client cancels the request
	cancel context.CancelCauseFunc // nil: its connection has ended, or it is over
	token  []byte                  // of the request's call, which its client can come back for; nil: it has none
	last   bool                    // the response was written
}

// isModern reports whether a message is of revision 2026-07-28: it says so, or it cancels a request that did.
func (m *mux) isModern(msgs []jsonrpc.Message, batch bool) bool {
	msg := &msgs[0]
	switch {
	case batch || msg.Kind == jsonrpc.Response:
		return false
	case msg.Kind == jsonrpc.Request && msg.Method == protocol.MethodDiscover, modern.MetaVersion(msg) != nil:
		return true
	}
	return m.cancelled(msg) != nil
}

// cancelled returns the request in flight that a message cancels, or nil.
func (m *mux) cancelled(msg *jsonrpc.Message) *modernRequest {
	if msg.Kind != jsonrpc.Notification || msg.Method != protocol.MethodCancelled {
		return nil
	}
	key := jsonrpc.Key(jsonrpc.Field(msg.Params, "requestId"))
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.modern[string(key)]
}

// takeModern takes a message of revision 2026-07-28. It does not wait.
func (m *mux) takeModern(msg *jsonrpc.Message) {
	if of := m.cancelled(msg); of != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.state != stateClosed {
			m.work.Go(of.withdraw)
		}
		return
	}
	x := &modernRequest{m: m, msg: *msg}
	x.got.Events = x
	x.ctx, x.cancel = context.WithCancelCause(m.ctx)
	if err := m.begins(x); err != nil {
		x.cancel(nil)
		m.fail([]jsonrpc.Message{*msg}, err)
	}
}

// stopListens ends what would never end by itself, for a client that sends no more.
func (m *mux) stopListens() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.modern {
		if x.msg.Method == protocol.MethodSubscriptions {
			x.cancel(nil)
		}
	}
}

// refuseLegacy answers messages of revisions that have sessions, where those are refused.
func (m *mux) refuseLegacy(msgs []jsonrpc.Message, batch bool) {
	if exchange.Requests(msgs) == 0 {
		return
	}
	var answer placement.Answer
	m.front.Modern.RejectLegacy(&answer, &exchange.Exchange{HTTP: m.request(), Msgs: msgs, Batch: batch})
	m.queue.text(answer.Text())
}

// begins has a request served with a goroutine of its own.
func (m *mux) begins(x *modernRequest) error {
	key := ""
	if x.msg.Kind == jsonrpc.Request {
		if m.clashes("", x.msg.ID) {
			return session.ErrDuplicate
		}
		key = string(jsonrpc.Key(x.msg.ID))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.state == stateClosed:
		x.cancel(nil)
		return nil
	case m.client.returns && x.msg.Method == protocol.MethodSubscriptions && m.front.Life.IsDraining():
		m.become(stateLeaving) // and its client asks again on the next connection
		reading.Wake(m.ready)
		x.cancel(nil)
		return nil
	case len(m.modern) >= mostModern:
		return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "more than %d requests in flight on one connection: wait for some of their responses", mostModern)
	}
	if m.modern == nil {
		m.modern = make(map[string]*modernRequest)
	}
	m.otherSessions = true
	m.modern[key] = x // what is no request has no id, and is over soon
	m.waiting++
	m.work.Go(func() {
		x.serve()
		x.cancel(nil)
		x.free()
		m.mu.Lock()
		m.waiting--
		m.mu.Unlock()
		reading.Wake(m.ready)
	})
	return nil
}

// free frees the id of the request.
func (x *modernRequest) free() {
	key := ""
	if x.msg.Kind == jsonrpc.Request {
		key = string(jsonrpc.Key(x.msg.ID))
	}
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	if x.m.modern[key] == x {
		delete(x.m.modern, key)
	}
}

// serve has the request answered.
func (x *modernRequest) serve() {
	err := x.run()
	switch {
	case x.msg.Kind != jsonrpc.Request || x.last || x.ctx.Err() != nil:
		return
	case err != nil:
		x.answer(x.m.refusal([][]byte{x.msg.ID}, err))
	case placement.IsEvents(x.got.Header()) && x.msg.Method == protocol.MethodSubscriptions: // which its client is to make again
		x.answer(append(modern.ListenEnded(x.msg.ID), '\n'))
	case placement.IsEvents(x.got.Header()): // over HTTP it would end without a response
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
	r := exchange.OwnPost(x.m.request()).WithContext(x.ctx)
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

// withdraw cancels the request. One that goes on without its connection is cancelled by its token or its key, wherever it is.
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
		x.free()
	}
	x.say(lines)
	return nil
}

// answer writes the response. The id of a request that is answered is free before its client knows.
func (x *modernRequest) answer(lines []byte) {
	x.free()
	x.say(lines)
}

// say writes messages to the client.
func (x *modernRequest) say(lines []byte) {
	if len(lines) == 0 {
		return
	}
	if err := x.m.out.write(lines); err != nil {
		x.m.stop(err)
	}
}

package translate

import (
	"strconv"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Emit implements [backend.Sink].
func (c *legacyServer) Emit(of backend.Call, m jsonrpc.Message) {
	switch m.Kind {
	case jsonrpc.Response:
		c.responded(m)
	case jsonrpc.Request:
		c.asked(of, m)
	case jsonrpc.Notification:
		c.notified(of, m)
	}
}

// EmitUnrelated implements [backend.Sink].
func (c *legacyServer) EmitUnrelated(m jsonrpc.Message) { c.Emit(nil, m) }

// responded takes a response of the server.
func (c *legacyServer) responded(m jsonrpc.Message) {
	if c.own.answer(m) {
		return
	}
	c.mu.Lock()
	rq := c.inFlight[key(m.ID)]
	if rq != nil && c.apart && rq.call != nil && rq.level != noLevel && !rq.told && rq.done == nil && jsonrpc.Field(c.server.capabilities, "logging") != nil {
		rq.done = &m
		c.mu.Unlock()
		time.AfterFunc(logGrace, func() { c.answer(rq, m) })
		return
	}
	wanted := rq != nil && rq.done == nil // else it was cancelled, or has an answer
	c.mu.Unlock()
	if wanted {
		c.answer(rq, m)
	}
}

// logGrace is how long a response waits for log messages that its client wants. Over HTTP log messages that do not come
// on the stream of their call come over another connection, and the response may overtake them.
const logGrace = 50 * time.Millisecond

// answer gives a request the server's response, unless it was cancelled or answered meanwhile.
func (c *legacyServer) answer(rq *request, m jsonrpc.Message) {
	c.mu.Lock()
	if c.inFlight[key(rq.wire)] != rq {
		c.mu.Unlock()
		return
	}
	c.forget(rq)
	rq.done = nil
	info := c.server.info
	c.mu.Unlock()
	switch {
	case string(jsonrpc.Field(m.Error, "code")) == codeURLRequired:
		c.mustVisit(rq, m.Error)
	case m.Error != nil && rq.failedFor(m.Error):
		c.sink.Emit(rq.call, newFailure(rq.id, []byte(`{"code":-32021,"message":`+string(jsonrpc.Quote("the server asks the client for "+rq.lacks.text))+
			`,"data":{"requiredCapabilities":`+rq.lacks.required+`}}`)))
	case m.Error != nil:
		c.sink.Emit(rq.call, newFailure(rq.id, modernError(m.Error, rq.uri)))
	default:
		c.sink.Emit(rq.call, newResult(rq.id, modernResult(rq.method, m.Result, info)))
	}
}

// asked takes a request of the server to the client.
func (c *legacyServer) asked(of backend.Call, m jsonrpc.Message) {
	if m.Method == protocol.MethodPing {
		c.out.later(backend.Inbound{Message: newResult(m.ID, nil)})
		return
	}
	c.mu.Lock()
	required, err := protocol.MayAsk(c.client, m.Method, m.Params)
	rq := c.callOf(of)
	if err != nil && protocol.AsksClient(m.Method) {
		c.lack(rq, &refusal{code: err.Code, required: required, text: m.Method + ": " + err.Message})
	}
	c.mu.Unlock()
	if err == nil && rq == nil {
		err = jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "no one call in flight that this belongs to, and revision %s asks clients nothing else", protocol.V20260728)
	}
	if err != nil {
		c.log.Debug("request of the server refused", "method", m.Method, "error", err)
		c.out.later(backend.Inbound{Message: newError(m.ID, err.Code, "%s: %s", m.Method, err.Message)})
		return
	}
	c.sink.Emit(rq.call, m)
}

// lack notes that the server could not ask during a request; nil: during one of the requests in flight. c.mu is held.
func (c *legacyServer) lack(only *request, why *refusal) {
	for _, rq := range c.inFlight {
		if rq.takesInput() && (only == nil || rq == only) {
			rq.lacks = why
		}
	}
}

// failedFor reports whether a request has failed because the server could not ask: the server has passed on the error code
// that it got. Some libraries pass on the code alone, so that the method of the request seems to be the one that is not known.
func (rq *request) failedFor(failure []byte) bool {
	return rq.lacks != nil && string(jsonrpc.Field(failure, "code")) == strconv.Itoa(rq.lacks.code)
}

// callOf returns the request in flight that a message of the server belongs to: the request
// of the call, or, if of is nil, the only request that takes input. It returns nil if there
// is no such request, or more than one. c.mu is held.
func (c *legacyServer) callOf(of backend.Call) (only *request) {
	for _, rq := range c.inFlight {
		switch {
		case !rq.takesInput() || of != nil && rq.call != of || rq.visit != nil && len(rq.visit.open) > 0:
		case only != nil:
			return nil
		default:
			only = rq
		}
	}
	return only
}

// notified takes a notification of the server.
func (c *legacyServer) notified(of backend.Call, m jsonrpc.Message) {
	switch m.Method {
	case protocol.MethodProgress:
		c.progressed(m)
	case protocol.MethodLog:
		c.logged(of, m)
	case protocol.MethodToolsListChanged, protocol.MethodPromptsListChanged,
		protocol.MethodResourcesListChanged, protocol.MethodResourceUpdated:
		c.changed(m)
	case protocol.MethodCancelled:
		c.sink.Emit(of, m) // of a request of the server, which Holdfast knows by its id
	default:
		// Such as notifications/elicitation/complete: its call may still be in flight.
		c.mu.Lock()
		rq := c.callOf(of)
		c.mu.Unlock()
		if rq == nil {
			c.log.Debug("notification of the server dropped: it belongs to no one call", "method", m.Method)
			return
		}
		c.sink.Emit(rq.call, m)
	}
}

const (
	methodElicit = protocol.MethodElicit
)

// progressed takes a progress notification to the request that has its token.
func (c *legacyServer) progressed(m jsonrpc.Message) {
	c.mu.Lock()
	rq := c.tokens[key(jsonrpc.Field(m.Params, progressToken))]
	c.mu.Unlock()
	if rq == nil {
		return
	}
	params, _ := jsonrpc.Set(m.Params, rq.token, progressToken)
	c.sink.Emit(rq.call, newRequest(nil, m.Method, params))
}

// logged takes a log message to the requests that want it: the request that it belongs to, or, if
// the server does not name one, all that want messages of its level. All are of one principal.
func (c *legacyServer) logged(of backend.Call, m jsonrpc.Message) {
	c.mu.Lock()
	for _, rq := range c.inFlight {
		rq.told = rq.told || of != nil && rq.call == of
	}
	wanted := loggedTo(c.inFlight, of, m)
	c.mu.Unlock()
	for _, call := range wanted {
		c.sink.Emit(call, m)
	}
}

// loggedTo returns the calls of the requests in flight that want a log message.
func loggedTo(inFlight map[string]*request, of backend.Call, m jsonrpc.Message) (wanted []backend.Call) {
	level, ok := levelOf(jsonrpc.Field(m.Params, "level"))
	if !ok || level == noLevel {
		level = len(levels) - 1 // the level is not known: all requests that want any message get it
	}
	for _, rq := range inFlight {
		if rq.call != nil && rq.level <= level && (of == nil || rq.call == of) {
			wanted = append(wanted, rq.call)
		}
	}
	return wanted
}

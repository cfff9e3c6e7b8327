package client

import (
	"strings"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// receive takes a message of the server.
func (x *mux) receive(m jsonrpc.Message) {
	c := x.c
	x.backoff.progress()
	var k *call
	if m.Kind != jsonrpc.Response && x.conn.resumes() {
		if id := jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaEventID)); id != "" {
			var fresh bool
			k, fresh = x.locate(id, m)
			if k != nil && m.Kind != jsonrpc.Request {
				k.settle()
			}
			if !fresh || k != nil && k.done() {
				return
			}
		}
	}
	switch m.Kind {
	case jsonrpc.Response:
		x.response(m)
	case jsonrpc.Request:
		c.requests.pass(k, m)
	case jsonrpc.Notification:
		if k != nil && m.Method == protocol.MethodResumePolicy {
			if !k.policy(m) {
				c.deliver(k, m)
			}
			return
		}
		c.notification(k, m)
	}
}

// locate notes an event id, and returns the call of the event's stream; nil: it is the standalone stream. It
// reports whether the event is new. An event of a call that has ended is not new: the host has the response.
func (x *mux) locate(id string, m jsonrpc.Message) (*call, bool) {
	c := x.c
	name, _, _ := strings.Cut(id, ".")
	var policyFor []byte // the id of the request that has this stream
	if m.Kind == jsonrpc.Notification && m.Method == protocol.MethodResumePolicy {
		policyFor = jsonrpc.Field(m.Params, "requestId")
	}
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	if policyFor != nil {
		x.names.add(name)
	}
	for k := range c.calls.all() {
		if k.advance(id, name, policyFor) {
			x.names.add(name)
			k.mu.Lock()
			defer k.mu.Unlock()
			return k, k.ways.seen.add(id)
		}
	}
	if x.names.has(name) {
		return nil, false
	}
	c.standalone.lastEventID = id
	return nil, x.seen.add(id)
}

// advance notes an event id, and reports whether it belongs to the call's stream. policyFor
// is the id of the request that has the stream of this name, or nil.
func (k *call) advance(id, name string, policyFor []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if sameID(policyFor, k.wire) || sameID(policyFor, k.id) {
		k.link.stream = name
	}
	if k.link.stream == "" && k.ways.received.last != "" {
		k.link.stream, _, _ = strings.Cut(k.ways.received.last, ".")
	}
	if k.link.stream == "" || k.link.stream != name {
		return false
	}
	k.ways.received.advance(id)
	k.link.resuming, k.link.came = false, time.Now()
	return true
}

// response delivers a response to its call. An error response to requests/resume looks like
// the error response of the call itself: then the status of the call tells which it is.
func (x *mux) response(m jsonrpc.Message) {
	c := x.c
	k := c.calls.find(m.ID)
	if k != nil && m.Error != nil {
		e := errorOf(m.Error)
		switch repeated, resuming := k.sentAgain(); {
		case repeated && reusedKey(e):
			// The key is the call's own: the server has the request from its first sending.
			k.fail(&unknownOutcome{&refusal{rpc: e, text: e.Message}})
			k.cancel(nil)
			return
		case resuming && e.Code == jsonrpc.CodeInvalidParams:
			c.spawn(func() {
				if _, err := c.Status(k.ctx, k.snapshot()); err != nil {
					k.fail(&unknownOutcome{errForgotten})
					k.cancel(nil)
					return
				}
				c.response(nil, m)
			})
			return
		}
	}
	c.response(nil, m)
}

// reusedKey reports whether an error refuses a request because the server has another one
// under the same idempotency key.
func reusedKey(e *jsonrpc.Error) bool {
	return e.Code == jsonrpc.CodeInvalidRequest && strings.Contains(strings.ToLower(e.Message), "idempotency key")
}

// sentAgain reports whether the request was sent again under its key, and whether requests/resume was sent and no message
// has come since.
func (k *call) sentAgain() (repeated, resuming bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.link.repeated, k.link.resuming
}

package client

import (
	"strings"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// take takes a message of the server.
func (x *mux) take(m jsonrpc.Message) {
	c := x.c
	x.backoff.progress()
	var k *call
	if m.Kind != jsonrpc.Response && x.conn.resumes() {
		if id := jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaEventID)); id != "" {
			var fresh bool
			k, fresh = x.place(id, m)
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
		x.answered(m)
	case jsonrpc.Request:
		if x.conn.resumes() {
			x.mu.Lock()
			x.answers.asked(m)
			x.mu.Unlock()
		}
		c.serverRequest(k, m)
	case jsonrpc.Notification:
		if k != nil && m.Method == protocol.MethodResumePolicy {
			if !k.policy(m) {
				c.deliver(m)
			}
			return
		}
		c.notified(k, m)
	}
}

// place notes how far a stream has been heard: that of a call, which it returns,
// or the standalone one. It says whether the event is new: one of a call that is over is
// not, as the call has been told in full.
func (x *mux) place(id string, m jsonrpc.Message) (*call, bool) {
	c := x.c
	name, _, _ := strings.Cut(id, ".")
	var asked []byte
	if m.Method == protocol.MethodResumePolicy {
		asked = jsonrpc.Field(m.Params, "requestId")
	}
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	if asked != nil {
		x.names.add(name)
	}
	for _, k := range c.calls {
		if k.heard(id, name, asked) {
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

// heard notes an event if it is one of the call's stream. asked is the id of the
// request whose stream has the name, or nil.
func (k *call) heard(id, name string, asked []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if sameID(asked, k.wire) || sameID(asked, k.id) {
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

// answered gives a response to its call. One that refuses to resume a call looks
// like one that refuses the call: then the server is asked which it is.
func (x *mux) answered(m jsonrpc.Message) {
	c := x.c
	k := c.callNamed(m.ID)
	if k != nil && m.Error != nil {
		if e := errorOf(m.Error); k.isRepeated() && reusedKey(e) {
			// The key is the call's own: what was begun under it is the first sending.
			k.fail(&unknownOutcome{&refusal{rpc: e, text: e.Message}})
			k.cancel(nil)
			return
		}
	}
	if k != nil && m.Error != nil && errorOf(m.Error).Code == jsonrpc.CodeInvalidParams && k.isResuming() {
		c.spawn(func() {
			if _, err := c.StatusOf(k.ctx, k.snapshot()); err != nil {
				k.fail(&unknownOutcome{errForgotten})
				k.cancel(nil)
				return
			}
			c.answered(nil, m)
		})
		return
	}
	c.answered(nil, m)
}

// reusedKey says whether an error refuses a request for its idempotency key, under
// which the server has another.
func reusedKey(e *jsonrpc.Error) bool {
	return e.Code == jsonrpc.CodeInvalidRequest && strings.Contains(strings.ToLower(e.Message), "idempotency key")
}

// isRepeated says whether the request was sent again under its key.
func (k *call) isRepeated() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.link.repeated
}

func (k *call) isResuming() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.link.resuming
}

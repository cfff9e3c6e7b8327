package client

import (
	"strings"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// take takes a message of the server.
func (l *line) take(m jsonrpc.Message) {
	c := l.c
	l.pace.progress()
	var k *call
	if m.Kind != jsonrpc.Response && l.wire.resumes() {
		if id := jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaEventID)); id != "" {
			var fresh bool
			k, fresh = l.place(id, m)
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
		l.answered(m)
	case jsonrpc.Request:
		if l.wire.resumes() {
			l.mu.Lock()
			l.answers.asked(m)
			l.mu.Unlock()
		}
		c.ask(k, m)
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
func (l *line) place(id string, m jsonrpc.Message) (*call, bool) {
	c := l.c
	name, _, _ := strings.Cut(id, ".")
	var asked []byte
	if m.Method == protocol.MethodResumePolicy {
		asked = jsonrpc.Field(m.Params, "requestId")
	}
	defer c.changed()
	c.mu.Lock()
	defer c.mu.Unlock()
	if asked != nil {
		l.names.add(name)
	}
	for _, k := range c.calls {
		if k.heard(id, name, asked) {
			l.names.add(name)
			k.mu.Lock()
			defer k.mu.Unlock()
			return k, k.place.seen.add(id)
		}
	}
	if l.names.has(name) {
		return nil, false
	}
	c.heard = id
	return nil, l.seen.add(id)
}

// heard notes an event if it is one of the call's stream. asked is the id of the
// request whose stream has the name, or nil.
func (k *call) heard(id, name string, asked []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if sameID(asked, k.wire) || sameID(asked, k.id) {
		k.stream = name
	}
	if k.stream == "" && k.place.last != "" {
		k.stream, _, _ = strings.Cut(k.place.last, ".")
	}
	if k.stream == "" || k.stream != name {
		return false
	}
	k.place.advance(id)
	k.resuming, k.came = false, time.Now()
	return true
}

// answered gives a response to its call. One that refuses to resume a call looks
// like one that refuses the call: then the server is asked which it is.
func (l *line) answered(m jsonrpc.Message) {
	c := l.c
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
			if _, err := c.StatusOf(k.ctx, k.state()); err != nil {
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
	return k.repeated
}

func (k *call) isResuming() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.resuming
}

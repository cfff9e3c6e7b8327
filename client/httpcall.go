package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// exchanges is the transport of Streamable HTTP: each attempt and each message is an HTTP
// exchange of its own.
type exchanges struct{ c *Conn }

// ready implements [transport]: it begins a new session where the call's has ended.
func (x exchanges) ready(k *call) error {
	s := k.current()
	if s.state != sessionLost || k.method == protocol.MethodInitialize || k.early() {
		return nil
	}
	return k.lost(s)
}

// can implements [transport]: each kind of attempt is an exchange.
func (x exchanges) can(k *call, kind attemptKind) bool {
	switch kind {
	case attemptWait:
		return false
	case attemptEvents: // modern servers have no GET
		return !k.isModern()
	}
	return true
}

// shared implements [transport].
func (x exchanges) shared() bool { return false }

// attempt implements [transport].
func (x exchanges) attempt(k *call, kind attemptKind) (left bool, err error) {
	var sent atomic.Bool
	resp, err := x.c.remote.do(k.ctx, k.exchange(kind, &sent))
	if err == nil {
		err = (&answer{k: k, r: resp}).read()
	}
	if err != nil && k.method == protocol.MethodInitialize && k.sendsRequest() && !k.origin.once {
		if no, ok := errors.AsType[*refusal](err); ok && x.c.fallsBack(no.status) {
			return false, x.c.fallBack(k, no)
		}
	}
	return sent.Load(), err
}

// exchange returns the HTTP exchange of an attempt. sent will say whether the request may
// have left.
func (k *call) exchange(kind attemptKind, sent *atomic.Bool) exchange {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, w := k.session, &k.ways
	x := exchange{method: http.MethodGet, session: &s, last: w.received.last, wait: k.backoff.bound(k.c.opts.ConnectTimeout)}
	switch kind {
	case attemptAnswers:
		x.method, x.url, x.body, x.sent, x.wait = http.MethodPost, w.stream, k.turns.batch, sent, k.c.opts.ConnectTimeout
		k.turns.inBatch = len(k.turns.unconfirmed)
		if !s.keys {
			x.wait = k.c.opts.AnswerTimeout // the server may continue the call before it answers
		}
	case attemptStream:
		x.url = w.stream
	case attemptEvents:
		x.sent = sent
	case attemptToken:
		k.wire = k.ways.tokenFor
		x.method = http.MethodPost
		x.body, x.headers = k.resumption()
	default:
		// A server that has the key attaches the request to the call, after the last event that we
		// have. A request without a key is sent under another id: it may be in flight under this one.
		if kind == attemptRequest || k.key == "" && k.method != protocol.MethodInitialize || k.isModern() {
			x.last = ""
		}
		k.unsent = false
		k.renameAgain(kind)
		x.method, x.body, x.key, x.sent, x.headers = http.MethodPost, k.underWireID(k.body), k.key, sent, k.mirror
		x.wait, x.message = k.answerTimeout(s.keys, len(x.body)), true
		k.failures.wait = x.wait
		k.sends++
	}
	return x
}

// renameAgain gives a request that is sent again without a key another id: it may be in flight under
// the one that it had. A subscription keeps its id, by which its messages name it. k.mu is held.
func (k *call) renameAgain(kind attemptKind) {
	if kind == attemptAgain && k.key == "" && k.method != protocol.MethodInitialize && !k.subscribes() {
		k.wire = k.c.newID()
	}
}

// underWireID returns the request's text under the id that it is sent under. k.mu is held.
func (k *call) underWireID(body []byte) []byte {
	if string(k.wire) == string(k.id) {
		return body
	}
	m, err := jsonrpc.Parse(bytes.Clone(body))
	if err != nil {
		return body
	}
	return m.WithID(k.wire)
}

// slowAnswer is how long a server that is no Holdfast may take, at first, to begin its answer to a request that may be
// made again: some servers say nothing before the answer is complete.
const slowAnswer = 30 * time.Second

// bytesEachSecond is how much of a request a slow network carries in a second.
const bytesEachSecond = 64 << 10

// answerTimeout returns how long the header of the answer to the request may take. A request that can be sent again is
// sent again soon, as its connection may be dead, and later at each further time. keys says that the server is a
// Holdfast, which says at once that it has a call; size is the length of the request, in bytes.
func (k *call) answerTimeout(keys bool, size int) time.Duration {
	again := min(k.failures.silences, 10)
	switch {
	case k.opens():
		return k.c.remote.opensWithin()
	case k.key != "", keys && k.safe():
		return min(firstBound<<again, k.c.opts.Silence) + time.Duration(size/bytesEachSecond)*time.Second
	case k.safe():
		return min(slowAnswer<<again, k.c.opts.AnswerTimeout)
	}
	return k.c.opts.AnswerTimeout
}

// send implements [transport].
func (x exchanges) send(ctx context.Context, k *call, raw []byte, atMost time.Duration) error {
	// The end of the call ends the waiting, and not the exchange: net/http would also end
	// the next exchange on the same connection.
	c, during := x.c, ctx
	if k != nil {
		host, _ := ctx.Value(hostKey{}).(context.Context)
		during = sentWith(c.ctx, host)
	}
	var b backoff
	for {
		s := c.sessionOf(k)
		resp, err := c.remote.do(during, exchange{method: http.MethodPost, body: raw, session: &s, wait: b.bound(c.opts.ConnectTimeout), headers: s.mirror(raw), message: true})
		if err == nil {
			if err = c.remote.accepted(resp); err == nil {
				return nil
			}
		}
		if no, ok := errors.AsType[*refusal](err); ok {
			if !no.passes() {
				return fmt.Errorf("not taken: %w", err)
			}
			b.atLeast = no.after
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := b.waitFor(ctx, err, atMost); err != nil {
			return err
		}
	}
}

// pong implements [transport].
func (x exchanges) pong(ctx context.Context, k *call, raw []byte) error {
	return x.send(ctx, k, raw, x.c.opts.ConnectTimeout)
}

// sessionOf returns the session that a call runs in, or, for nil, the Conn's.
func (c *Conn) sessionOf(k *call) session {
	if k != nil {
		return k.current()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session.state == sessionNone && c.modern.revision != "" {
		return session{revision: c.modern.revision}
	}
	return c.session
}

// mirror returns a function that sets the headers of a notification in a modern session; nil for other sessions.
func (s *session) mirror(raw []byte) func(http.Header) {
	if !protocol.Modern(s.revision) {
		return nil
	}
	method := jsonrpc.String(jsonrpc.Field(raw, "method"))
	return func(h http.Header) { mirror(h, s.revision, method, nil) }
}

package client

import (
	"context"
	"net/http"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Servers refuse a request of a session that they do not know any more in many ways: 404 is the right one (2025-11-25,
// Transports, "Session Management"), and needs no proof. Any other refusal that a lost session would explain raises a
// doubt, which a proof settles ([Conn.settle]): the refusal's words decide nothing.

// A verdict is how a doubt was settled.
type verdict uint8

const (
	verdictAlive   verdict = iota // the server answers in the session, or nothing was learned
	verdictRefuses                // the server begins no other session that works
	verdictLost                   // another session is in the place of the one that was lost
)

// doubts are a Conn's doubts about its session. Conn.mu guards it.
type doubts struct {
	settled map[doubt]settled // doubts that proved unfounded
	lost    session           // the session that was found lost last
	ping    *refusal          // how a ping was refused in it
}

// A doubt is the kind of refusals that one proof decides about.
type doubt struct {
	status int
	answer bool // the refusal is under the request's own id
	code   int  // of an answer
}

// settled says until when a doubt is not raised again.
type settled struct {
	until time.Time
	pause time.Duration
}

// How long an unfounded doubt is not raised again: an application's errors look like a lost session for as long as it
// lives, but a server that refuses everything may begin sessions again soon.
const (
	aliveFor     = time.Minute
	firstRefusal = 5 * time.Second
	mostRefusals = time.Minute
)

// pingFor bounds how long a request of a proof may take: the refused request waits for the proof.
const pingFor = 5 * time.Second

// downFor is how long a server must have refused the way back to a call as if it were down, before that raises a doubt.
const downFor = 10 * time.Second

// doubt returns the doubt that a refusal raises.
func (e *refusal) doubt() doubt {
	d := doubt{status: e.status, answer: e.answer}
	if e.answer {
		d.code = e.rpc.Code
	}
	return d
}

// doubtful reports whether servers refuse requests of a lost session like this, or may.
func (e *refusal) doubtful() bool {
	if e.answer {
		switch e.rpc.Code {
		case jsonrpc.CodeMethodNotFound, protocol.CodeOutcomeUnknown, codeNoResource, codeURLRequired:
			return false
		}
	}
	if e.later {
		return false
	}
	switch e.status {
	case http.StatusOK:
		return e.answer || e.instead != nil
	case http.StatusNotFound:
		return e.answer // else it is certain
	case http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusLengthRequired, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusUnsupportedMediaType,
		http.StatusExpectationFailed, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusUpgradeRequired,
		http.StatusTooManyRequests, http.StatusRequestHeaderFieldsTooLarge:
		return false // the request is at fault, or the moment
	}
	return e.status >= 400 && e.status <= 500 || e.status == http.StatusServiceUnavailable
}

// Codes of errors that are never about a session.
const (
	codeNoResource  = -32002 // 2025-11-25, Resources, "Error Handling"
	codeURLRequired = -32042 // 2025-11-25, Elicitation, "URL Elicitation Required Error"
)

// like reports whether two refusals say the same.
func (e *refusal) like(o *refusal) bool {
	switch {
	case e.status != o.status:
		return false
	case e.rpc != nil && o.rpc != nil:
		return e.rpc.Code == o.rpc.Code && e.rpc.Message == o.rpc.Message && string(e.rpc.Data) == string(o.rpc.Data)
	}
	return e.rpc == nil && o.rpc == nil && e.said == o.said
}

// refusesSession reports whether the session may be lost: e refused a ping in it, and no another request. A server
// that answers the ping with another error knows the session.
func (e *refusal) refusesSession(no *refusal) bool {
	switch {
	case e.answer:
		return e.status == no.status && e.rpc.Code != jsonrpc.CodeMethodNotFound && no.rpc != nil && e.rpc.Code == no.rpc.Code
	case e.status == http.StatusNotFound, e.status == no.status:
		return true
	}
	return e.status >= 400 && e.status < 500 && e.doubtful()
}

// unrun reports whether a request that e refused in a lost session has certainly not run. ping is the refusal of a ping
// in that session; nil: it is not known. A status of 4xx says so if the body is no answer. Else the ping must have got
// the same words: the server says them without looking at the request.
func (e *refusal) unrun(ping *refusal) bool {
	if e.status >= 400 && e.status < 500 && !e.answer {
		return true
	}
	return ping != nil && e.like(ping) && (e.rpc != nil || e.said != "")
}

// doubts reports whether a refusal says that the call's session may be lost.
func (k *call) doubts(no *refusal) bool {
	if k.isModern() || k.origin.once || k.origin.otherSession || k.opens() || k.failures.renewals > 0 || !no.doubtful() || k.transport.shared() {
		return false
	}
	k.mu.Lock()
	s, found := k.session, k.ways.found()
	k.mu.Unlock()
	switch {
	case s.id == "" || s.state != sessionBegun:
		return false
	case s.keys && (no.answer || no.page || no.status >= 500):
		return false // a Holdfast says 404
	case no.page && !k.sendsRequest():
		return false
	case no.answer && (found || k.spoken):
		return false // the server has begun to work on it
	case !k.sendsRequest():
		if no.passes() {
			return !k.backoff.since.IsZero() && time.Since(k.backoff.since) >= downFor
		}
		return !no.shuts() && no.status != http.StatusConflict
	case no.status == http.StatusConflict && k.key != "":
		return false
	}
	return k.c.raises(no.doubt())
}

// raises reports whether to raise a doubt: it did not prove unfounded a moment ago.
func (c *Conn) raises(d doubt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opening.request != nil && !time.Now().Before(c.opening.doubts.settled[d].until)
}

// retryDoubtful is retryRefused where the call's session may be lost. It reports false if the refusal stands.
func (k *call) retryDoubtful(no *refusal) (decided bool, err error) {
	s := k.current()
	lost, ping := k.c.settle(k.ctx, s, no, func() verdict { return (&probe{c: k.c, host: k.origin.sent, no: no}).prove(s) })
	switch {
	case k.ctx.Err() != nil:
		return true, context.Cause(k.ctx)
	case !lost:
		return false, nil
	case k.sendsRequest() && no.unrun(ping):
		if !k.ran {
			k.happened(eventRefused)
		}
		if again, ok := k.c.opts.Auth.(resender); ok {
			again.SentAgain(withHost(sentWith(k.ctx, k.origin.sent), true))
		}
	case no.answer, no.instead != nil:
		return false, nil
	}
	return true, k.lost(s)
}

// A resender is an [Authorizer] that is told when a message is sent again after the server has refused it.
type resender interface{ SentAgain(ctx context.Context) }

// settle finds out whether a session in which a request was refused is lost: then another one has taken its place. ping is
// the server's refusal of a ping in the lost session; nil: it is not known. prove makes the proof. One proof runs at a time.
func (c *Conn) settle(ctx context.Context, s session, no *refusal, prove func() verdict) (lost bool, ping *refusal) {
	for {
		c.mu.Lock()
		r := c.opening.renewal
		switch {
		case r != nil:
		case !c.session.is(s) || c.session.state != sessionBegun:
			defer c.mu.Unlock()
			if c.opening.doubts.lost.is(s) {
				ping = c.opening.doubts.ping
			}
			return true, ping
		case time.Now().Before(c.opening.doubts.settled[no.doubt()].until):
			c.mu.Unlock()
			return false, nil
		default:
			r = &renewal{done: make(chan struct{}), proof: true}
			c.opening.renewal = r
			c.mu.Unlock()
			if !c.spawn(func() { c.endProof(r, no.doubt(), prove()) }) {
				return false, nil
			}
			c.mu.Lock()
		}
		c.mu.Unlock()
		select {
		case <-r.done:
		case <-ctx.Done():
			return false, nil
		}
	}
}

// endProof notes how a proof has ended.
func (c *Conn) endProof(r *renewal, d doubt, v verdict) {
	if v == verdictLost {
		c.listen() // the standalone stream may have ended with the old session
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening.renewal = nil
	c.opening.doubts.note(d, v)
	close(r.done)
}

// note notes how a doubt was settled. A new session has no settled doubts.
func (o *doubts) note(d doubt, v verdict) {
	if v == verdictLost {
		o.settled = nil
		return
	}
	before := o.settled[d]
	now := settled{pause: aliveFor}
	if v == verdictRefuses {
		now.pause = min(max(2*before.pause, firstRefusal), mostRefusals)
	}
	now.until = time.Now().Add(now.pause)
	if o.settled == nil || len(o.settled) >= mostDoubts {
		o.settled = make(map[doubt]settled)
	}
	o.settled[d] = now
}

// mostDoubts bounds how many settled doubts are remembered.
const mostDoubts = 100

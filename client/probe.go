package client

import (
	"context"
	"errors"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A probe finds out by a harmless request whether a session is lost.
type probe struct {
	c      *Conn
	host   context.Context // with which the host has sent the refused message
	no     *refusal        // the refusal that is put to the proof
	method string          // of the harmless request
}

// prove finds out whether a session, in which p.no has refused a request, is lost:
//
//  1. A harmless request in the session is refused as well: the request is not at fault.
//  2. The server begins another session: it does not refuse everything.
//  3. It answers the harmless request in that: the session made the difference. Where the server may have been down, or
//     behind a web page, it refuses the old session still.
//
// The harmless request is a ping. If the ping tells nothing, because the server answers it without looking at the session
// or refuses it in each session, the harmless request is a list. If the session is lost, the other session takes its
// place. No request that has an effect is part of the proof.
func (p *probe) prove(s session) verdict {
	p.method = protocol.MethodPing
	c := p.c
	refused, err := p.refusedIn(s)
	if err == nil && refused == nil && p.list() {
		refused, err = p.refusedIn(s)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return verdictAlive // the server ignores such requests, as far as is known
	case err != nil:
		return verdictRefuses
	case refused == nil:
		return verdictAlive
	}
	begun, k := p.begin()
	if begun == nil {
		return verdictRefuses
	}
	c.mu.Lock()
	ready := c.opening.ready
	c.mu.Unlock()
	fresh := k.session
	if ready {
		err = p.tell(fresh, initialized)
	}
	works := err == nil && p.worksIn(fresh, refused)
	if !works && err == nil && p.list() {
		refused, err = p.refusedIn(s)
		works = err == nil && refused != nil && p.worksIn(fresh, refused)
	}
	if works && (refused.status >= 500 || refused.page || p.method != protocol.MethodPing) {
		still, err := p.in(s)
		works = err == nil && still != nil && still.like(refused)
	}
	if !works {
		c.endSession(&fresh)
		return verdictRefuses
	}
	c.logger.Info("the server refuses the session, and has begun another", "refusal", p.no)
	c.loseSession(s)
	c.mu.Lock()
	c.opening.begun++
	fresh.number = c.opening.begun
	c.session, c.opening.result = fresh, begun
	c.opening.doubts.lost, c.opening.doubts.ping = s, refused
	c.mu.Unlock()
	c.changed()
	if ready {
		c.spawn(func() { c.setAgain(begun) })
	}
	return verdictLost
}

// list makes a list the harmless request: to serve it, a server looks at the session. It reports false if the
// request is a list already, or if the server has said that it has none.
func (p *probe) list() bool {
	if p.method != protocol.MethodPing {
		return false
	}
	p.c.mu.Lock()
	has := jsonrpc.Field(p.c.opening.result, "capabilities")
	p.c.mu.Unlock()
	for _, kind := range []string{"tools", "prompts", "resources"} {
		if jsonrpc.Field(has, kind) != nil {
			p.method = kind + "/list"
			return true
		}
	}
	return false
}

// refusedIn returns the refusal of the harmless request in a session; nil if the server did not refuse it as if the
// session were unknown.
func (p *probe) refusedIn(s session) (*refusal, error) {
	refused, err := p.in(s)
	if refused != nil && !refused.refusesSession(p.no) {
		refused = nil
	}
	return refused, err
}

// worksIn reports whether the server takes, in a new session, the harmless request that it
// has refused in the old one.
func (p *probe) worksIn(fresh session, refused *refusal) bool {
	again, err := p.in(fresh)
	return err == nil && (again == nil || again.answer && !again.like(refused))
}

// in sends the harmless request in a session, once. It returns the refusal, or nil.
func (p *probe) in(s session) (*refusal, error) {
	ctx, stop := context.WithTimeout(p.c.ctx, pingFor)
	defer stop()
	_, m, err := p.once(ctx, s, p.method, nil)
	var no *refusal
	switch {
	case errors.As(err, &no):
		return no, nil
	case err != nil:
		return nil, err
	case m.Error != nil:
		return &refusal{status: http.StatusOK, rpc: errorOf(m.Error), answer: true}, nil
	}
	return nil, nil
}

// begin begins a session, once, as the host has begun the first one. It returns the result of initialize, and the
// call, which has the session; nil if the server did not begin one.
func (p *probe) begin() ([]byte, *call) {
	c := p.c
	ctx, stop := context.WithTimeout(c.ctx, c.opts.ConnectTimeout)
	defer stop()
	c.mu.Lock()
	params := jsonrpc.Field(c.opening.request, "params")
	c.mu.Unlock()
	k, m, err := p.once(ctx, session{}, protocol.MethodInitialize, params)
	revision := jsonrpc.String(jsonrpc.Field(m.Result, "protocolVersion"))
	if err != nil || m.Result == nil || !headable(revision) {
		return nil, nil
	}
	k.mu.Lock()
	k.session.begin(revision, m.Result)
	k.mu.Unlock()
	return m.Result, k
}

// tell sends a notification in a session, once.
func (p *probe) tell(s session, raw []byte) error {
	c := p.c
	r, err := c.remote.do(sentWith(c.ctx, p.host), exchange{method: http.MethodPost, body: raw, session: &s, wait: c.opts.ConnectTimeout, message: true})
	if err != nil {
		return err
	}
	return c.remote.accepted(r)
}

// once makes a request in a session, in one attempt. The error is a [refusal] if the server has refused the request.
func (p *probe) once(ctx context.Context, s session, method string, params []byte) (*call, jsonrpc.Message, error) {
	id := p.c.newID()
	k := newCall(p.c, request{id: id, method: method, body: jsonrpc.AppendRequest(nil, id, method, params)})
	k.origin.sent, k.origin.once, k.session = p.host, true, s
	m, err := p.c.await(ctx, k)
	if err == nil {
		err = k.failures.last
	}
	return k, m, err
}

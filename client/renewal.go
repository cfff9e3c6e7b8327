package client

import (
	"context"
	"errors"
	"slices"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// renew begins a new session in the place of one that the server has ended: the host's initialize is sent
// again, and the host does not see its response. If several callers need a new session, one begins it.
func (c *Conn) renew(ctx context.Context, old session) (session, error) {
	c.mu.Lock()
	for c.opening.renewal != nil && c.opening.renewal.proof {
		proof := c.opening.renewal
		c.mu.Unlock()
		select {
		case <-proof.done:
		case <-ctx.Done():
			return session{}, context.Cause(ctx)
		}
		c.mu.Lock()
	}
	r := c.opening.renewal
	if !c.session.is(old) && c.session.state == sessionBegun && r == nil {
		defer c.mu.Unlock()
		return c.session, nil
	}
	first := r == nil
	if first {
		r = &renewal{done: make(chan struct{})}
		c.opening.renewal = r
	}
	c.mu.Unlock()
	if first {
		if old.id != "" {
			c.loseSession(old)
		}
		if !c.spawn(func() { c.endRenewal(r, c.beginAgain()) }) {
			return session{}, ErrClosed
		}
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return session{}, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session, r.err
}

// endRenewal notes how a renewal has ended.
func (c *Conn) endRenewal(r *renewal, err error) {
	if err == nil {
		c.listen() // the standalone stream may have ended with the old session
	}
	r.err = err
	c.mu.Lock()
	c.opening.renewal = nil
	c.mu.Unlock()
	close(r.done)
	if err != nil {
		c.logger.Warn("no new session", "error", err)
	}
}

// loseSession notes that the server has ended a session, and tells the user which calls
// were in flight in it.
func (c *Conn) loseSession(old session) {
	c.mu.Lock()
	c.session.lose()
	c.standalone.lastEventID = ""
	c.seen = eventIDs{seed: c.seen.seed} // ids may begin anew
	c.requests.loseSession(old.id)
	var lost []string
	for k := range c.calls.all() {
		if k.origin.response == nil && k.ranIn(old.id) {
			lost = append(lost, string(k.id))
		}
	}
	c.mu.Unlock()
	slices.Sort(lost)
	if c.opts.Lost != nil {
		inform(c.logger, "Options.Lost", func() { c.opts.Lost(lost) })
		return
	}
	c.logger.Warn("the server has ended the session: a new one begins", "calls lost", len(lost))
}

// ranIn reports whether the server took the call in a session.
func (k *call) ranIn(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session.id == id && k.state == callTaken
}

// beginAgain begins a session as the host has begun the first one.
func (c *Conn) beginAgain() error {
	c.mu.Lock()
	opener, ready := c.opening.request, c.opening.ready
	c.mu.Unlock()
	if opener == nil {
		return errors.New("there is no initialize request to send again")
	}
	m, err := jsonrpc.Parse(slices.Clone(opener))
	if err != nil {
		return err
	}
	reply, err := c.request(c.ctx, m.Method, m.Params)
	if err != nil {
		return err
	}
	if reply.Error != nil {
		return errors.New(errorOf(reply.Error).Message)
	}
	if !ready {
		return nil
	}
	if err := c.tell(c.ctx, nil, initialized, c.opts.ConnectTimeout); err != nil {
		return err
	}
	c.spawn(func() { c.setAgain(reply.Result) })
	return nil
}

// setAgain repeats in a new session the host's settings of the old one, and tells the host
// that lists, and resources that it subscribes to, may have changed. result is the result of initialize.
func (c *Conn) setAgain(result []byte) {
	c.mu.Lock()
	set := slices.Clone(c.opening.settings)
	c.mu.Unlock()
	for _, s := range set {
		reply, err := c.request(c.ctx, s.method, s.params)
		if err == nil && reply.Error != nil {
			err = errorOf(reply.Error)
		}
		switch {
		case err == nil && s.method == protocol.MethodSubscribe:
			c.tellHost(protocol.MethodResourceUpdated, jsonrpc.Object("uri", jsonrpc.String(jsonrpc.Field(s.params, "uri"))))
		case err != nil && c.ctx.Err() == nil:
			c.logger.Warn("not set again in the new session", "method", s.method, "error", err)
		}
	}
	for _, list := range [][2]string{
		{"tools", protocol.MethodToolsListChanged},
		{"prompts", protocol.MethodPromptsListChanged},
		{"resources", protocol.MethodResourcesListChanged},
	} {
		if string(jsonrpc.Field(result, "capabilities", list[0], "listChanged")) == "true" {
			c.tellHost(list[1], nil)
		}
	}
}

// tellHost gives the host a notification.
func (c *Conn) tellHost(method string, params []byte) {
	if m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, nil, method, params)); err == nil {
		c.deliver(nil, m)
	}
}

// A setting is a request of the host with an effect that lasts as long as the session.
type setting struct {
	method string
	key    string // of two settings with the same key the later one counts
	params []byte
}

// mostSettings bounds how many settings are remembered.
const mostSettings = 1000

// remember notes the setting of a request that has succeeded, if it is one.
func (c *Conn) remember(method string, params []byte) {
	s := setting{method: method, key: method, params: protocol.Setting(params)}
	switch method {
	case protocol.MethodSubscribe, protocol.MethodUnsubscribe:
		s.key = "resources/subscribe " + jsonrpc.String(jsonrpc.Field(params, "uri"))
	case protocol.MethodSetLevel:
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening.settings = slices.DeleteFunc(c.opening.settings, func(old setting) bool { return old.key == s.key })
	if method != protocol.MethodUnsubscribe && len(c.opening.settings) < mostSettings {
		c.opening.settings = append(c.opening.settings, s)
	}
}

var initialized = jsonrpc.AppendRequest(nil, nil, protocol.MethodInitialized, nil)

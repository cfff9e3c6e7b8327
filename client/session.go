package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// session is what the server knows the Conn by.
type session struct {
	id       string // "" where the server has none
	revision string // "" before initialize
	keys     bool   // the server honours idempotency keys
	lost     bool   // the server has ended it
}

// opening keeps the host's initialize request, and says in it that we know how to
// resume requests (SEP-975).
func (c *Conn) opening(m jsonrpc.Message) []byte {
	var params, capabilities map[string]json.RawMessage
	_ = json.Unmarshal(m.Params, &params) // what is no object becomes one
	_ = json.Unmarshal(params["capabilities"], &capabilities)
	if params == nil {
		params = make(map[string]json.RawMessage)
	}
	if capabilities == nil {
		capabilities = make(map[string]json.RawMessage)
	}
	_, own := capabilities[protocol.CapabilityResumable]
	if !own {
		capabilities[protocol.CapabilityResumable] = json.RawMessage(`{}`)
		if c.opts.Transport == WebSocket {
			capabilities[protocol.CapabilityResumable] = json.RawMessage(`{"eventIds":true}`)
		}
	}
	params["capabilities"], _ = json.Marshal(capabilities) // of what was JSON
	text, _ := json.Marshal(params)
	raw := jsonrpc.AppendRequest(nil, m.ID, m.Method, text)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opener, c.policies = raw, own
	return raw
}

// asksForPolicy says whether the host wants to see resume policies.
func (c *Conn) asksForPolicy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policies
}

// named notes the id of the session that an initialize has begun. One that was
// begun before, by an initialize whose answer was lost, is ended.
func (c *Conn) named(id string) {
	c.mu.Lock()
	old := c.session
	c.session.id = id
	c.mu.Unlock()
	if old.id == "" || old.id == id || old.lost || old.revision != "" {
		return
	}
	c.spawn(func() {
		ctx, stop := context.WithTimeout(c.ctx, closeTimeout)
		defer stop()
		if r, err := c.do(ctx, exchange{method: http.MethodDelete, session: &old, wait: closeTimeout}); err == nil {
			r.Close()
		}
	})
}

// opened takes in what initialize gave. A revision that can't be named in a header is
// an error.
func (c *Conn) opened(m jsonrpc.Message) jsonrpc.Message {
	if m.Error != nil {
		return m
	}
	revision := jsonrpc.String(jsonrpc.Field(m.Result, "protocolVersion"))
	if !headable(revision) {
		return noRevision(m)
	}
	c.mu.Lock()
	s := &c.session
	s.revision = revision
	s.keys = s.id != "" && jsonrpc.Field(m.Result, "capabilities", "experimental", protocol.MetaIdempotencyKey) != nil
	s.lost = false
	c.result = m.Result
	c.mu.Unlock()
	c.changed()
	return m
}

// noRevision is an error in the place of what initialize gave.
func noRevision(m jsonrpc.Message) jsonrpc.Message {
	said := jsonrpc.Errorf(jsonrpc.CodeServer, "the server sends what cannot be used: a protocol version that is none")
	if refused, err := jsonrpc.Parse(jsonrpc.AppendError(nil, m.ID, said)); err == nil {
		return refused
	}
	return m
}

// renew begins a new session in the place of one that the server has ended: the
// host's initialize is sent again, and its answer kept. Of several callers one
// does it.
func (c *Conn) renew(ctx context.Context, old session) (session, error) {
	c.mu.Lock()
	if c.session.id != old.id && c.session.revision != "" && c.renewing == nil {
		defer c.mu.Unlock()
		return c.session, nil
	}
	busy := c.renewing
	if busy == nil {
		busy = make(chan struct{})
		c.renewing = busy
		c.mu.Unlock()
		if old.id != "" {
			c.tellLost(old)
		}
		if !c.spawn(func() { c.begun(c.beginAgain()) }) {
			return session{}, ErrClosed
		}
	} else {
		c.mu.Unlock()
	}
	select {
	case <-busy:
	case <-ctx.Done():
		return session{}, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session, c.renewed
}

// begun notes how the beginning of a new session ended.
func (c *Conn) begun(err error) {
	if err == nil {
		c.listen() // where the stream was given up with the old session
	}
	c.mu.Lock()
	c.renewed = err
	close(c.renewing)
	c.renewing = nil
	c.mu.Unlock()
	if err != nil {
		c.logger.Warn("no new session", "error", err)
	}
}

// tellLost says which calls were in flight in a session that is gone.
func (c *Conn) tellLost(old session) {
	c.mu.Lock()
	c.session = session{lost: true}
	c.heard = ""
	c.seen = eventIDs{seed: c.seen.seed} // ids may begin anew
	for id, q := range c.asked {
		if q.call == nil || q.call.inSession(old.id) {
			c.forget(id) // who asked is gone, and another may ask under the id
		}
	}
	var lost Lost
	for _, k := range c.calls {
		if k.origin.answer == nil && k.ranIn(old.id) {
			lost.Calls = append(lost.Calls, string(k.id))
		}
	}
	c.mu.Unlock()
	slices.Sort(lost.Calls)
	if c.opts.Lost != nil {
		c.inform("Options.Lost", func() { c.opts.Lost(lost) })
		return
	}
	c.logger.Warn("the server has ended the session: a new one begins", "calls lost", len(lost.Calls))
}

func (k *call) inSession(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session.id == id
}

// ranIn says whether the server took the call in a session.
func (k *call) ranIn(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session.id == id && k.state == callTaken
}

// beginAgain does a client's part of the opening.
func (c *Conn) beginAgain() error {
	c.mu.Lock()
	opener, ready := c.opener, c.ready
	c.mu.Unlock()
	if opener == nil {
		return errors.New("there is no initialize request to send again")
	}
	m, err := jsonrpc.Parse(slices.Clone(opener))
	if err != nil {
		return err
	}
	reply, err := c.askServer(c.ctx, m.Method, m.Params)
	if err != nil {
		return err
	}
	if reply.Error != nil {
		return errors.New(errorOf(reply.Error).Message)
	}
	if !ready {
		return nil
	}
	if err := c.tell(c.ctx, initialized, c.opts.ConnectTimeout); err != nil {
		return err
	}
	c.spawn(func() { c.settle(reply.Result) })
	return nil
}

// settle sets again in a new session what the host had set in the old one, and has
// the host look again at what may be another now. result is what initialize gave.
func (c *Conn) settle(result []byte) {
	c.mu.Lock()
	set := slices.Clone(c.settings)
	c.mu.Unlock()
	for _, s := range set {
		reply, err := c.askServer(c.ctx, s.method, s.params)
		if err == nil && reply.Error != nil {
			err = errorOf(reply.Error)
		}
		if err != nil && c.ctx.Err() == nil {
			c.logger.Warn("not set again in the new session", "method", s.method, "error", err)
		}
	}
	for _, list := range [][2]string{
		{"tools", protocol.MethodToolsListChanged},
		{"prompts", protocol.MethodPromptsListChanged},
		{"resources", protocol.MethodResourcesListChanged},
	} {
		if string(jsonrpc.Field(result, "capabilities", list[0], "listChanged")) != "true" {
			continue
		}
		m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, nil, list[1], nil))
		if err == nil {
			c.deliver(m)
		}
	}
}

// A setting is a request that has changed the session for as long as it lasts.
type setting struct {
	method string
	key    string // of settings of which one is in force
	params []byte
}

// mostSettings bounds how many settings are remembered.
const mostSettings = 1000

// setting remembers what a request that has succeeded has set.
func (c *Conn) setting(method string, params []byte) {
	s := setting{method: method, key: method, params: params}
	switch method {
	case protocol.MethodSubscribe, protocol.MethodUnsubscribe:
		s.key = "resources/subscribe " + jsonrpc.String(jsonrpc.Field(params, "uri"))
	case protocol.MethodSetLevel:
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settings = slices.DeleteFunc(c.settings, func(old setting) bool { return old.key == s.key })
	if method != protocol.MethodUnsubscribe && len(c.settings) < mostSettings {
		c.settings = append(c.settings, s)
	}
}

var initialized = jsonrpc.AppendRequest(nil, nil, protocol.MethodInitialized, nil)

// askServer makes a request of our own and waits for its answer.
func (c *Conn) askServer(ctx context.Context, method string, params []byte) (jsonrpc.Message, error) {
	id := c.newID()
	k := newCall(c, request{id: id, method: method, body: jsonrpc.AppendRequest(nil, id, method, params)})
	k.origin.impatient = method == protocol.MethodStatus
	return c.await(ctx, k)
}

// await runs a call whose answer the host does not get, and returns that.
func (c *Conn) await(ctx context.Context, k *call) (jsonrpc.Message, error) {
	answer := make(chan jsonrpc.Message, 1)
	k.origin.answer = answer
	if err := c.enter(k); err != nil {
		return jsonrpc.Message{}, err
	}
	if !c.start(k) {
		c.leave(k)
		return jsonrpc.Message{}, ErrClosed
	}
	select {
	case m := <-answer:
		return m, nil
	case <-ctx.Done():
		cause := context.Cause(ctx)
		if errors.Is(cause, ErrCancelled) {
			m := jsonrpc.Message{Method: protocol.MethodCancelled}
			m.Raw = jsonrpc.AppendRequest(nil, nil, m.Method, append(append([]byte(`{"requestId":`), k.id...), '}'))
			c.giveUp(k, m)
		} else {
			k.cancel(cause)
		}
		return jsonrpc.Message{}, cause
	case <-c.ctx.Done():
		return jsonrpc.Message{}, ErrClosed
	}
}

// newID returns an id for a request of our own, which no host uses.
func (c *Conn) newID() []byte {
	return fmt.Appendf(nil, `"%s-%d"`, c.ours, c.wires.Add(1))
}

// newKey returns an idempotency key: 130 random bits.
func newKey() string { return rand.Text() }

// preferSessions takes in what server/discover gave. A server that also speaks a
// revision with sessions is spoken to in that: there a call can be gone on with. To
// the host it is as if the server did not know the method.
func preferSessions(m jsonrpc.Message) jsonrpc.Message {
	var offer struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if m.Error != nil || json.Unmarshal(m.Result, &offer) != nil ||
		!slices.ContainsFunc(offer.SupportedVersions, func(v string) bool { return v < protocol.V20260728 }) {
		return m
	}
	refused, err := jsonrpc.Parse(jsonrpc.AppendError(nil, m.ID,
		jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "server/discover is not used: this connection has a session")))
	if err != nil {
		return m
	}
	return refused
}

// errorOf decodes the error of a response, as far as it is one.
func errorOf(raw []byte) *jsonrpc.Error {
	e := &jsonrpc.Error{}
	_ = json.Unmarshal(raw, e) // as far as it goes: a code that is text is no reason to hide what is said
	if e.Message == "" {
		e.Message = "the server answered with an error that says nothing"
	}
	return e
}

// mirror sets the headers that repeat what is in a request's body (2026-07-28,
// Transports, "Standard Headers"). Earlier servers do not look at them.
func mirror(h http.Header, method string, body []byte) {
	if !bytes.Contains(body, []byte("protocolVersion")) {
		return // a long body is sooner looked through than taken apart
	}
	version := jsonrpc.String(jsonrpc.Field(body, "params", "_meta", protocol.MetaProtocolVersion))
	if version < protocol.V20260728 {
		return
	}
	h[protocol.HeaderVersion] = []string{version}
	h.Set(protocol.HeaderMethod, method)
	name := ""
	switch method {
	case protocol.MethodToolsCall, protocol.MethodGetPrompt:
		name = jsonrpc.String(jsonrpc.Field(body, "params", "name"))
	case protocol.MethodReadResource:
		name = jsonrpc.String(jsonrpc.Field(body, "params", "uri"))
	}
	if name != "" {
		h.Set(protocol.HeaderName, name)
	}
}

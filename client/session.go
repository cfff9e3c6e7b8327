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

// A sessionState is what has become of the session with the server:
//
//	state         event                                  next
//	sessionNone   initialize was answered                sessionBegun
//	sessionBegun  the server does not know it any more   sessionLost
//	sessionLost   initialize, sent again, was answered   sessionBegun
type sessionState uint8

const (
	sessionNone  sessionState = iota // nothing has begun one
	sessionBegun                     // requests may be made in it
	sessionLost                      // the server has ended it, and there is no other yet
)

// A session is what the server knows the Conn by.
type session struct {
	id       string // "" where the server has none
	revision string // "" if there is no session
	keys     bool   // the server honours idempotency keys
	state    sessionState
}

// begin moves the session to sessionBegun, with what initialize gave.
func (s *session) begin(revision string, result []byte) {
	s.revision, s.state = revision, sessionBegun
	s.keys = s.id != "" && jsonrpc.Field(result, "capabilities", "experimental", protocol.MetaIdempotencyKey) != nil
}

// lose moves the session to sessionLost.
func (s *session) lose() { *s = session{state: sessionLost} }

// An opening is how the host has begun the session: another is begun alike.
type opening struct {
	request  []byte    // initialize, as it is sent
	result   []byte    // what initialize gave
	policies bool      // the host wants to see resume policies itself
	ready    bool      // the host has sent notifications/initialized
	settings []setting // what the host has set in the session
	renewal  *renewal  // of a session that has ended; nil: none goes on
}

// A renewal is the beginning of a session in the place of one that has ended.
type renewal struct {
	done chan struct{} // closed at its end
	err  error         // read after that
}

// open keeps the host's initialize request, and says in it that the client knows how to
// resume requests (SEP-975).
func (c *Conn) open(m jsonrpc.Message) []byte {
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
	c.opening.request, c.opening.policies = raw, own
	return raw
}

// hostWantsPolicies reports whether the host wants to see resume policies.
func (c *Conn) hostWantsPolicies() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opening.policies
}

// named notes the id of the session that an initialize has begun. One that was
// begun before, by an initialize whose answer was lost, is ended.
func (c *Conn) named(id string) {
	c.mu.Lock()
	old := c.session
	c.session.id = id
	c.mu.Unlock()
	if old.id == "" || old.id == id || old.state != sessionNone {
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
	c.session.begin(revision, m.Result)
	c.opening.result = m.Result
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
	r := c.opening.renewal
	if c.session.id != old.id && c.session.state == sessionBegun && r == nil {
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
		c.listen() // where the stream was given up with the old session
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
	c.asks.loseSession(old.id)
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

// inSession reports whether the call runs in a session.
func (k *call) inSession(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session.id == id
}

// ranIn reports whether the server took the call in a session.
func (k *call) ranIn(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session.id == id && k.state == callTaken
}

// beginAgain does a client's part of the opening.
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
	if err := c.tell(c.ctx, nil, initialized, c.opts.ConnectTimeout); err != nil {
		return err
	}
	c.spawn(func() { c.setAgain(reply.Result) })
	return nil
}

// setAgain sets again in a new session what the host had set in the old one, and has
// the host look again at what may be another now. result is what initialize gave.
func (c *Conn) setAgain(result []byte) {
	c.mu.Lock()
	set := slices.Clone(c.opening.settings)
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

// remember notes what a request that has succeeded has set.
func (c *Conn) remember(method string, params []byte) {
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
	c.opening.settings = slices.DeleteFunc(c.opening.settings, func(old setting) bool { return old.key == s.key })
	if method != protocol.MethodUnsubscribe && len(c.opening.settings) < mostSettings {
		c.opening.settings = append(c.opening.settings, s)
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
	return fmt.Appendf(nil, `"%s-%d"`, c.ids.prefix, c.ids.count.Add(1))
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

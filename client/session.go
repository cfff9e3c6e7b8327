package client

import (
	"encoding/json"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A sessionState is how far the session with the server has come:
//
//	state         event                                  next
//	sessionNone   initialize was answered                sessionBegun
//	sessionBegun  the server does not know it any more   sessionLost
//	sessionBegun  it has no id: the host goes on modern  sessionNone
//	sessionLost   initialize, sent again, was answered   sessionBegun
type sessionState uint8

const (
	sessionNone  sessionState = iota // no session was begun
	sessionBegun                     // requests may be made in it
	sessionLost                      // the server has ended it, and there is no other yet
)

// A session is a session with the server.
type session struct {
	id       string // "" where the server has none
	number   int    // counts the sessions that this Conn has begun; 0: another Conn began it, or it is not begun
	revision string // "" if there is no session
	keys     bool   // the server honours idempotency keys
	state    sessionState
}

// begin moves the session to sessionBegun. result is the result of initialize.
func (s *session) begin(revision string, result []byte) {
	s.revision, s.state = revision, sessionBegun
	s.keys = s.id != "" && jsonrpc.Field(result, "capabilities", "experimental", protocol.MetaIdempotencyKey) != nil
}

// is reports whether s and o are the same session. The number counts, too, as some servers give all sessions one id.
func (s *session) is(o session) bool { return s.id == o.id && (s.number == o.number || o.number == 0) }

// lose moves the session to sessionLost.
func (s *session) lose() { *s = session{state: sessionLost} }

// leave moves the session to sessionNone: the server has kept nothing of it, and the host goes on in
// a modern revision.
func (s *session) leave() { *s = session{} }

// An opening is how the host has begun the session: a new one is begun in the same way.
type opening struct {
	request  []byte    // initialize, as it is sent
	result   []byte    // of initialize
	policies bool      // the host wants to see resume policies itself
	ready    bool      // the host has sent notifications/initialized
	settings []setting // the host's settings in the session
	renewal  *renewal  // nil: none is in progress
	begun    int       // how many sessions the Conn has begun
	doubts   doubts
}

// A renewal is the beginning of a session in the place of one that has ended.
type renewal struct {
	done  chan struct{} // closed at its end
	err   error         // read after that
	proof bool          // it begins with a proof that the session has ended ([Conn.settle])
}

// open keeps the host's initialize request, and says in it that the client knows how to
// resume requests (SEP-975).
func (c *Conn) open(m jsonrpc.Message) []byte {
	var params, capabilities map[string]json.RawMessage
	_ = json.Unmarshal(m.Params, &params) // params that are no object become one
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
	params["capabilities"], _ = json.Marshal(capabilities) // of values that were JSON
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

// current returns the session as it is now.
func (c *Conn) current() session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// current returns the session that the call runs in.
func (k *call) current() session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session
}

// named sets the id of the session that initialize has begun. It ends a session that was
// begun before, by an initialize that has lost its response.
func (c *Conn) named(id string) {
	c.mu.Lock()
	old := c.session
	c.session.id = id
	c.mu.Unlock()
	if old.id == "" || old.id == id || old.state != sessionNone {
		return
	}
	c.endSession(&old)
}

// opened begins the session with the response to initialize. A revision that no header can
// hold is an error.
func (c *Conn) opened(m jsonrpc.Message) jsonrpc.Message {
	if m.Error != nil {
		return m
	}
	revision := jsonrpc.String(jsonrpc.Field(m.Result, "protocolVersion"))
	if revision == "" || !headable(revision) {
		return noRevision(m)
	}
	c.mu.Lock()
	c.session.begin(revision, m.Result)
	c.opening.begun++
	c.session.number, c.opening.result = c.opening.begun, m.Result
	c.mu.Unlock()
	c.changed()
	return m
}

// noRevision returns the error response that replaces a response without a usable revision.
func noRevision(m jsonrpc.Message) jsonrpc.Message {
	e := jsonrpc.Errorf(jsonrpc.CodeServer, "the server sends what cannot be used: its answer to initialize has no protocol version that could be one")
	return protocol.Parsed(jsonrpc.AppendError(nil, m.ID, e), m)
}

// errorOf decodes the error of a response, as far as possible.
func errorOf(raw []byte) *jsonrpc.Error {
	e := &jsonrpc.Error{}
	_ = json.Unmarshal(raw, e) // a code that is text is no reason to hide the message
	if e.Message == "" {
		e.Message = "the server answered with an error that says nothing"
	}
	return e
}

package client

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A State lets another [Conn], in another process or on another machine, continue the
// session and the calls of this one. It can be stored as JSON. It holds secrets: the
// session id, resume tokens and those of the URL.
type State struct {
	URL      string `json:"url"`                // of the server, as it was given to New
	Session  string `json:"session,omitempty"`  // the session id
	Revision string `json:"revision,omitempty"` // of the protocol; "" before initialize was answered
	Keys     bool   `json:"keys,omitempty"`     // the server honours idempotency keys
	// Initialize is the host's initialize request, and Result the result of it.
	Initialize json.RawMessage `json:"initialize,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	Ready      bool            `json:"ready,omitempty"` // notifications/initialized was sent
	// LastEventID is the last event id of the standalone stream.
	LastEventID string `json:"lastEventId,omitempty"`
	// Endpoint is where messages are posted to (HTTP+SSE).
	Endpoint string `json:"endpoint,omitempty"`
	// Calls are the calls in flight, ordered by their ids.
	Calls []CallState `json:"calls,omitempty"`
}

// A CallState lets another [Conn] continue one call.
type CallState struct {
	ID json.RawMessage `json:"id"`
	// Wire is the id by which the server knows the call, if that is another one: a request that is made again, such as one
	// with the host's input, is sent under an id of its own. Token is for that id.
	Wire   json.RawMessage `json:"wire,omitempty"`
	Method string          `json:"method,omitempty"`
	Name   string          `json:"name,omitempty"` // of the tool, for tools/call
	// Revision is that of the call's request, if it is 2026-07-28 or later: the call is then resumed with its Request.
	Revision string `json:"revision,omitempty"`
	// Session is the id of the session that the call runs in; "": that of the Conn which
	// continues the call.
	Session string `json:"session,omitempty"`
	// The ways back to the call. Without a way back, its outcome may be unknown.
	Token       string `json:"token,omitempty"`       // resume token (SEP-975)
	Stream      string `json:"stream,omitempty"`      // stream URL (SEP-1335)
	LastEventID string `json:"lastEventId,omitempty"` // of the call's stream
	Key         string `json:"key,omitempty"`         // idempotency key
	Task        string `json:"task,omitempty"`        // id of the task that the call has become (2026-07-28)
	// Unsent says that the server is done with Request: it has asked for the host's input. The next Conn makes the request again. It is
	// known only once the Conn has ended.
	Unsent bool `json:"unsent,omitempty"`
	// Request is the request itself, as long as it may have to be sent again: until the
	// server has it and there is a Token, a Stream or a LastEventID. A request of revision
	// 2026-07-28 or later stays: the call is resumed with its _meta. It is sent as [json.Marshal] spells it.
	Request json.RawMessage `json:"request,omitempty"`
}

// changed tells the user that the State has changed.
func (c *Conn) changed() {
	if c.opts.Changed != nil {
		inform(c.logger, "Options.Changed", c.opts.Changed)
	}
}

// State returns the State from which another Conn can continue this one. After [Conn.Detach]
// and [Conn.Close] it returns the State at the end. It may be called at any time.
func (c *Conn) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{
		URL: c.remote.raw, Session: c.session.id, Revision: c.session.revision, Keys: c.session.keys,
		Initialize: c.opening.request, Result: c.opening.result, Ready: c.opening.ready, LastEventID: c.standalone.lastEventID,
		Endpoint: c.standalone.endpoint,
	}
	for k := range c.calls.all() {
		if k.origin.response == nil && k.method != protocol.MethodInitialize {
			s.Calls = append(s.Calls, k.snapshot())
		}
	}
	slices.SortFunc(s.Calls, func(a, b CallState) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return s
}

// snapshot returns the call's state for another Conn.
func (k *call) snapshot() CallState {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tool == "" && k.method == protocol.MethodCallTool && k.body != nil {
		k.tool = jsonrpc.String(jsonrpc.Field(k.body, "params", "name"))
	}
	s := CallState{
		ID: k.id, Method: k.method, Name: k.tool, Revision: k.revision,
		Session: k.session.id, Token: k.ways.token, LastEventID: k.ways.received.last, Key: k.key,
	}
	if k.task != nil {
		s.Key, s.Task = "", k.task.id
		return s
	}
	if id := k.nameAtServer(); !sameID(id, k.id) {
		s.Wire = id
	}
	if k.ways.stream != nil {
		s.Stream = k.ways.stream.String()
	}
	if at := k.ways.received; at.behind && (at.before != "" || s.Stream != "" || s.Token != "" || s.Key != "") {
		s.LastEventID = at.before
	}
	found := s.Stream != "" || s.Token != "" || s.LastEventID != ""
	shared := k.transport != nil && k.transport.shared()
	if k.state != callTaken || k.key != "" && (!found || shared && s.Token == "") || k.isModern() {
		// The request may have to be sent again. Over a mux the way back is the token, which comes a moment
		// after the first event id. A request that resumes a modern call repeats the _meta of its request.
		s.Request = k.body
	}
	s.Unsent = k.unsent && k.c.ctx.Err() != nil // else it may be sent now
	return s
}

// restore sets the Conn to another one's State. Its calls are continued later, by
// [Conn.continueRestored].
func (c *Conn) restore(s *State) {
	c.session = session{id: s.Session, revision: s.Revision, keys: s.Keys}
	if s.Revision != "" {
		c.session.state = sessionBegun
	}
	c.opening.request, c.opening.result, c.opening.ready, c.standalone.lastEventID = s.Initialize, s.Result, s.Ready, s.LastEventID
	c.standalone.endpoint = s.Endpoint
	if m, err := jsonrpc.Parse(slices.Clone(s.Initialize)); err == nil {
		c.opening.policies = string(jsonrpc.Field(m.Params, "capabilities", protocol.CapabilityResumable)) != "{}"
	}
	for _, old := range s.Calls {
		k := c.restoredCall(old)
		if err := c.register(k); err == nil { // else the State has it twice
			c.restored = append(c.restored, k)
		}
	}
}

// restoredCall returns a call that another Conn had in flight.
func (c *Conn) restoredCall(old CallState) *call {
	k := newCall(c, request{id: old.ID, method: old.Method, tool: old.Name, key: old.Key, body: old.Request})
	k.unsent = old.Unsent && old.Request != nil
	k.origin.maybeSent = old.Request != nil && !k.unsent
	switch k.state = callTaken; {
	case k.unsent:
		k.state = callUnsent
	case k.origin.maybeSent:
		k.state = callSent
	}
	if k.key != "" {
		k.body = canonical(k.body) // it may have been indented since
	}
	k.declared = k.isModern() && jsonrpc.Field(k.body, "params", "_meta", protocol.MetaClientCapabilities, "extensions", protocol.ExtensionResume) != nil
	k.drivesTasks = c.opts.Tasks || old.Task != ""
	if old.Task != "" {
		k.becomes(old.Task)
		if k.body = nil; k.revision == "" {
			k.revision = protocol.V20260728
		}
	}
	if old.Wire != nil {
		k.wire = old.Wire
	}
	k.ways.received.last, k.ways.token, k.ways.tokenFor = old.LastEventID, old.Token, k.wire
	if u, err := url.Parse(old.Stream); err == nil && old.Stream != "" && (sameOrigin(c.remote.url, u) || upgrades(c.remote.url, u)) {
		k.ways.stream = u
	}
	own := c.current()
	if old.Session != "" && old.Session != own.id {
		k.origin.otherSession = true
		k.session = session{id: old.Session, revision: own.revision, keys: old.Key != ""}
	}
	// Without a session the event id leads nowhere: it is used only if there is no other way.
	k.ways.refused[attemptEvents] = old.Session == "" && own.id == "" && (k.ways.stream != nil || k.ways.token != "")
	return k
}

// continueRestored continues the calls of the State, and opens the standalone stream.
func (c *Conn) continueRestored() {
	for _, k := range c.restored {
		if k.unsent {
			c.changed() // the State must not say so once it is sent
		}
		c.start(k)
	}
	c.restored = nil
	if c.opts.State != nil && c.opts.State.Ready {
		c.listen()
	}
}

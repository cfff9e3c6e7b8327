package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A State is where a [Conn] is: what another one, in another process or on
// another machine, needs to go on from there. It holds secrets.
type State struct {
	URL      string `json:"url"`
	Session  string `json:"session,omitempty"`  // its secret id
	Revision string `json:"revision,omitempty"` // of the protocol
	Keys     bool   `json:"keys,omitempty"`     // the server honours idempotency keys
	// Initialize and Result are the host's initialize request and what it gave.
	Initialize json.RawMessage `json:"initialize,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	Ready      bool            `json:"ready,omitempty"` // the opening is over
	// LastEventID is the last one of the standalone stream.
	LastEventID string `json:"lastEventId,omitempty"`
	// Endpoint is where messages are posted to (HTTP+SSE).
	Endpoint string      `json:"endpoint,omitempty"`
	Calls    []CallState `json:"calls,omitempty"`
}

// A CallState is where a call is.
type CallState struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method,omitempty"`
	Name   string          `json:"name,omitempty"` // of the tool
	// Session is the secret id of the session that the call runs in; "": that of the
	// Conn which goes on with it.
	Session string `json:"session,omitempty"`
	// What a call is found by. At least one is there, or nothing is known of where it is.
	Token       string `json:"token,omitempty"`       // SEP-975
	Stream      string `json:"stream,omitempty"`      // SEP-1335
	LastEventID string `json:"lastEventId,omitempty"` // of its stream
	Key         string `json:"key,omitempty"`         // idempotency key
	// Request is the request itself, as long as it may have to be sent again: until the
	// server has it and one of Token, Stream and LastEventID is there. It is sent as
	// [json.Marshal] spells it.
	Request json.RawMessage `json:"request,omitempty"`
}

// changed says that the State is another.
func (c *Conn) changed() {
	if c.opts.Changed != nil {
		c.inform("Options.Changed", c.opts.Changed)
	}
}

// State returns where the Conn is, or where it was when it ended.
func (c *Conn) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{
		URL: c.remote.raw, Session: c.session.id, Revision: c.session.revision, Keys: c.session.keys,
		Initialize: c.opening.request, Result: c.opening.result, Ready: c.opening.ready, LastEventID: c.standalone.lastEventID,
		Endpoint: c.standalone.endpoint,
	}
	for _, k := range c.calls {
		if k.origin.answer == nil && k.method != protocol.MethodInitialize {
			s.Calls = append(s.Calls, k.snapshot())
		}
	}
	slices.SortFunc(s.Calls, func(a, b CallState) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return s
}

func (k *call) snapshot() CallState {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tool == "" && k.method == protocol.MethodToolsCall && k.body != nil {
		k.tool = jsonrpc.String(jsonrpc.Field(k.body, "params", "name"))
	}
	s := CallState{
		ID: k.id, Method: k.method, Name: k.tool,
		Session: k.session.id, Token: k.ways.token, LastEventID: k.ways.received.last, Key: k.key,
	}
	if k.ways.stream != nil {
		s.Stream = k.ways.stream.String()
	}
	if at := k.ways.received; at.behind && (at.before != "" || s.Stream != "" || s.Token != "") {
		s.LastEventID = at.before
	}
	shared := k.transport != nil && k.transport.shared()
	if k.state != callTaken || k.key != "" && (!k.ways.found() || shared && s.Token == "") {
		// That the server has it is of no use to who can't ask for it. Over a mux that
		// takes the token, which is there a moment after the first event id.
		s.Request = k.body
	}
	return s
}

// restore takes over from another Conn. What it had in flight is gone on with by
// [Conn.goOn].
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
		if err := c.enter(k); err == nil { // else it is there twice
			c.restored = append(c.restored, k)
		}
	}
}

// restoredCall returns a call that another Conn had in flight.
func (c *Conn) restoredCall(old CallState) *call {
	k := newCall(c, request{id: old.ID, method: old.Method, tool: old.Name, key: old.Key, body: old.Request})
	k.origin.unsure = old.Request != nil
	if k.state = callTaken; k.origin.unsure {
		k.state = callSent
	}
	if k.key != "" {
		k.body = storable(k.body) // who kept it may have indented it
	}
	k.ways.received.last, k.ways.token = old.LastEventID, old.Token
	if u, err := url.Parse(old.Stream); err == nil && old.Stream != "" && (sameOrigin(c.remote.url, u) || upgrades(c.remote.url, u)) {
		k.ways.stream = u
	}
	c.mu.Lock()
	own := c.session
	c.mu.Unlock()
	if old.Session != "" && old.Session != own.id {
		k.origin.foreign = true
		k.session = session{id: old.Session, revision: own.revision, keys: old.Key != ""}
	}
	// Without its session the event id leads nowhere, where something else does.
	k.ways.refused[attemptEvents] = old.Session == "" && own.id == "" && (k.ways.stream != nil || k.ways.token != "")
	return k
}

// continueRestored continues the calls that the State told of, and listens.
func (c *Conn) continueRestored() {
	for _, k := range c.restored {
		c.start(k)
	}
	c.restored = nil
	if c.opts.State != nil && c.opts.State.Ready {
		c.listen()
	}
}

// GoOn goes on with a call of another Conn's State as if it had been in [Options].State:
// it is answered through [Conn.Receive], under the id that it has there, which must not
// be one that the host uses ([ErrDuplicate]). The call is looked for in the session that
// it runs in.
func (c *Conn) GoOn(old CallState) error {
	c.begin()
	k := c.restoredCall(old)
	if err := c.enter(k); err != nil {
		return err
	}
	c.changed()
	if !c.start(k) {
		c.leave(k)
		return ErrClosed
	}
	return nil
}

// Resume goes on with a call of another Conn's State, for who can't have its answer
// under the id that it has there: it is returned here. The call is looked for in the
// session that it runs in. What comes before its answer is given out by [Conn.Receive],
// which somebody must call. An error of ctx leaves the call to who resumes it next, but
// for one whose cause is [ErrCancelled]: then the server is told to cancel the call.
// Where one connection carries everything it is [ErrDuplicate] if a request with the
// call's id is in flight; and while the call is, a request with its id is refused.
func (c *Conn) Resume(ctx context.Context, old CallState) (jsonrpc.Message, error) {
	c.begin()
	k := c.restoredCall(old)
	k.record, k.origin.guest = string(c.newID()), true
	return c.await(ctx, k)
}

// A Status is what the server says of a call, without giving out what it has said
// (SEP-975, GetRequestStatusResult).
type Status struct {
	Status            string `json:"status"`            // processing, completed or failed
	HasPendingMessage bool   `json:"hasPendingMessage"` // something waits to be read
	HasInputRequest   bool   `json:"hasInputRequest"`   // the server waits for an answer
}

// Status asks the server how a call in flight does. The server must have given it
// a resume token.
func (c *Conn) Status(ctx context.Context, id []byte) (Status, error) {
	c.mu.Lock()
	k := c.calls[string(jsonrpc.Key(id))]
	c.mu.Unlock()
	if k == nil {
		return Status{}, fmt.Errorf("no request %s is in flight", id)
	}
	return c.StatusOf(ctx, k.snapshot())
}

// StatusOf is [Conn.Status] for a call of a State, which goes on elsewhere, or
// nowhere.
func (c *Conn) StatusOf(ctx context.Context, call CallState) (Status, error) {
	if call.Token == "" {
		return Status{}, errors.New("the server gave no resume token for this request: it can only be resumed")
	}
	params := append([]byte(`{"requestId":`), call.ID...)
	params = append(params, `,"resumeToken":`...)
	params = append(append(params, jsonrpc.Quote(call.Token)...), '}')
	ctx, stop := context.WithTimeout(ctx, 2*c.opts.ConnectTimeout)
	defer stop()
	reply, err := c.askServer(ctx, protocol.MethodStatus, params)
	if err != nil {
		return Status{}, err
	}
	if reply.Error != nil {
		return Status{}, errorOf(reply.Error)
	}
	var status Status
	if err := json.Unmarshal(reply.Result, &status); err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	return status, nil
}

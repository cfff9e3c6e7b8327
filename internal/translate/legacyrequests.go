package translate

import (
	"errors"
	"slices"
	"strings"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// removed reports whether revision 2026-07-28 has no such request any more (Key Changes),
// or has it in an extension that is not the server's business: tasks are Holdfast's.
func removed(method string) bool {
	switch method {
	case protocol.MethodInitialize, protocol.MethodPing, protocol.MethodSetLevel, protocol.MethodSubscribe, protocol.MethodUnsubscribe:
		return true
	}
	return strings.HasPrefix(method, "tasks/")
}

// serve handles a message of a client once the server is ready. send hands messages to it.
func (c *legacyServer) serve(in backend.Inbound, send func(backend.Inbound) error) error {
	switch {
	case in.Kind != jsonrpc.Request:
		if in.Method == protocol.MethodInitialized {
			return nil
		}
		in.Message = newRequest(nil, in.Method, legacyParams(in.Params, nil))
		return send(in)
	case in.Method == protocol.MethodDiscover:
		c.sink.Emit(in.Call, newResult(in.ID, c.server.discovered()))
		return nil
	case in.Method == protocol.MethodSubscriptions:
		return c.listen(in, send)
	case removed(in.Method):
		c.sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeMethodNotFound, "method not found: revision %s has no %s", protocol.V20260728, in.Method))
		return nil
	}
	if comesBack(in.Params) {
		c.sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeInvalidParams, "requestState is not valid: this server gives none; make the request again without it, and without inputResponses"))
		return nil
	}
	return c.forward(in, send)
}

// comesBack reports whether a request brings a requestState of its server, or inputResponses. A legacy server has given no
// requestState, and would run the request from its beginning. A requestState of Holdfast does not come here.
func comesBack(params []byte) (does bool) {
	jsonrpc.Each(params, func(name, value []byte) {
		switch string(name) {
		case "requestState":
			does = does || string(value) != "null"
		case "inputResponses":
			jsonrpc.Each(value, func(_, _ []byte) { does = true })
		}
	})
	return does
}

// forward hands a request to the server.
func (c *legacyServer) forward(in backend.Inbound, send func(backend.Inbound) error) error {
	m := readMeta(in.Params)
	level, ok := levelOf(m.logLevel)
	if !ok {
		c.sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeInvalidParams, "%s is no log level: %s", protocol.MetaLogLevel, m.logLevel))
		return nil
	}
	rq := &request{
		id: in.ID, wire: in.ID, call: in.Call, method: in.Method,
		token: m.token, uri: jsonrpc.Field(in.Params, "uri"), level: level,
	}
	var token []byte
	c.mu.Lock()
	visits := jsonrpc.Field(c.client, "elicitation", "url") != nil && rq.takesInput()
	if m.token != nil {
		token = NewToken()
		rq.ours = string(token)
	}
	c.mu.Unlock()
	in.Message = newRequest(in.ID, in.Method, legacyParams(in.Params, token))
	if visits {
		rq.visit = &visit{in: in, open: make(map[string]bool)}
	}
	c.mu.Lock()
	c.inFlight[key(in.ID)] = rq
	if token != nil {
		c.tokens[rq.ours] = rq
	}
	newLevel := c.newLevel()
	if newLevel != noLevel {
		c.leveling++
	}
	held := rq.level != noLevel && c.leveling > 0
	if held {
		c.held = append(c.held, in)
	}
	rq.held = held
	c.mu.Unlock()

	var err error
	if newLevel != noLevel {
		err = c.setLevel(in, newLevel, send)
	}
	if err == nil && !held { // leveled sends held requests, maybe before setLevel returns
		err = send(in)
	}
	if err != nil {
		c.mu.Lock()
		c.forget(rq)
		c.mu.Unlock()
	}
	return err
}

// levelTimeout bounds how long requests wait for the server's answer to logging/setLevel.
const levelTimeout = 5 * time.Second

// setLevel tells the server which log messages are wanted, because of a request. That request and others
// that want messages are held back until the server has answered: over HTTP they would arrive in any order.
func (c *legacyServer) setLevel(in backend.Inbound, level int, send func(backend.Inbound) error) error {
	id := c.own.add(func(jsonrpc.Message) { c.leveled() })
	late := time.AfterFunc(levelTimeout, func() { c.own.fail(id, errors.New("no answer")) })
	err := send(about(in, newRequest(id, protocol.MethodSetLevel, jsonrpc.Object("level", levels[level]))))
	if err == nil {
		return nil
	}
	late.Stop()
	c.own.drop(id)
	c.mu.Lock()
	c.level = noLevel // the server's level is not known
	c.held = slices.DeleteFunc(c.held, func(h backend.Inbound) bool { return key(h.ID) == key(in.ID) })
	c.mu.Unlock()
	c.leveled()
	return err
}

// leveled sends the requests that have waited for the server to know its level.
func (c *legacyServer) leveled() {
	c.mu.Lock()
	var ready []backend.Inbound
	if c.leveling--; c.leveling == 0 {
		for _, in := range c.held {
			if rq := c.inFlight[key(in.ID)]; rq != nil && rq.held { // else it was cancelled
				rq.held = false
				ready = append(ready, in)
			}
		}
		c.held = nil
	}
	c.mu.Unlock()
	c.out.later(ready...)
}

// cancelled passes on a cancellation of Holdfast. waited says that the cancellation has
// waited for the server's initialization, as its request may have.
func (c *legacyServer) cancelled(in backend.Inbound, send func(backend.Inbound) error, waited bool) error {
	id := key(jsonrpc.Field(in.Params, "requestId"))
	c.mu.Lock()
	at := slices.IndexFunc(c.waiting, func(w backend.Inbound) bool { return w.Kind == jsonrpc.Request && key(w.ID) == id })
	rq := c.find(id)
	switch {
	case at >= 0: // the server need not know of the request
		c.waiting = slices.Delete(c.waiting, at, at+1)
		c.mu.Unlock()
		return nil
	case rq == nil && c.phase == opening && !waited: // the request may be on its way to the server
		c.waiting = append(c.waiting, in)
		c.mu.Unlock()
		return nil
	case rq == nil:
		c.mu.Unlock()
		return nil
	}
	unseen := rq.held || rq.visits()
	c.forget(rq)
	c.mu.Unlock()
	switch {
	case rq.listen != nil:
		c.leave(rq.listen, in)
		return nil
	case unseen: // nothing is in flight at the server
		return nil
	}
	params := legacyParams(in.Params, nil)
	if key(rq.wire) != id {
		params, _ = jsonrpc.Set(params, rq.wire, "requestId")
	}
	in.Message = newRequest(nil, in.Method, params)
	return send(in)
}

// find returns the request in flight that Holdfast knows by an id, or nil. c.mu is held.
func (c *legacyServer) find(id string) *request {
	if rq := c.inFlight[id]; rq != nil {
		return rq
	}
	for _, rq := range c.inFlight {
		if key(rq.id) == id {
			return rq
		}
	}
	return nil
}

// discovered returns the result of server/discover.
func (f *serverFacts) discovered() []byte {
	versions := []byte{'[', '"'}
	versions = append(append(versions, protocol.V20260728...), '"')
	for _, v := range protocol.Supported() {
		versions = append(append(append(versions, `,"`...), v...), '"')
	}
	capabilities := []byte("{}")
	if f.capabilities != nil { // the tasks of 2025-11-25 are others
		capabilities = pick(f.capabilities, func(name string) bool { return name != "tasks" })
	}
	dst := protocol.AppendMember([]byte{'{'}, "supportedVersions", append(versions, ']'))
	dst = protocol.AppendMember(dst, "capabilities", capabilities)
	jsonrpc.Each(f.result, func(name, value []byte) { // instructions, and members that no revision has
		switch name := string(name); name {
		case "protocolVersion", "capabilities", "serverInfo", "supportedVersions":
		default:
			dst = protocol.AppendMember(dst, name, value)
		}
	})
	return modernResult(protocol.MethodDiscover, append(dst, '}'), f.info)
}

// can reports whether the server has declared a capability.
func (f *serverFacts) can(path ...string) bool {
	return string(jsonrpc.Field(f.capabilities, path...)) == "true"
}

// levels are the levels of log messages, from the lowest up.
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// noLevel says that no log messages are wanted. It is above all levels.
const noLevel = 1 << 8

// levelOf returns the index of a level, which is JSON, in levels.
func levelOf(raw []byte) (int, bool) {
	if raw == nil {
		return noLevel, true
	}
	level := slices.Index(levels, jsonrpc.String(raw))
	return level, level >= 0
}

// newLevel returns the level that the server must be told now, or noLevel. c.mu is held.
func (c *legacyServer) newLevel() int {
	lowest := noLevel
	for _, rq := range c.inFlight {
		lowest = min(lowest, rq.level)
	}
	if lowest == noLevel || lowest == c.level || jsonrpc.Field(c.server.capabilities, "logging") == nil {
		return noLevel
	}
	c.level = lowest
	return lowest
}

package translate

import (
	"fmt"
	"math"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// mostRounds bounds how often one request is made again because the server wants more input.
const mostRounds = 20

// mostQuestions bounds how many questions one result of a server asks its client: no more than that wait
// for a client's answers in a session.
const mostQuestions = 1000

// An exchange is a request of a legacy client to a modern server, with all the rounds that it
// takes (2026-07-28, Multi Round-Trip Requests). Guarded by modernServer.mu.
type exchange struct {
	in     backend.Inbound // the client's request
	params []byte          // as the server gets them
	id     []byte          // the id of the present round
	rounds int
	state  []byte // requestState, as JSON, or nil
	// inputs are the client's answers so far, an object without its closing brace, and open
	// are the names of the questions without an answer, by their ids.
	inputs []byte
	open   map[string]string
	timer  *time.Timer // until a round that asks the client nothing

	token string  // the key of its progress token, or ""
	told  float64 // the greatest progress that its client was told
}

// begin hands a request of a client to the server.
func (c *modernServer) begin(in backend.Inbound) error {
	c.mu.Lock()
	dst := clientMeta(c.client.info, c.client.capabilities)
	if c.level != nil {
		dst = protocol.AppendMember(dst, protocol.MetaLogLevel, c.level)
	}
	x := &exchange{in: in, id: in.ID, told: math.Inf(-1)}
	if token := protocol.ProgressToken(in.Params); token != nil {
		x.token = key(token)
	}
	c.put(x)
	c.mu.Unlock()
	jsonrpc.Each(jsonrpc.Field(in.Params, "_meta"), func(name, value []byte) {
		if !isReserved(string(name)) {
			dst = protocol.AppendMember(dst, string(name), value)
		}
	})
	params := in.Params
	if params == nil {
		params = []byte("{}")
	}
	var ok bool
	if x.params, ok = jsonrpc.Set(params, append(dst, '}'), "_meta"); !ok {
		c.sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeInvalidParams, "%s: params must be an object", in.Method))
		c.mu.Lock()
		c.drop(x)
		c.mu.Unlock()
		return nil
	}
	in.Message = newRequest(in.ID, in.Method, x.params)
	err := c.out.Deliver(in)
	if err != nil {
		c.mu.Lock()
		c.drop(x)
		c.mu.Unlock()
	}
	return err
}

// isReserved reports whether a member of _meta is one that each modern request has of its own.
func isReserved(name string) bool {
	switch name {
	case protocol.MetaProtocolVersion, protocol.MetaClientInfo, protocol.MetaClientCapabilities, protocol.MetaLogLevel:
		return true
	}
	return false
}

// put makes an exchange known by the id of its present round, and by its token. c.mu is held.
func (c *modernServer) put(x *exchange) {
	c.inFlight[key(x.id)] = x
	if x.token != "" {
		c.tokens[x.token] = x
	}
}

// advances reports whether the client of a request is told of its progress. The server
// counts anew in each round, but for the client the rounds are one request with progress
// that must increase (2025-11-25, Progress).
func (c *modernServer) advances(params []byte) bool {
	token, value, ok := protocol.Progress(params)
	if !ok {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.tokens[token]
	switch {
	case x == nil:
	case value > x.told:
		x.told = value
	case x.rounds > 0:
		return false
	}
	return true
}

// drop forgets an exchange, which may be nil. c.mu is held.
func (c *modernServer) drop(x *exchange) {
	if x == nil {
		return
	}
	delete(c.inFlight, key(x.id))
	if c.tokens[x.token] == x {
		delete(c.tokens, x.token)
	}
	for id := range x.open {
		delete(c.questions, id)
	}
	if x.timer != nil {
		x.timer.Stop()
		delete(c.timers, x.timer)
	}
}

// fail answers the request of an exchange with an error of our own.
func (c *modernServer) fail(x *exchange, format string, args ...any) {
	c.sink.Emit(x.in.Call, newError(x.in.ID, jsonrpc.CodeServer, format, args...))
}

// responded takes the server's response to a round of an exchange.
func (c *modernServer) responded(m jsonrpc.Message) {
	kind := jsonrpc.Field(m.Result, "resultType")
	c.mu.Lock()
	x := c.inFlight[key(m.ID)]
	if jsonrpc.String(kind) != protocol.ResultInputRequired {
		c.drop(x)
	}
	c.mu.Unlock()
	if x == nil {
		return // the request was cancelled
	}
	if m.Error != nil {
		c.sink.Emit(x.in.Call, newFailure(x.in.ID, legacyError(x.in.Method, m.Error)))
		return
	}
	switch jsonrpc.String(kind) {
	case protocol.ResultInputRequired:
		c.ask(x, m.Result)
	case protocol.ResultComplete, "":
		c.sink.Emit(x.in.Call, newResult(x.in.ID, legacyResult(x.in.Method, m.Result)))
	default:
		c.fail(x, "%s: the server's result is of type %s, which revisions up to %s do not have", x.in.Method, kind, protocol.V20251125)
	}
}

// ask asks the client the questions of the server. If there are none, it makes the request again after a pause.
func (c *modernServer) ask(x *exchange, result []byte) {
	var questions []jsonrpc.Message
	open := make(map[string]string)
	many := false
	jsonrpc.Each(jsonrpc.Field(result, "inputRequests"), func(name, value []byte) {
		if many = len(questions) == mostQuestions; many {
			return
		}
		id := c.own.newID()
		open[key(id)] = string(name)
		method, params := jsonrpc.String(jsonrpc.Field(value, "method")), jsonrpc.Field(value, "params")
		if jsonrpc.String(jsonrpc.Field(params, "mode")) == "url" && jsonrpc.Field(params, "elicitationId") == nil {
			params, _ = jsonrpc.Set(params, jsonrpc.Quote(string(id)), "elicitationId") // required by 2025-11-25
		}
		questions = append(questions, newRequest(id, method, params))
	})
	c.mu.Lock()
	if c.inFlight[key(x.id)] != x {
		c.mu.Unlock()
		return // it was cancelled
	}
	c.drop(x)
	if many {
		c.mu.Unlock()
		c.fail(x, "%s: the server asks its client more than %d questions at once", x.in.Method, mostQuestions)
		return
	}
	if x.rounds++; x.rounds > mostRounds {
		c.mu.Unlock()
		c.fail(x, "%s: the server asks for input again and again", x.in.Method)
		return
	}
	x.state = jsonrpc.Field(result, "requestState")
	x.inputs, x.open = []byte{'{'}, open
	for id := range open {
		c.questions[id] = x
	}
	x.id = c.own.newID()
	c.put(x) // so that it can be cancelled
	c.mu.Unlock()
	for _, q := range questions {
		c.sink.Emit(x.in.Call, q)
	}
	if len(questions) > 0 {
		return
	}
	timer := c.after(pause(x.rounds), func() { c.again(x) })
	c.mu.Lock()
	x.timer = timer
	c.mu.Unlock()
}

// pause returns how long to wait before a request is made again that the server wants again
// without any input: its load is too high.
func pause(rounds int) time.Duration { return min(50*time.Millisecond<<rounds, 5*time.Second) }

// answered takes the client's answer to a question.
func (c *modernServer) answered(in backend.Inbound) {
	id := key(in.ID)
	c.mu.Lock()
	x := c.questions[id]
	if x == nil {
		c.mu.Unlock()
		return
	}
	name := x.open[id]
	delete(c.questions, id)
	delete(x.open, id)
	if in.Error != nil { // no input can say that
		c.drop(x)
		c.mu.Unlock()
		c.fail(x, "%s: the client could not answer the server's question %q: %s", x.in.Method, name, jsonrpc.String(jsonrpc.Field(in.Error, "message")))
		return
	}
	x.inputs = protocol.AppendMember(x.inputs, name, in.Result)
	more := len(x.open) > 0
	c.mu.Unlock()
	if !more {
		c.again(x)
	}
}

// again makes the request of an exchange once more, with the client's answers.
func (c *modernServer) again(x *exchange) {
	c.mu.Lock()
	if c.inFlight[key(x.id)] != x {
		c.mu.Unlock()
		return // it was cancelled
	}
	x.timer = nil
	params := x.params
	if len(x.inputs) > 1 {
		params, _ = jsonrpc.Set(params, append(x.inputs, '}'), "inputResponses")
	}
	if x.state != nil {
		params, _ = jsonrpc.Set(params, x.state, "requestState")
	}
	in := x.in
	in.Message = newRequest(x.id, in.Method, params)
	c.mu.Unlock()
	c.out.later(in)
}

// cancelled passes on a cancellation of the client.
func (c *modernServer) cancelled(in backend.Inbound) error {
	id := key(jsonrpc.Field(in.Params, "requestId"))
	c.mu.Lock()
	x := c.inFlight[id]
	if x == nil { // the request has an id of ours by now
		for _, other := range c.inFlight {
			if key(other.in.ID) == id {
				x = other
			}
		}
	}
	if x == nil {
		c.mu.Unlock()
		return nil
	}
	asking := len(x.open) > 0 || x.timer != nil && x.timer.Stop()
	c.drop(x)
	c.mu.Unlock()
	if asking { // nothing is in flight at the server
		return nil
	}
	params, _ := jsonrpc.Set(in.Params, x.id, "requestId")
	in.Message = newRequest(nil, in.Method, params)
	return c.out.Deliver(in)
}

// legacyResult returns the result of a modern server without the members that legacy results do not have.
func legacyResult(method string, result []byte) []byte {
	cached := false
	for _, m := range cacheable {
		cached = cached || m == method
	}
	old := jsonrpc.Field(result, "_meta")
	if jsonrpc.Field(old, protocol.MetaServerInfo) != nil {
		old = pick(old, func(name string) bool { return name != protocol.MetaServerInfo })
		result, _ = jsonrpc.Set(result, old, "_meta")
	}
	return pick(result, func(name string) bool {
		switch name {
		case "resultType":
			return false
		case "ttlMs", "cacheScope":
			return !cached
		case "_meta":
			return string(old) != "{}"
		}
		return true
	})
}

// legacyError returns the error of a modern server as a legacy server gives it.
func legacyError(method string, failure []byte) []byte {
	if method != protocol.MethodReadResource || string(jsonrpc.Field(failure, "code")) != "-32602" || jsonrpc.Field(failure, "data", "uri") == nil {
		return failure
	}
	failure, _ = jsonrpc.Set(failure, fmt.Append(nil, protocol.CodeResourceNotFound), "code")
	return failure
}

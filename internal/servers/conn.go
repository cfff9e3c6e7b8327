package servers

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/config"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// A conn is a conversation with a server, and applies the server's settings. It is the sink of
// the conversation below.
type conn struct {
	s     *server
	sink  backend.Sink
	inner backend.Conn

	leaves  sync.Once    // counts the conversation among those that leave
	watched atomic.Int32 // requests in asked and listening; 0: no response is looked at
	mu      sync.Mutex
	asked   map[string]*asked // requests in flight with responses that matter, by the keys of their ids
	hinted  map[string]bool   // tools that say they may be called again, in the lists that came by, by the server's names
	closed  bool

	listening map[string]*listen // by the keys of their ids
}

// An asked request is in flight.
type asked struct {
	call   backend.Call
	id     []byte
	method string
	tool   string      // of a call that has a timer, by the server's name
	stale  bool        // the list of tools has changed since
	timer  *time.Timer // or nil
}

// Account implements [budget.Accounted].
func (c *conn) Account() budget.Account { return budget.Of(c.sink) }

// Shared reports whether several callers share the conversation; see [rpc.IsShared].
func (c *conn) Shared() bool { return rpc.IsShared(c.sink) }

// TakePlace takes a place of the server, and one of those for all servers; see [rpc.TakePlace].
func (c *conn) TakePlace() (free func(), ok bool) {
	if !c.s.tryEnter() {
		return nil, false
	}
	all, ok := rpc.TakePlace(c.sink)
	if !ok {
		c.s.leave()
		return nil, false
	}
	return func() { all(); c.s.leave() }, true
}

// Sessionless reports whether the server keeps no session.
func (c *conn) Sessionless() bool {
	s, ok := c.inner.(interface{ Sessionless() bool })
	return ok && s.Sessionless()
}

// Deliver implements [backend.Conn].
func (c *conn) Deliver(in backend.Inbound) error {
	conf := c.s.conf.Load()
	if plain(conf) && c.watched.Load() == 0 && !opens[in.Method] {
		return c.inner.Deliver(in)
	}
	if in.Kind == jsonrpc.Request {
		m, refused := ruledRequest(conf, in.Message)
		if refused != nil {
			text := jsonrpc.AppendError(nil, in.ID, refused)
			c.sink.Emit(in.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: in.ID, Error: jsonrpc.Field(text, "error"), Raw: text})
			return nil
		}
		in.Message = m
		if in.Method == protocol.MethodSubscriptions {
			c.listens(in)
			err := c.inner.Deliver(in)
			if err != nil {
				c.unlisten(in.ID)
			}
			return err
		}
		if !c.watch(conf, in) {
			return c.inner.Deliver(in)
		}
		err := c.inner.Deliver(in)
		if err != nil {
			c.take(in.ID)
		}
		return err
	}
	if in.Kind == jsonrpc.Notification && in.Method == protocol.MethodCancelled {
		id := jsonrpc.Field(in.Params, "requestId")
		if c.take(id); c.unlisten(id) {
			return nil // the server has ended it
		}
	}
	return c.inner.Deliver(in)
}

// untimed are requests that no timeout bounds: they begin a conversation, or last as long as
// their client likes.
var untimed = map[string]bool{protocol.MethodInitialize: true, protocol.MethodDiscover: true, protocol.MethodSubscriptions: true}

// opens are the requests that are looked at with any settings: those with capabilities in their results, and listens.
var opens = untimed

// watch notes a request, if its response has to be looked at.
func (c *conn) watch(conf *config.Server, in backend.Inbound) bool {
	_, list := listed[in.Method]
	timed := conf.Timeout > 0 && in.Call != nil && !untimed[in.Method]
	if !list && !timed && !opens[in.Method] {
		return false
	}
	a := &asked{call: in.Call, id: in.ID, method: in.Method}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	if c.asked == nil {
		c.asked = make(map[string]*asked)
	}
	key := string(jsonrpc.Key(in.ID))
	if c.asked[key] == nil {
		c.watched.Add(1)
	}
	c.asked[key] = a
	if timed {
		if in.Method == protocol.MethodCallTool {
			a.tool = jsonrpc.String(jsonrpc.Field(in.Params, "name"))
		}
		a.timer = time.AfterFunc(conf.Timeout, func() { c.expire(key, a, conf.Timeout) })
	}
	return true
}

// take returns a request that is noted, and forgets it.
func (c *conn) take(id []byte) *asked {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.asked[string(jsonrpc.Key(id))]
	if a != nil {
		delete(c.asked, string(jsonrpc.Key(id)))
		c.watched.Add(-1)
		if a.timer != nil {
			a.timer.Stop()
		}
	}
	return a
}

// expire answers a request that has taken too long, and cancels it at the server. A later answer of the server is
// dropped where the answers of cancelled requests are: no record of the request is kept.
func (c *conn) expire(key string, a *asked, after time.Duration) {
	c.mu.Lock()
	if c.closed || c.asked[key] != a {
		c.mu.Unlock()
		return
	}
	delete(c.asked, key)
	c.watched.Add(-1)
	safe := c.hinted[a.tool]
	c.mu.Unlock()
	code, text := jsonrpc.CodeServer, ""
	if !protocol.RetrySafe(a.method, func() bool { return safe || matches(c.s.conf.Load().Safe, a.tool) }) {
		code, text = protocol.CodeOutcomeUnknown, protocol.TextOutcomeUnknown+": "
	}
	text += fmt.Sprintf("the server did not answer within %v, the timeout of its configuration", after)
	raw := jsonrpc.AppendError(nil, a.id, jsonrpc.Errorf(code, "%s", text))
	c.sink.Emit(a.call, jsonrpc.Message{Kind: jsonrpc.Response, ID: a.id, Error: jsonrpc.Field(raw, "error"), Raw: raw})
	params := append(append([]byte(`{"requestId":`), a.id...), `,"reason":"timeout"}`...)
	m := jsonrpc.Message{Kind: jsonrpc.Notification, Method: protocol.MethodCancelled, Params: params}
	m.Raw = jsonrpc.AppendRequest(nil, nil, m.Method, params)
	if err := c.inner.Deliver(backend.Inbound{Message: m}); err != nil {
		c.s.log.Debug("cancellation not delivered", "error", err)
	}
}

// ruled returns a message of the server as clients get it.
func (c *conn) ruled(m jsonrpc.Message) jsonrpc.Message {
	if m.Kind == jsonrpc.Notification && m.Method == protocol.MethodToolsListChanged {
		c.forget()
	}
	if c.watched.Load() == 0 {
		return m
	}
	if m.Kind == jsonrpc.Notification && m.Method == protocol.MethodAcknowledged {
		return c.acknowledged(m)
	}
	if m.Kind != jsonrpc.Response {
		return m
	}
	a := c.take(m.ID)
	if a == nil || m.Result == nil {
		return m
	}
	if _, list := listed[a.method]; list {
		if a.method == protocol.MethodToolsList && !a.stale {
			c.learn(m.Result)
		}
		m.Result = ruledList(c.s.conf.Load(), a.method, m.Result)
		m.Raw = jsonrpc.AppendResult(nil, m.ID, m.Result)
	}
	if opens[a.method] {
		m.Result = announcing(m.Result)
		m.Raw = jsonrpc.AppendResult(nil, m.ID, m.Result)
	}
	return m
}

// learn notes the tools of a list that say that they may be called again.
func (c *conn) learn(result []byte) {
	safe := tools.Hints(result)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hinted == nil {
		c.hinted = make(map[string]bool)
	}
	maps.Copy(c.hinted, safe)
}

// forget forgets the hints of tools, until they are listed again.
func (c *conn) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hinted = nil
	for _, a := range c.asked {
		a.stale = true
	}
}

// Emit implements [backend.Sink].
func (c *conn) Emit(call backend.Call, m jsonrpc.Message) {
	if m.Kind == jsonrpc.Response && c.watched.Load() > 0 && c.lasts(m) {
		return
	}
	c.sink.Emit(call, c.ruled(m))
}

// EmitUnrelated implements [backend.Sink].
func (c *conn) EmitUnrelated(m jsonrpc.Message) {
	if m.Kind == jsonrpc.Response && c.watched.Load() > 0 && c.lasts(m) {
		return
	}
	c.sink.EmitUnrelated(c.ruled(m))
}

// Closed implements [backend.Sink].
func (c *conn) Closed(why error, reopen bool) {
	c.end()
	c.leaves.Do(c.s.leaves)
	c.sink.Closed(why, reopen)
}

// Close implements [backend.Conn].
func (c *conn) Close() error {
	c.end()
	c.leaves.Do(c.s.leaves)
	err := c.inner.Close()
	c.s.left()
	return err
}

// end ends all timers.
func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, a := range c.asked {
		if a.timer != nil {
			a.timer.Stop()
		}
	}
}

package translate

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// subscribeTimeout bounds how long a listen waits for a server's answer to
// resources/subscribe.
const subscribeTimeout = 20 * time.Second

// answerTimeout bounds how long a server may take to answer a request of our own, see [ownRequests.bound].
const answerTimeout = time.Minute

// mostSubscriptions bounds the resources of one listen: each is a request to the server.
const mostSubscriptions = 1000

// A filter names the changes that a listen wants to hear of (2026-07-28, Subscriptions).
// Its taskIds are Holdfast's own business: no legacy server has such tasks.
type filter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
}

// empty reports whether the filter lets no notification through.
func (f *filter) empty() bool { return !f.Tools && !f.Prompts && !f.Resources && len(f.URIs) == 0 }

// wants reports whether a notification of the server passes. It may be about a part of a
// resource that was subscribed to.
func (f *filter) wants(m jsonrpc.Message) bool {
	switch m.Method {
	case protocol.MethodToolsListChanged:
		return f.Tools
	case protocol.MethodPromptsListChanged:
		return f.Prompts
	case protocol.MethodResourcesListChanged:
		return f.Resources
	}
	uri := jsonrpc.String(jsonrpc.Field(m.Params, "uri"))
	return slices.ContainsFunc(f.URIs, func(of string) bool {
		rest, ok := strings.CutPrefix(uri, of)
		return ok && (rest == "" || strings.HasSuffix(of, "/") || strings.ContainsRune("/?#", rune(rest[0])))
	})
}

// A listen is a subscriptions/listen in flight. Guarded by legacyServer.mu.
type listen struct {
	rq        *request
	agreed    filter
	unsettled map[string]bool // resources with a subscription that the server has not answered
	timer     *time.Timer     // until they are settled
	acked     bool            // the client has the acknowledgement, and may hear more
	queued    []jsonrpc.Message
	flushing  bool // a goroutine sends the messages in queued
}

// A subscription subscribes to a resource of the server, for all listens that want it.
type subscription struct {
	uri     string
	state   subscribed
	wanted  map[*listen]bool
	changes backend.Inbound // the next request to the server has its context and header
}

// subscribed is the state of a subscription at the server.
type subscribed uint8

const (
	off subscribed = iota
	subscribing
	on
	unsubscribing
)

// listen begins a subscriptions/listen.
func (c *legacyServer) listen(in backend.Inbound, send func(backend.Inbound) error) error {
	var want filter
	raw := jsonrpc.Field(in.Params, "notifications")
	if raw == nil || json.Unmarshal(raw, &want) != nil || len(want.URIs) > mostSubscriptions {
		c.sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeInvalidParams,
			"%s: notifications must be a filter, with at most %d resourceSubscriptions", in.Method, mostSubscriptions))
		return nil
	}
	l := &listen{rq: &request{id: in.ID, wire: in.ID, call: in.Call, method: in.Method, level: noLevel}, unsettled: make(map[string]bool)}
	l.rq.listen = l
	c.mu.Lock()
	c.inFlight[key(in.ID)] = l.rq
	l.agreed.Tools = want.Tools && c.server.can("tools", "listChanged")
	l.agreed.Prompts = want.Prompts && c.server.can("prompts", "listChanged")
	l.agreed.Resources = want.Resources && c.server.can("resources", "listChanged")
	if !c.server.can("resources", "subscribe") {
		want.URIs = nil
	}
	var requests []backend.Inbound
	for _, uri := range want.URIs {
		if slices.Contains(l.agreed.URIs, uri) {
			continue
		}
		l.agreed.URIs = append(l.agreed.URIs, uri)
		requests = append(requests, c.want(uri, l, in)...)
	}
	if len(l.unsettled) > 0 {
		l.timer = time.AfterFunc(subscribeTimeout, func() { c.giveUp(l) })
	}
	c.mu.Unlock()
	for _, request := range requests {
		if err := send(request); err != nil {
			c.own.fail(request.ID, err)
		}
	}
	c.acknowledge(l)
	return nil
}

// want adds a listen to those that want a resource, and returns the requests to be sent. c.mu is held.
func (c *legacyServer) want(uri string, l *listen, in backend.Inbound) []backend.Inbound {
	s := c.subs[uri]
	if s == nil {
		s = &subscription{uri: uri, wanted: make(map[*listen]bool)}
		c.subs[uri] = s
	}
	s.wanted[l] = true
	if s.state != on {
		l.unsettled[uri] = true
	}
	s.changes = about(in, jsonrpc.Message{})
	return c.step(s)
}

// step returns the request that subscribes or unsubscribes, as the listens want it, if one is due. c.mu is held.
func (c *legacyServer) step(s *subscription) []backend.Inbound {
	method := protocol.MethodSubscribe
	switch {
	case s.state == off && len(s.wanted) > 0:
		s.state = subscribing
	case s.state == on && len(s.wanted) == 0:
		s.state = unsubscribing
		method = protocol.MethodUnsubscribe
	case s.state == off:
		delete(c.subs, s.uri)
		return nil
	default:
		return nil
	}
	id := c.own.add(func(m jsonrpc.Message) { c.stepped(s, m.Error == nil) })
	c.own.bound(id, func() { c.out.later(withdrawn(id)) })
	in := about(s.changes, newRequest(id, method, jsonrpc.Object("uri", s.uri)))
	s.changes = backend.Inbound{}
	return []backend.Inbound{in}
}

// withdrawn returns the cancellation of a request of ours.
func withdrawn(id []byte) backend.Inbound {
	params := append(protocol.AppendMember([]byte{'{'}, "requestId", id), '}')
	return backend.Inbound{Message: newRequest(nil, protocol.MethodCancelled, params)}
}

// stepped takes the server's answer to a request of step.
func (c *legacyServer) stepped(s *subscription, ok bool) {
	c.mu.Lock()
	settled := slices.Collect(maps.Keys(s.wanted))
	switch {
	case s.state == unsubscribing:
		s.state, settled = off, nil
	case ok:
		s.state = on
	default:
		s.state = off
		clear(s.wanted)
		for _, l := range settled {
			l.agreed.drop(s.uri)
		}
	}
	for _, l := range settled {
		delete(l.unsettled, s.uri)
	}
	next := c.step(s)
	c.mu.Unlock()
	c.out.later(next...)
	for _, l := range settled {
		c.acknowledge(l)
	}
}

// drop takes a resource out of the filter.
func (f *filter) drop(uri string) {
	f.URIs = slices.DeleteFunc(f.URIs, func(other string) bool { return other == uri })
}

// giveUp acknowledges a listen without the resources for which the server does not answer.
func (c *legacyServer) giveUp(l *listen) {
	c.mu.Lock()
	for uri := range l.unsettled {
		l.agreed.drop(uri)
		if s := c.subs[uri]; s != nil {
			delete(s.wanted, l)
		}
	}
	clear(l.unsettled)
	c.mu.Unlock()
	c.acknowledge(l)
}

// acknowledge tells the client which changes it will hear of, once that is settled. If
// there are none, the listen ends.
func (c *legacyServer) acknowledge(l *listen) {
	c.mu.Lock()
	if l.acked || len(l.unsettled) > 0 || c.inFlight[key(l.rq.id)] != l.rq {
		c.mu.Unlock()
		return
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.acked = true
	agreed, err := json.Marshal(l.agreed)
	if err != nil {
		agreed = []byte("{}")
	}
	params := append(protocol.AppendMember([]byte{'{'}, "notifications", agreed), '}')
	l.queued = slices.Insert(l.queued, 0, l.tagged(protocol.MethodAcknowledged, params))
	ends := l.agreed.empty()
	c.mu.Unlock()
	c.flush(l)
	if ends {
		c.finish(l)
	}
}

// tagged returns a notification with the name of the listen in it.
func (l *listen) tagged(method string, params []byte) jsonrpc.Message {
	if params == nil {
		params = []byte("{}")
	}
	params, _ = jsonrpc.Set(params, l.rq.id, "_meta", protocol.MetaSubscriptionID)
	return newRequest(nil, method, params)
}

// changed takes a notification of the server to the listens that want it.
func (c *legacyServer) changed(m jsonrpc.Message) {
	c.mu.Lock()
	var all []*listen
	for _, rq := range c.inFlight {
		if l := rq.listen; l != nil && l.agreed.wants(m) {
			l.queued = append(l.queued, l.tagged(m.Method, m.Params))
			all = append(all, l)
		}
	}
	c.mu.Unlock()
	if m.Method == protocol.MethodToolsListChanged {
		c.sink.EmitUnrelated(m) // Holdfast looks at the tools again
	}
	for _, l := range all {
		c.flush(l)
	}
}

// flush sends the client of a listen the queued messages, in their order.
func (c *legacyServer) flush(l *listen) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !l.acked || l.flushing {
		return
	}
	l.flushing = true
	for len(l.queued) > 0 {
		m := l.queued[0]
		l.queued = l.queued[1:]
		c.mu.Unlock()
		c.sink.Emit(l.rq.call, m)
		c.mu.Lock()
	}
	l.flushing = false
}

// finish ends a listen from the server's side.
func (c *legacyServer) finish(l *listen) {
	c.mu.Lock()
	result, _ := jsonrpc.Set([]byte("{}"), l.rq.id, "_meta", protocol.MetaSubscriptionID)
	result = modernResult(l.rq.method, result, c.server.info)
	c.forget(l.rq)
	l.acked = true
	l.queued = append(l.queued, newResult(l.rq.id, result))
	c.mu.Unlock()
	c.flush(l)
	c.leave(l, backend.Inbound{})
}

// leave takes back the subscriptions of a listen that is over.
func (c *legacyServer) leave(l *listen, in backend.Inbound) {
	c.mu.Lock()
	if l.timer != nil {
		l.timer.Stop()
	}
	var requests []backend.Inbound
	for _, uri := range l.agreed.URIs {
		if s := c.subs[uri]; s != nil && c.phase != over {
			delete(s.wanted, l)
			s.changes = about(in, jsonrpc.Message{})
			requests = append(requests, c.step(s)...)
		}
	}
	c.mu.Unlock()
	c.out.later(requests...)
}

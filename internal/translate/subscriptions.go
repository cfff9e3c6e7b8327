package translate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// changes tells a legacy client of changes at a modern server: of its lists, and of the
// resources that the client has subscribed to. There is one listen for all. When the client
// wants other changes, another listen takes its place, and the old one is heard until the new
// one is acknowledged. Guarded by modernServer.mu.
type changes struct {
	lists   filter          // the lists that the server can tell of
	wanted  map[string]bool // resources
	current *watch          // acknowledged, or nil
	next    *watch          // on its way, or nil
	again   bool            // the wanted changes are others than when next was sent
	waiting []backend.Inbound
	torn    int    // how often the server has ended a listen since it last told of a change
	agreed  bool   // the server has agreed to tell of a change
	resting bool   // a listen that has ended is renewed later
	trouble string // the error of the last listen that is renewed, as the log has it; "": none since the server told of changes
}

// A watch is one subscriptions/listen.
type watch struct {
	id    []byte
	uris  map[string]bool
	timer *time.Timer // until it is acknowledged
	vain  bool        // the server has agreed to no changes
	// because is the message that made it necessary.
	because backend.Inbound
}

// watchLists adds the lists of which a server with these capabilities announces changes.
func (f *changes) watchLists(capabilities []byte) {
	server := serverFacts{capabilities: capabilities}
	f.lists.Tools = server.can("tools", "listChanged")
	f.lists.Prompts = server.can("prompts", "listChanged")
	f.lists.Resources = server.can("resources", "listChanged")
}

// subscribe handles a client's resources/subscribe and resources/unsubscribe.
func (c *modernServer) subscribe(in backend.Inbound) error {
	uri := jsonrpc.String(jsonrpc.Field(in.Params, "uri"))
	c.mu.Lock()
	server := serverFacts{capabilities: c.capabilities}
	f := &c.changes
	var answer jsonrpc.Message
	var moot []backend.Inbound // requests of the client that came before this one
	switch {
	case !server.can("resources", "subscribe"):
		answer = newError(in.ID, jsonrpc.CodeMethodNotFound, "method not found: %s: the server has no subscriptions", in.Method)
	case uri == "":
		answer = newError(in.ID, jsonrpc.CodeInvalidParams, "%s: uri must be a string", in.Method)
	case in.Method == protocol.MethodUnsubscribe:
		delete(f.wanted, uri)
		answer, moot = newResult(in.ID, nil), f.settle(map[string]bool{uri: true})
	case len(f.wanted) >= mostSubscriptions && !f.wanted[uri]:
		answer = newError(in.ID, jsonrpc.CodeServer, "%s: more than %d subscriptions", in.Method, mostSubscriptions)
	default:
		f.wanted[uri] = true
		f.waiting = append(f.waiting, in)
	}
	c.mu.Unlock()
	for _, before := range moot { // no listen may ever have the resource
		c.sink.Emit(before.Call, newResult(before.ID, nil))
	}
	if answer.Raw != nil {
		c.sink.Emit(in.Call, answer)
	}
	if answer.Error == nil {
		c.renew(in)
	}
	return nil
}

// renew sends the listen that is wanted now. in is the message that made that necessary.
func (c *modernServer) renew(in backend.Inbound) {
	c.mu.Lock()
	f := &c.changes
	if f.next != nil {
		f.again = true
		c.mu.Unlock()
		return
	}
	f.again = false
	if len(f.wanted) == 0 && f.lists.empty() {
		old := f.current
		f.current = nil
		c.mu.Unlock()
		c.unwatch(old)
		return
	}
	w := &watch{uris: maps.Clone(f.wanted), because: in}
	w.id = c.own.add(func(m jsonrpc.Message) { c.unwatched(w, m, in) })
	f.next = w
	want := f.lists
	want.URIs = slices.Sorted(maps.Keys(f.wanted))
	meta := append(clientMeta(c.client.info, c.client.capabilities), '}')
	c.mu.Unlock()
	text, err := json.Marshal(want)
	if err != nil {
		text = []byte("{}")
	}
	params := append(protocol.AppendMember(protocol.AppendMember([]byte{'{'}, "notifications", text), "_meta", meta), '}')
	timer := c.after(subscribeTimeout, func() {
		if c.own.fail(w.id, fmt.Errorf("not acknowledged within %v", subscribeTimeout)) {
			c.out.later(withdrawn(w.id)) // or the server would go on with it, over HTTP on a connection
		}
	})
	c.mu.Lock()
	w.timer = timer
	c.mu.Unlock()
	c.out.later(about(in, newRequest(w.id, protocol.MethodSubscriptions, params)))
}

// unwatch ends a listen, which may be nil.
func (c *modernServer) unwatch(w *watch) {
	if w == nil {
		return
	}
	c.own.drop(w.id)
	c.out.later(withdrawn(w.id))
}

// unwatched handles the end of a listen: the server's response to it.
func (c *modernServer) unwatched(w *watch, m jsonrpc.Message, in backend.Inbound) {
	c.mu.Lock()
	f := &c.changes
	acknowledged := f.current == w
	switch {
	case acknowledged:
		f.current = nil
	case f.next == w:
		f.next = nil
	default:
		c.mu.Unlock()
		return
	}
	again := f.again
	var waiting []backend.Inbound
	if !acknowledged {
		waiting = f.settle(w.uris)
		for _, in := range waiting {
			delete(f.wanted, jsonrpc.String(jsonrpc.Field(in.Params, "uri")))
		}
	}
	timer := w.timer
	f.torn++
	torn, vain := f.torn, w.vain
	lost := !acknowledged && f.agreed && f.current == nil
	if m.Error == nil && !acknowledged {
		m = newError(w.id, jsonrpc.CodeServer, "the server has ended the subscription")
	}
	changed := lost && f.isNew(string(m.Error))
	c.mu.Unlock()
	c.stop(timer)
	for _, in := range waiting {
		c.sink.Emit(in.Call, newFailure(in.ID, m.Error))
	}
	wait := pauseAfter(torn)
	if changed {
		c.noLongerTells(wait, string(m.Error))
	}
	switch {
	case again:
		c.renew(in)
	case acknowledged && !vain, lost: // a server that shuts down, or is away then, or that bounds how long a listen lasts
		c.renewLater(in, wait)
	case !acknowledged:
		c.log.Warn("the server does not tell of changes", "error", string(m.Error))
	}
}

// pauseAfter returns the pause before the next listen, after the server has ended or refused some.
func pauseAfter(torn int) time.Duration { return min(time.Second<<min(torn, 10), time.Minute) }

// isNew reports whether the log does not have the reason why a listen is renewed, and notes that it has it now. modernServer.mu is held.
func (f *changes) isNew(trouble string) bool {
	is := f.trouble != trouble
	f.trouble = trouble
	return is
}

func (c *modernServer) noLongerTells(next time.Duration, why string) {
	c.log.Warn("the server no longer tells of changes: it is asked again, after pauses of up to a minute", "next", next, "error", why)
}

// renewLater renews a listen that has ended after a time, unless there is another one by then.
func (c *modernServer) renewLater(in backend.Inbound, wait time.Duration) {
	f := &c.changes
	c.mu.Lock()
	rests := f.resting
	f.resting = true
	c.mu.Unlock()
	if rests {
		return
	}
	c.after(wait, func() {
		c.mu.Lock()
		f.resting = false
		is := f.current != nil && !f.current.vain || f.next != nil
		c.mu.Unlock()
		if !is {
			c.renew(about(in, jsonrpc.Message{}))
		}
	})
}

// settle removes the client's requests for these resources from those that wait, and returns them to be answered.
func (f *changes) settle(uris map[string]bool) []backend.Inbound {
	var settled []backend.Inbound
	f.waiting = slices.DeleteFunc(f.waiting, func(in backend.Inbound) bool {
		if !uris[jsonrpc.String(jsonrpc.Field(in.Params, "uri"))] {
			return false
		}
		settled = append(settled, in)
		return true
	})
	return settled
}

// receive takes a notification of the server that belongs to a listen, or ends one.
func (c *modernServer) receive(m jsonrpc.Message) {
	if m.Method == protocol.MethodCancelled { // stdio: the server ends a listen
		c.own.answer(newResult(jsonrpc.Field(m.Params, "requestId"), nil))
		return
	}
	id := key(jsonrpc.Field(m.Params, "_meta", protocol.MetaSubscriptionID))
	if m.Method == protocol.MethodAcknowledged {
		c.watched(id, jsonrpc.Field(m.Params, "notifications"))
		return
	}
	c.mu.Lock()
	ours := c.changes.current != nil && key(c.changes.current.id) == id
	if ours {
		c.changes.torn = 0
	}
	c.mu.Unlock()
	if !ours {
		return
	}
	rest := pick(jsonrpc.Field(m.Params, "_meta"), func(name string) bool { return name != protocol.MetaSubscriptionID })
	params, _ := jsonrpc.Set(m.Params, rest, "_meta")
	if string(rest) == "{}" {
		params = pick(m.Params, func(name string) bool { return name != "_meta" })
	}
	c.sink.EmitUnrelated(newRequest(nil, m.Method, params))
}

// watched handles the acknowledgement of a listen. agreed is the filter that the server agrees to.
func (c *modernServer) watched(id string, agreed []byte) {
	var f filter
	if json.Unmarshal(agreed, &f) != nil {
		f = filter{}
	}
	c.mu.Lock()
	w := c.changes.next
	if w == nil || key(w.id) != id {
		c.mu.Unlock()
		return
	}
	told := make(map[string]bool, len(f.URIs))
	for _, uri := range f.URIs {
		told[uri] = true
	}
	old := c.changes.current
	missed := (old == nil || old.vain) && c.changes.agreed
	c.changes.current, c.changes.next = w, nil
	w.vain = f.empty()
	if !w.vain {
		c.changes.trouble = ""
	}
	c.changes.agreed = c.changes.agreed || !w.vain
	again := c.changes.again
	settled := c.changes.settle(w.uris)
	timer := w.timer
	for _, in := range settled {
		uri := jsonrpc.String(jsonrpc.Field(in.Params, "uri"))
		f.drop(uri) // the client has just asked for it
		if !told[uri] {
			delete(c.changes.wanted, uri)
		}
	}
	const none = "it agrees to tell of none"
	lost := w.vain && c.changes.agreed && (len(c.changes.wanted) > 0 || !c.changes.lists.empty())
	if lost {
		c.changes.torn++
	}
	changed, wait := lost && c.changes.isNew(none), pauseAfter(c.changes.torn)
	c.mu.Unlock()
	c.stop(timer)
	c.unwatch(old)
	if changed {
		c.noLongerTells(wait, none)
	}
	if lost {
		c.renewLater(w.because, wait)
	}
	for _, in := range settled {
		uri := jsonrpc.String(jsonrpc.Field(in.Params, "uri"))
		if told[uri] {
			c.sink.Emit(in.Call, newResult(in.ID, nil))
		} else {
			c.sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeInvalidParams, "%s: the server does not tell of changes of %s", in.Method, uri))
		}
	}
	if missed {
		c.mayHaveChanged(&f)
	}
	if again {
		c.renew(backend.Inbound{})
	}
}

// mayHaveChanged tells the client that all that a filter lets through may have changed while no listen was heard.
func (c *modernServer) mayHaveChanged(f *filter) {
	tell := func(method string, is bool, params []byte) {
		if is {
			c.sink.EmitUnrelated(newRequest(nil, method, params))
		}
	}
	tell(protocol.MethodToolsListChanged, f.Tools, nil)
	tell(protocol.MethodPromptsListChanged, f.Prompts, nil)
	tell(protocol.MethodResourcesListChanged, f.Resources, nil)
	for _, uri := range f.URIs {
		tell(protocol.MethodResourceUpdated, true, jsonrpc.Object("uri", uri))
	}
}

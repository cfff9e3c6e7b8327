package session

import (
	"bytes"
	"context"
	"hash/fnv"
	"sync"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file tells clients to list again when the lists of a server have changed with the configuration file: on the
// standalone stream of a session, and in each subscriptions/listen of a carrier.

// A listTeller is a backend with many servers that may change their lists without a notification. It may be called concurrently, and does not wait.
type listTeller interface {
	// Lists returns a number that changes when clients of the server with a name have to list again; 0: the
	// conversation itself tells them.
	Lists(server string) uint64
}

// The lists of a server, the notifications of their changes, and the members of a listen's filter by which a client asks for these.
var changedLists = []struct{ capability, method, wanted string }{
	{"tools", protocol.MethodToolsListChanged, "toolsListChanged"},
	{"prompts", protocol.MethodPromptsListChanged, "promptsListChanged"},
	{"resources", protocol.MethodResourcesListChanged, "resourcesListChanged"},
}

// listsOf returns the number of the lists that clients of a server get now.
func (m *Manager) listsOf(server string) uint64 {
	if m.listTeller == nil {
		return 0
	}
	return m.listTeller.Lists(server)
}

// An offering says which lists a session's server offers, and which of them its clients know. Its methods may be called concurrently,
// and its lock is taken after Session.mu.
type offering struct {
	mu      sync.Mutex
	lists   uint64 // the number, of [listTeller], that clients were last told of
	answer  uint64 // a hash of the server's answer to initialize; 0: not known
	differs bool   // the answer is another one than when clients were last told
	begins  bool   // the session has begun again, and the server has not answered to initialize since
	lacks   uint8  // lists that the server does not have: bits
}

// known returns the answer and the lists that clients were last told, as they are remembered of a session that is asleep.
func (o *offering) known() asleep {
	o.mu.Lock()
	defer o.mu.Unlock()
	return asleep{answer: o.answer, lists: o.lists}
}

// isUnknown reports whether the session has begun again, and its server has not answered to initialize since.
func (o *offering) isUnknown() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.begins
}

// forget forgets the server's answer: the next one is not compared with it. If the session begins again, clients are told to list again in any case.
func (o *offering) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = 0
}

// take takes in the server's answer to initialize: clients are not told of changes in lists that the server does not have.
func (o *offering) take(result []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lacks, o.answer = 0, hashOf(result)
	capabilities := jsonrpc.Field(result, "capabilities")
	for i, list := range changedLists {
		if capabilities != nil && jsonrpc.Field(capabilities, list.capability) == nil {
			o.lacks |= 1 << i
		}
	}
}

// compare takes in the answer to an initialize that was made again, and reports whether the session has begun again, and whether the
// answer differs from the one before. lists is the number of the lists; 0: the conversation itself tells of them.
func (o *offering) compare(result []byte, lists uint64) (begun, differs bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	is := hashOf(result)
	begun, o.begins = o.begins, false
	switch {
	case begun:
		return true, o.answer != is
	case lists == 0:
		return false, false
	}
	o.differs = o.differs || o.answer != 0 && o.answer != is
	o.answer = is
	return false, o.differs
}

// changed reports whether clients have to be told that the lists have changed, and notes that they are. lists is their number, and
// lacks are those that the server does not have.
func (o *offering) changed(lists uint64) (lacks uint8, changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	changed = o.lists != lists || o.differs
	o.lists, o.differs = lists, false
	return o.lacks, changed
}

// tellLists tells the session's clients that the lists have changed, if they have since the clients were last told. A
// client that has not sent notifications/initialized yet is told later.
func (s *Session) tellLists() {
	now, lacks, changed := s.m.listsOf(s.Server()), uint8(0), false
	var listens []*inflight
	locked(s, func() {
		if !s.isClosed() && (s.modern != "" || s.backend.initialized) {
			lacks, changed = s.offering.changed(now)
		}
		if changed {
			s.Tools.Forget()
			listens, _ = s.requests.listens()
		}
	})
	if !changed || now == 0 {
		return
	}
	var all []string
	for i, list := range changedLists {
		if s.modern == "" {
			if lacks&(1<<i) == 0 {
				all = append(all, list.method)
			}
			continue
		}
		for _, rq := range listens {
			if string(jsonrpc.Field(rq.listen.Params, "notifications", list.wanted)) == "true" {
				params, _ := jsonrpc.Set([]byte("{}"), []byte(rq.id), "_meta", protocol.MetaSubscriptionID)
				rq.call.emit(jsonrpc.AppendRequest(nil, nil, list.method, params), false)
			}
		}
	}
	relist(s, all)
}

// relist tells the client of a session to list again, by notifications with some methods. The client need not be connected: if
// the session falls asleep before the client reads them, it is told when the session wakes.
func relist(s *Session, methods []string) {
	if len(methods) == 0 {
		return
	}
	c := s.standalone
	c.mu.Lock()
	before := c.said
	c.mu.Unlock()
	for _, method := range methods {
		c.emit(jsonrpc.AppendRequest(nil, nil, method, nil), false)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said == before+uint64(len(methods)) { // else the server has said something, too
		s.relisted.after, s.relisted.through = before, c.said
	}
}

// answeredAgain takes in the server's answer to an initialize that was made again. If it differs from the answer before, it may come
// from another version of the server, and clients are told to list again. If the session has begun again, its old answer is known only
// if it was asleep: else its client is told, too.
func (s *Session) answeredAgain(result []byte) {
	begun, differs := s.offering.compare(result, s.m.listsOf(s.Server()))
	if begun {
		locked(s, func() { s.noteOffer(result) })
	}
	switch {
	case !differs:
	case !begun:
		s.tellLists()
	default:
		var all []string
		for _, list := range changedLists {
			if string(jsonrpc.Field(result, "capabilities", list.capability, "listChanged")) == "true" {
				all = append(all, list.method)
			}
		}
		relist(s, all)
	}
}

// hashOf returns a hash of a text. It is not 0.
func hashOf(text []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(text) // it never fails
	return max(h.Sum64(), 1)
}

// noteOffer takes in the services and lists that are offered with a server, by its answer to initialize. s.mu is held.
func (s *Session) noteOffer(result []byte) {
	s.offers.Store(offers(s.m, func(f Service) bool { return f.Suits(s, s.revision, result) }))
	s.offering.take(result)
}

// keepListen keeps a subscriptions/listen of a carrier that is about to be delivered: if the conversation is replaced it is made
// again in the next one, and its client need not know. rq may be nil. Session.mu is held.
func (rq *inflight) keepListen(in *backend.Inbound) {
	if rq == nil || in.Method != protocol.MethodSubscriptions || rq.listen != nil || rq.call.s.modern == "" || rq.call.s.m.listTeller == nil {
		return
	}
	m, err := jsonrpc.Parse(bytes.Clone(in.Raw)) // without the body around it
	if err != nil {
		return // it is delivered, and not made again
	}
	rq.listen = &backend.Inbound{Message: m, Call: in.Call, Header: in.Header}
	if in.Context != nil {
		rq.listen.Context = context.WithoutCancel(in.Context)
	}
}

// listens returns the requests that can be made again in another conversation, and reports whether there are no others. Session.mu is
// held.
func (q *requests) listens() (all []*inflight, only bool) {
	others := false
	for rq := range q.each {
		if others = others || rq.listen == nil; rq.listen != nil {
			all = append(all, rq)
		}
	}
	return all, !others && len(all) > 0
}

// acknowledgedAgain notes that a listen was acknowledged, and reports whether the conversation before this one had acknowledged
// it, too. Session.mu is held.
func (q *requests) acknowledgedAgain(c *Call) (again bool) {
	all, _ := q.listens()
	for _, rq := range all {
		if rq.call == c {
			again, rq.acked = rq.acked, true
		}
	}
	return again
}

// listenAgain makes listens again, in the next conversation.
func (s *Session) listenAgain(listens []*inflight) {
	if len(listens) == 0 {
		return
	}
	s.m.work.Go(func() {
		for _, rq := range listens {
			ctx := rq.listen.Context
			if ctx == nil {
				ctx = context.Background()
			}
			if err := s.deliver(ctx, *rq.listen); err != nil {
				s.requests.fail(rq.listen.ID, rq.call, notDelivered(err))
			}
		}
	})
}

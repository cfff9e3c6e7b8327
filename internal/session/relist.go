package session

import (
	"bytes"
	"context"
	"hash/fnv"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows tells clients that what a server of a configuration file offers has changed with the file, so that they
// list it again: on the standalone stream of a session, and in each subscriptions/listen of a carrier.

// A listTeller is a backend with many servers whose lists may change without them saying so. It may be called concurrently, and does not wait.
type listTeller interface {
	// Lists returns a number that changes when clients of the server with a name are to list again; 0: the
	// conversation itself tells them.
	Lists(server string) uint64
}

// The lists of a server, and what tells of their changes; and the member of a listen's filter that wants to be told.
var changedLists = []struct{ capability, method, wanted string }{
	{"tools", protocol.MethodToolsListChanged, "toolsListChanged"},
	{"prompts", protocol.MethodPromptsListChanged, "promptsListChanged"},
	{"resources", protocol.MethodResourcesListChanged, "resourcesListChanged"},
}

// listsOf returns the number of the lists that clients of a server know if they ask now.
func (m *Manager) listsOf(server string) uint64 {
	if m.listTeller == nil {
		return 0
	}
	return m.listTeller.Lists(server)
}

// tellLists tells the session's clients that the lists have changed, if they have since the clients were last told. One
// that has not said yet that the session is initialized is told later.
func (s *Session) tellLists() {
	now := s.m.listsOf(s.Server())
	s.mu.Lock()
	if s.lists == now && !s.differs || s.isClosed() || s.modern == "" && !s.backend.initialized {
		s.mu.Unlock()
		return
	}
	s.lists, s.differs = now, false
	s.Tools.Forget()
	var listens []*inflight
	for rq := range s.requests.each {
		if rq.listen != nil {
			listens = append(listens, rq)
		}
	}
	lacks := s.lacks
	s.mu.Unlock()
	if now == 0 {
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

// relist tells the client of a session to list again, by the methods of notifications. It need not be connected: if the session
// falls asleep before that, it is told when the session wakes.
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

// answeredAgain takes in the server's answer to an initialize that was made again. If it is another one than before, it may be of
// another version of the server, and clients are told. So they are where the session has begun again, as the server knows nothing of it;
// but one that was asleep has lost nothing.
func (s *Session) answeredAgain(result []byte) {
	s.mu.Lock()
	revived, is := s.backend.revived, hashOf(result)
	same := s.backend.answer == is
	if s.backend.revived = false; revived {
		s.noteOffer(result)
		s.backend.answer = is
	}
	s.mu.Unlock()
	if revived && same {
		return
	}
	if revived {
		var all []string
		for _, list := range changedLists {
			if string(jsonrpc.Field(result, "capabilities", list.capability, "listChanged")) == "true" {
				all = append(all, list.method)
			}
		}
		relist(s, all)
		return
	}
	if s.m.listsOf(s.Server()) == 0 {
		return
	}
	s.mu.Lock()
	s.differs = s.differs || s.backend.answer != 0 && s.backend.answer != is
	s.backend.answer = is
	differs := s.differs
	s.mu.Unlock()
	if differs {
		s.tellLists()
	}
}

// hashOf returns a number for a text, which is not 0.
func hashOf(text []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(text) // it never fails
	return max(h.Sum64(), 1)
}

// noteOffer takes in what a server offers, by its answer to initialize: of lists that it does not have clients are told
// nothing. s.mu is held.
func (s *Session) noteOffer(result []byte) {
	s.offers.Store(offers(s.m, func(f Service) bool { return f.Suits(s, s.revision, result) }))
	s.lacks = 0
	capabilities := jsonrpc.Field(result, "capabilities")
	for i, list := range changedLists {
		if capabilities != nil && jsonrpc.Field(capabilities, list.capability) == nil {
			s.lacks |= 1 << i
		}
	}
}

// keepListen keeps a subscriptions/listen that is about to be delivered: if the conversation is replaced it is made
// again in the next one, and its client need not know. rq may be nil. s.mu is held.
func (s *Session) keepListen(rq *inflight, in *backend.Inbound) {
	if rq == nil || s.modern == "" || s.m.listTeller == nil || in.Method != protocol.MethodSubscriptions || rq.listen != nil {
		return
	}
	m, err := jsonrpc.Parse(bytes.Clone(in.Raw)) // and not the body with it
	if err != nil {
		return // it is delivered, and not made again
	}
	rq.listen = &backend.Inbound{Message: m, Call: in.Call, Header: in.Header}
	if in.Context != nil {
		rq.listen.Context = context.WithoutCancel(in.Context)
	}
}

// acknowledgedAgain notes that a listen was acknowledged, and reports whether it was before: by the conversation before this one.
// s.mu is held.
func acknowledgedAgain(s *Session, c *Call) bool {
	for rq := range s.requests.each {
		if rq.call == c && rq.listen != nil {
			again := rq.acked
			rq.acked = true
			return again
		}
	}
	return false
}

// onlyListens returns the requests in flight in a carrier, if there are no others than listens, which can be made again in
// another conversation. s.mu is held.
func (s *Session) onlyListens() (all []*inflight, only bool) {
	if s.modern == "" || s.lists == 0 || s.isClosed() || s.backend.opening != nil || s.Tools.IsReading() || s.asked.len() > 0 {
		return nil, false
	}
	for rq := range s.requests.each {
		if rq.listen == nil {
			return nil, false
		}
		all = append(all, rq)
	}
	return all, len(all) > 0 && int(s.use.calls.Load()) == len(all)
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

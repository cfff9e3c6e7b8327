package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A serverRequest is a request of the server to which the host has yet to reply.
type serverRequest struct {
	call *call // the call of the stream on which it came; nil: it came on the standalone stream
	// id is the server's id, if the host knows the request by another one: the host may
	// still reply to an older request under the server's id.
	id []byte
	// reply takes the host's reply, if the server gets that in another way; else nil. Its
	// buffer has room for the reply.
	reply chan<- jsonrpc.Message
}

// mostStale bounds how many requests are remembered that no longer need a reply, but may
// still get one.
const mostStale = 1000

// mostAsked bounds how many requests of the server wait: for the host to reply, or for the
// server to take the reply. mostSending bounds how many replies are being sent at a time:
// each may take a connection of its own.
const (
	mostAsked   = 10_000
	mostSending = 256
)

// serverRequests are the requests of the server that wait. Its methods may be called
// concurrently.
type serverRequests struct {
	c       *Conn
	sending chan struct{} // has room for each reply that is being sent

	mu      sync.Mutex
	open    map[string]*serverRequest // without a reply, by the key of their id
	renames int                       // how many of them the host knows by another id
	stale   map[string]struct{}       // keys of requests that no longer need a reply
	replies int                       // of the host that the server has not taken yet
	full    bool                      // the server has made too many requests at a time
}

func (s *serverRequests) init(c *Conn) {
	s.c, s.sending, s.open = c, make(chan struct{}, mostSending), make(map[string]*serverRequest)
}

// add notes a request of the server, and reports whether it is new. The request gets another id if the host
// may still reply to an older one under its own. dropped says that it is the first one beyond [mostAsked].
func (s *serverRequests) add(k *call, m *jsonrpc.Message, newID func() []byte) (isNew, dropped bool) {
	rq, key := &serverRequest{call: k}, string(jsonrpc.Key(m.ID))
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.renamed(k, key); other != "" && s.open[other].call == k {
		return false, false // the host has it
	}
	if _, old := s.stale[key]; old {
		rq.id, m.ID = m.ID, newID()
		m.Raw = m.WithID(m.ID)
		key = string(m.ID)
	}
	if _, again := s.open[key]; again {
		return false, false // the host has it
	}
	if len(s.open)+s.replies >= mostAsked {
		dropped, s.full = !s.full, true
		return false, dropped
	}
	if s.open[key] = rq; rq.id != nil {
		s.renames++
	}
	return true, false
}

// ask notes a request to the host that has an id of our own. It reports false if too many requests wait.
func (s *serverRequests) ask(k *call, id []byte, reply chan<- jsonrpc.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open)+s.replies >= mostAsked {
		return false
	}
	s.open[string(jsonrpc.Key(id))] = &serverRequest{call: k, reply: reply}
	return true
}

// take returns the request with an id, and forgets it. It returns nil if there is none.
func (s *serverRequests) take(id []byte) *serverRequest {
	key := string(jsonrpc.Key(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	rq := s.open[key]
	s.close(key)
	delete(s.stale, key)
	return rq
}

// close takes a request off the open ones, if it is one of them. s.mu is held.
func (s *serverRequests) close(key string) {
	if rq := s.open[key]; rq != nil && rq.id != nil {
		s.renames--
	}
	delete(s.open, key)
}

// forget forgets the requests for which gone is true: they no longer need a reply.
func (s *serverRequests) forget(gone func(*serverRequest) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, rq := range s.open {
		if !gone(rq) {
			continue
		}
		s.close(key)
		if s.stale == nil || len(s.stale) >= mostStale {
			s.stale = make(map[string]struct{})
		}
		s.stale[key] = struct{}{}
	}
}

// forgetCall forgets the requests of a call.
func (s *serverRequests) forgetCall(k *call) {
	s.forget(func(rq *serverRequest) bool { return rq.call == k })
}

// loseSession forgets the requests of a session that is gone: another session may use their ids.
func (s *serverRequests) loseSession(id string) {
	s.forget(func(rq *serverRequest) bool { return rq.call == nil || rq.call.current().id == id })
}

// count counts n more replies that the server has not taken, or fewer.
func (s *serverRequests) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies += n
}

// pass gives a request of the server to the host. It answers a ping itself, at once: a ping asks whether the
// peer is there, and the Conn is the peer.
func (s *serverRequests) pass(k *call, m jsonrpc.Message) {
	if m.Method == protocol.MethodPing {
		s.pong(k, m.ID)
		return
	}
	isNew, dropped := s.add(k, &m, s.c.newID)
	if dropped {
		s.c.logger.Warn("requests of the server are dropped: too many of them wait for a response", "most", mostAsked)
	}
	if !isNew {
		return
	}
	if k != nil {
		k.turns.opened()
	}
	s.c.deliver(k, m)
}

// pong answers a ping. A ping on the stream of initialize is answered in the Conn's session, which the header of
// that stream has named, and not in the call's.
func (s *serverRequests) pong(k *call, id []byte) {
	c := s.c
	if !s.takesReply() {
		return
	}
	raw := jsonrpc.AppendResult(nil, id, nil)
	if k != nil && k.method == protocol.MethodInitialize {
		k = nil
	}
	ok := c.spawn(func() {
		defer s.count(-1)
		select {
		case s.sending <- struct{}{}:
			defer func() { <-s.sending }()
		case <-c.ctx.Done():
			return
		}
		if err := c.transport().pong(c.ctx, k, raw); err != nil && c.ctx.Err() == nil {
			c.logger.Debug("ping of the server not answered", "error", err)
		}
	})
	if !ok {
		s.count(-1)
	}
}

// takesReply counts a reply, and reports whether there is room for it.
func (s *serverRequests) takesReply() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open)+s.replies >= mostAsked {
		return false
	}
	s.replies++
	return true
}

// renamed returns the key of the request that the server knows by an id, and the host by another one; "" if there is none. Of several,
// as of a server that begins its ids anew in each call, it is that of the call k, if one is. s.mu is held.
func (s *serverRequests) renamed(k *call, id string) (found string) {
	if s.renames == 0 { // as a rule
		return ""
	}
	for key, rq := range s.open {
		if rq.id != nil && string(jsonrpc.Key(rq.id)) == id && (found == "" || rq.call == k) {
			found = key
		}
	}
	return found
}

// withdrawn forgets a request that the server has taken back by the notification m, which came on the stream of the call k; nil: on the
// standalone one. It returns m with the id that the host knows.
func (s *serverRequests) withdrawn(k *call, m jsonrpc.Message) jsonrpc.Message {
	id := jsonrpc.Field(m.Params, "requestId")
	key := string(jsonrpc.Key(id))
	s.mu.Lock()
	own := s.open[key] // it may be another call's request
	if other := s.renamed(k, key); other != "" && (own == nil || own.call != k || s.open[other].call == k) {
		id = []byte(other)
		m.Raw, _ = jsonrpc.Set(m.Raw, id, "params", "requestId")
		m = protocol.Parsed(m.Raw, m)
	}
	s.mu.Unlock()
	if rq := s.take(id); rq != nil && rq.call != nil {
		rq.call.turns.settled(nil)
		rq.call.settle()
	}
	return m
}

// reply sends the host's reply to a request of the server. A second reply is dropped.
func (s *serverRequests) reply(ctx context.Context, m jsonrpc.Message) error {
	rq := s.take(m.ID)
	if rq == nil {
		return nil
	}
	if rq.reply != nil {
		rq.reply <- m
		return nil
	}
	if rq.id != nil {
		m.Raw = m.WithID(rq.id)
	}
	k := rq.call
	if k != nil {
		defer k.settle()
	}
	if k == nil || s.c.transport().shared() {
		if k != nil {
			k.turns.settled(nil)
		}
		return s.sendReply(ctx, k, m.Raw)
	}
	k.mu.Lock()
	multiTurn, keys := k.ways.stream != nil && !k.ways.refused[attemptStream], k.session.keys
	k.mu.Unlock()
	k.turns.mu.Lock()
	connected := k.turns.connected
	k.turns.mu.Unlock()
	if !multiTurn || keys && connected {
		// A server that honours keys is a Holdfast, and takes replies at any time.
		k.turns.settled(nil)
		return s.sendReply(ctx, k, m.Raw)
	}
	k.turns.settled(m.Raw)
	if keys && k.gather() {
		k.backoff.poke() // the server has ended the connection to wait for the replies
		return nil
	}
	s.c.spawn(func() { s.sendHeld(k) })
	return nil
}

// sendReply sends a reply in the background, until the server has it. k is the call that the reply belongs to, or
// nil. host is the context with which the host has sent it, or one without values if that is not known any more.
func (s *serverRequests) sendReply(host context.Context, k *call, raw []byte) error {
	c := s.c
	ctx := c.ctx
	if k != nil {
		ctx = k.ctx
		k.turns.post(1)
	}
	ctx = sentWith(ctx, host)
	s.count(1)
	ok := c.spawn(func() {
		defer s.count(-1)
		if k != nil {
			defer k.settle()
			defer k.turns.post(-1)
		}
		select {
		case s.sending <- struct{}{}:
			defer func() { <-s.sending }()
		case <-ctx.Done():
			return
		}
		if err := c.tell(ctx, k, raw, c.opts.GiveUp); err != nil && ctx.Err() == nil {
			c.logger.Warn("reply not delivered", "error", err)
		}
	})
	if !ok {
		s.count(-1)
		return ErrClosed
	}
	return nil
}

// askHost gives an input request to the host as a request of the server, and returns its
// result. If the call ends first, askHost takes the request back.
func (s *serverRequests) askHost(k *call, rq []byte) ([]byte, error) {
	method := jsonrpc.String(jsonrpc.Field(rq, "method"))
	switch method {
	case "elicitation/create", "sampling/createMessage", "roots/list":
	default:
		return nil, fmt.Errorf("the server asks for %.60q, which no input request is", method)
	}
	id := s.c.newID()
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, id, method, jsonrpc.Field(rq, "params")))
	if err != nil {
		return nil, err
	}
	reply := make(chan jsonrpc.Message, 1)
	if !s.ask(k, id, reply) {
		return nil, errors.New("too many requests of the server wait for a response")
	}
	s.c.deliver(k, m)
	select {
	case m = <-reply:
	case <-k.ctx.Done():
		if back, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, nil, protocol.MethodCancelled, append(append([]byte(`{"requestId":`), id...), '}'))); err == nil {
			s.c.deliver(k, back)
		}
		return nil, context.Cause(k.ctx)
	}
	switch {
	case m.Error == nil:
		return m.Result, nil
	case method == "elicitation/create":
		return []byte(`{"action":"cancel"}`), nil
	}
	return nil, errorOf(m.Error)
}

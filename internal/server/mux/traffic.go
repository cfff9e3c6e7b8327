package mux

import (
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/server/exchange"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A traffic has the exchanges of a connection that have goroutines of their own, and the connection's state. Its methods may
// be called concurrently.
type traffic struct {
	ready chan struct{}  // signalled when [mux.run] may have something to do
	work  sync.WaitGroup // goroutines that copy from the log, or wait

	mu            sync.Mutex
	state         state
	open          map[*carried]struct{}
	foreign       map[string]*carried       // the exchanges of other sessions, by the ids of their requests
	otherSessions bool                      // a call of another session was resumed here, or a request without a session has come
	modern        map[string]*modernRequest // the requests of revision 2026-07-28 in flight, by their ids
	early         *delivery                 // for which cancellations of light calls wait; nil: none does
	waiting       int                       // calls that wait for their turn, and requests of revision 2026-07-28 that are served
}

// A state of a connection:
//
//	open      messages come in         → leaving: a call can't continue here
//	open      messages come in         → finished: the client sends no more
//	leaving   the client is to come back as soon as no request is unanswered
//	finished  the connection ends when all answers were sent
//	any       → closed: it has ended
//
// A connection stays leaving when the client sends no more: a request is unanswered.
type state uint8

const (
	stateOpen state = iota
	stateLeaving
	stateFinished
	stateClosed
)

// become changes the state, if the table above has the transition.
func (t *traffic) become(to state) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state == stateOpen || to == stateClosed {
		t.state = to
	}
	reading.Wake(t.ready)
}

// comeBack ends the connection as soon as no request is unanswered, so that the client comes back for a call that can't continue here.
func (t *traffic) comeBack() { t.become(stateLeaving) }

// is reports whether the connection is in a state.
func (t *traffic) is(s state) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state == s
}

// carry adds an exchange and calls begin, which starts its goroutine. It returns false if the connection has ended or begin returns
// false. foreign says that the exchange may be of another session. begin must not wait.
func (t *traffic) carry(x *carried, foreign bool, begin func() bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state == stateClosed || !begin() {
		return false
	}
	t.open[x] = struct{}{}
	if foreign {
		t.otherSessions = true
		t.takeIDs(x)
	}
	return true
}

// drop removes an exchange that is over.
func (t *traffic) drop(x *carried) {
	t.freeIDs(x)
	t.mu.Lock()
	delete(t.open, x)
	t.mu.Unlock()
	reading.Wake(t.ready)
}

// takeIDs notes that the ids of requests of another session are in use on the connection. A
// forwarded exchange with one of these ids is superseded. t.mu is held.
func (t *traffic) takeIDs(x *carried) {
	if t.foreign == nil {
		t.foreign = make(map[string]*carried)
	}
	for _, id := range x.ids {
		key := string(jsonrpc.Key(id))
		if old := t.foreign[key]; old != nil && old.forward != nil && old != x {
			old.forward.wanted = wantedBySuccessor
			old.forward.stop()
		}
		t.foreign[key] = x
	}
}

// freeIDs undoes takeIDs.
func (t *traffic) freeIDs(x *carried) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.foreign) == 0 {
		return
	}
	for _, id := range x.ids {
		if key := string(jsonrpc.Key(id)); t.foreign[key] == x {
			delete(t.foreign, key)
		}
	}
}

// foreignWith returns the exchange of another session that has a request with an id, or nil.
func (t *traffic) foreignWith(id []byte) *carried {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.foreign[string(jsonrpc.Key(id))]
}

// isTaken reports whether a request with an id is in flight that is of another session than key's, or of revision 2026-07-28.
func (t *traffic) isTaken(key stream.SessionKey, id []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	other := t.foreign[string(jsonrpc.Key(id))]
	return other != nil && other.key != key || t.modern[string(jsonrpc.Key(id))] != nil
}

// cancels notes that msg cancels a request, if it does. A forwarded request's stream may end
// without a response then, and its id is free, as it is on the owner.
//
// If the request is made again by the connection, cancels returns its delivery, which msg must not overtake. left says that
// light calls may be about to be made again: then the result ends after that, and cancels is to be called again.
func (t *traffic) cancels(msg *jsonrpc.Message, left bool) *delivery {
	if msg.Method != protocol.MethodCancelled {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := string(jsonrpc.Key(jsonrpc.Field(msg.Params, "requestId")))
	if x := t.foreign[key]; x != nil && x.forward != nil {
		x.forward.wanted = max(x.forward.wanted, wantedNoMore)
		delete(t.foreign, key)
		if x.forward.again {
			return x.forward.delivery
		}
		return nil
	}
	if !left {
		return nil
	}
	if t.early == nil {
		t.early = newDelivery()
		reading.Wake(t.ready)
	}
	return t.early
}

// takeEarly returns the delivery for which cancellations of light calls wait that are about to be made again; nil: none waits. Later
// ones wait for another.
func (t *traffic) takeEarly() *delivery {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.early
	t.early = nil
	return d
}

// wants returns s.wanted.
func (t *traffic) wants(s *forwarded) wanted {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.wanted
}

// await calls prepare, and the function that it returns on a goroutine; until that returns, a request counts as unanswered. await
// returns false, and calls neither, if the connection has ended.
func (t *traffic) await(prepare func() (do func())) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state == stateClosed {
		return false
	}
	t.waits(prepare())
	return true
}

// waits is await where t.mu is held.
func (t *traffic) waits(do func()) {
	t.waiting++
	t.work.Go(func() {
		do()
		t.mu.Lock()
		t.waiting--
		t.mu.Unlock()
		reading.Wake(t.ready)
	})
}

// isAnyWaiting reports whether a call of the connection waits for its turn, or a request of revision 2026-07-28 for its answer.
func (t *traffic) isAnyWaiting() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting > 0
}

// mostModern is how many requests of revision 2026-07-28 a connection has in flight: as many as a session.
const mostModern = exchange.MostBatch

// serveModern serves a request of revision 2026-07-28 on a goroutine. It returns false, maybe with an error, if it does not.
func (t *traffic) serveModern(x *modernRequest) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.state == stateClosed:
		return false, nil
	case len(t.modern) >= mostModern:
		return false, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "more than %d requests in flight on one connection: wait for some of their responses", mostModern)
	}
	if t.modern == nil {
		t.modern = make(map[string]*modernRequest)
	}
	t.otherSessions = true
	t.modern[x.key()] = x
	t.waits(func() {
		x.serve()
		x.cancel(nil)
		t.freeModern(x)
	})
	return true, nil
}

// freeModern frees the id of a request of revision 2026-07-28.
func (t *traffic) freeModern(x *modernRequest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.modern[x.key()] == x {
		delete(t.modern, x.key())
	}
}

// withdrawn returns the request of revision 2026-07-28 that a message cancels, or nil.
func (t *traffic) withdrawn(msg *jsonrpc.Message) *modernRequest {
	if msg.Kind != jsonrpc.Notification || msg.Method != protocol.MethodCancelled {
		return nil
	}
	id := jsonrpc.Field(msg.Params, "requestId")
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.modern[string(jsonrpc.Key(id))]
}

// stopListens ends the listens, which never end by themselves, of a client that sends no more.
func (t *traffic) stopListens() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.modern {
		if x.msg.Method == protocol.MethodSubscriptions {
			x.cancel(nil)
		}
	}
}

// isAlone reports whether no call is copied from a stream of this or of another node.
func (t *traffic) isAlone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open) == 0
}

// announced reports whether the client got the tokens of all calls that are copied.
func (t *traffic) announced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for x := range t.open {
		if !x.Announced.Load() && (x.forward == nil || x.forward.unsafe) {
			return false
		}
	}
	return true
}

// disconnects reports whether a call has asked for the connection's end. retry says when the client may come back; usual is its
// default.
func (t *traffic) disconnects(usual time.Duration) (retry time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for x := range t.open {
		if asked := x.Retry.Swap(nil); asked != nil {
			if *asked < 0 {
				return usual, true
			}
			return *asked, true
		}
	}
	return 0, false
}

// left returns the exchanges that are in flight.
func (t *traffic) left() []*carried {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.open))
}

// hasOthers reports whether the client came for calls of other sessions.
func (t *traffic) hasOthers() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.otherSessions
}

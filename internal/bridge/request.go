package bridge

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"holdfast/client"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// requestState is where a request is in its life:
//
//	state       event      next state
//	inFlight    responded  delivering   the server, or the client, has a response
//	inFlight    cancelled  ended        the host does not want the response
//	delivering  delivered  ended        the host has the response
//	delivering  refused    answered     the host takes nothing; the request must not run twice
//	delivering  dropped    ended        the host takes nothing; the request may run twice
//	abandoned   responded  answered
//	abandoned   repeated   inFlight     a host makes the same request again
//	abandoned   dropped    ended        too old, or another process has taken it over
//	answered    repeated   delivering
//	answered    dropped    ended
//
// A request of the host begins inFlight. A request that an earlier process had in flight, or
// that was taken over from another process, begins abandoned or answered.
type requestState uint8

const (
	inFlight   requestState = iota + 1 // the host waits for the response
	delivering                         // the response is being written to the host
	abandoned                          // the server works on it, and no host waits
	answered                           // the response is there, and no host waits
	ended
)

type requestEvent uint8

const (
	responded requestEvent = iota + 1
	cancelled
	delivered
	refused
	repeated
	dropped
)

// requestMoves is the table of [requestState].
var requestMoves = map[requestState]map[requestEvent]requestState{
	inFlight:   {responded: delivering, cancelled: ended},
	delivering: {delivered: ended, refused: answered, dropped: ended},
	abandoned:  {responded: answered, repeated: inFlight, dropped: ended},
	answered:   {repeated: delivering, dropped: ended},
}

// A request is a request of a host, in this process or an earlier one.
type request struct {
	id     []byte // at the server
	hostID []byte // at the host, in states inFlight and delivering
	token  []byte // the host's progress token, or nil
	method string
	state  requestState
	from   origin // in states inFlight and delivering

	// For a request that must not run twice:
	print  fingerprint
	place  *client.CallState // its place at the server, as last known
	left   time.Time         // when its host left it; zero: it has not
	answer []byte            // the response, in state answered
	task   time.Time         // when it became a task; zero: it has not
	handle bool              // a host of this process has the task's id
	kept   []byte            // hostID, until the host did not take the answer
	parked []jsonrpc.Message // questions of the server in state abandoned
}

// maxParked bounds the questions of a call that no host waits for.
const maxParked = 100

// mustRunOnce reports whether a request of a method must not run twice.
func mustRunOnce(method string) bool { return !protocol.RetrySafe(method, nil) }

// requests is the table of the requests that the host waits for, and of those that no host
// waits for. At the server they have ids of the bridge: a restarted host counts from 1 again,
// and its old ids may still be in flight.
//
// It does no I/O. Methods may be called concurrently.
type requests struct {
	ids rpc.OwnIDs

	mu     sync.Mutex
	byID   map[string]*request
	byHost map[string]*request             // in state inFlight, by the host's ids
	own    map[string]chan jsonrpc.Message // of the bridge itself, by id: take the responses
}

func newRequests() *requests {
	return &requests{
		byID: make(map[string]*request), byHost: make(map[string]*request), own: make(map[string]chan jsonrpc.Message),
	}
}

var errDuplicateID = errors.New("a request with this id is in flight")

// move changes the state of a request by an event. It reports whether the table has such a
// transition; if not, nothing changes. t.mu is held.
func (t *requests) move(r *request, e requestEvent) bool {
	next, ok := requestMoves[r.state][e]
	if !ok {
		return false
	}
	if r.state == inFlight && t.byHost[string(jsonrpc.Key(r.hostID))] == r {
		// The host may use its id again as soon as it has the response.
		delete(t.byHost, string(jsonrpc.Key(r.hostID)))
	}
	r.state = next
	switch next {
	case inFlight:
		t.byHost[string(jsonrpc.Key(r.hostID))] = r
	case answered, abandoned:
		r.hostID, r.token, r.from = nil, nil, origin{}
	case ended:
		delete(t.byID, string(r.id))
	}
	return true
}

// newID returns an id for a request.
func (t *requests) newID() []byte { return t.ids.Next() }

// begin puts a request of the host into the table. It returns the request for the server.
func (t *requests) begin(m jsonrpc.Message, print fingerprint, from origin) (*request, []byte, error) {
	r := &request{from: from, hostID: m.ID, method: m.Method, token: progressToken(m), print: print, state: inFlight}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := string(jsonrpc.Key(m.ID))
	if t.byHost[key] != nil {
		return nil, nil, errDuplicateID
	}
	r.id = t.newID()
	raw := m.WithID(r.id)
	if r.token != nil {
		if mapped, ok := jsonrpc.Set(raw, r.id, "params", "_meta", "progressToken"); ok {
			raw = mapped
		}
	}
	t.byID[string(r.id)], t.byHost[key] = r, r
	return r, raw, nil
}

func progressToken(m jsonrpc.Message) []byte {
	return jsonrpc.Field(m.Params, "_meta", "progressToken")
}

// waitsFor reports whether the host waits for a request with an id of its own.
func (t *requests) waitsFor(hostID []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byHost[string(jsonrpc.Key(hostID))] != nil
}

// restore puts calls that no host waits for into the table. They are from an earlier process, or from
// another. It returns the places of the calls that have no response yet, which the client has to continue.
func (t *requests) restore(calls []callRecord) (places []client.CallState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range calls {
		if r := t.add(&c); r.state == abandoned {
			places = append(places, *r.place)
		}
	}
	return places
}

// add puts a call that no host waits for into the table. t.mu is held.
func (t *requests) add(c *callRecord) *request {
	r := &request{id: c.ID, method: c.Method, print: c.fingerprint, place: c.Place, left: c.Left, answer: c.Answer, task: c.Task, state: answered}
	if r.answer == nil {
		r.state = abandoned
	}
	t.byID[string(r.id)] = r
	return r
}

// adopt is restore and repeat in one step, for a call of another process and the host's request that continues it: no other
// request can take the call in between.
func (t *requests) adopt(c *callRecord, m jsonrpc.Message, from origin) (toDeliver *request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.add(c)
	r.handle = taskOf(m) != ""
	return t.giveTo(r, m, from)
}

// forget removes all requests that no host waits for.
func (t *requests) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.byID {
		if r.state == abandoned || r.state == answered {
			t.move(r, dropped)
		}
	}
}

// repeatable returns the id of the oldest request with a fingerprint that no host waits
// for, or nil. It drops requests that are too old.
func (t *requests) repeatable(print fingerprint) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found *request
	for _, r := range t.byID {
		if r.state != abandoned && r.state != answered {
			continue
		}
		switch {
		case time.Since(r.left) > keptFor(r.task):
			t.move(r, dropped)
		case r.handle || time.Since(r.left) > repeatWithin: // its host asks by the task's id
		case r.print.matches(print) && (found == nil || bytes.Compare(r.id, found.id) < 0):
			found = r
		}
	}
	if found == nil {
		return nil
	}
	return found.id
}

// drop ends a request that another process has taken over.
func (t *requests) drop(id []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.byID[string(id)]; r != nil {
		t.move(r, dropped)
	}
}

// repeat gives a request that no host waits for to a host that makes it again, or that asks for its task. ok is false if there
// is no such request any more: another one of the host has just taken it. If the response is there, repeat returns the request,
// which the caller has to deliver.
func (t *requests) repeat(id []byte, m jsonrpc.Message, from origin) (toDeliver *request, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[string(id)]
	if r == nil || r.state != abandoned && r.state != answered || r.handle != (taskOf(m) != "") {
		return nil, false
	}
	return t.giveTo(r, m, from), true
}

// giveTo gives a request that no host waits for to a host. If the response is there, it returns the request. t.mu is held.
func (t *requests) giveTo(r *request, m jsonrpc.Message, from origin) (toDeliver *request) {
	r.hostID, r.token, r.left, r.from = m.ID, progressToken(m), time.Time{}, from
	if t.move(r, repeated); r.state == delivering {
		return r
	}
	return nil
}

// respond takes the response to a request. It returns the request if the caller has to deliver
// the response to the host.
func (t *requests) respond(m jsonrpc.Message) (toDeliver *request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own := t.own[string(m.ID)]; own != nil {
		delete(t.own, string(m.ID))
		own <- m // the channel has room
		return nil
	}
	r := t.byID[string(m.ID)]
	if r == nil || !t.move(r, responded) {
		return nil // it was cancelled, or has a response
	}
	r.answer = m.Raw
	if r.state == delivering {
		return r
	}
	return nil
}

// deliver ends the delivery of a response. taken says whether the host has taken it.
func (t *requests) deliver(r *request, taken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case taken:
		t.move(r, delivered)
	case r.print.isZero():
		t.move(r, dropped)
	default:
		r.kept = r.hostID
		t.move(r, refused)
		if r.left.IsZero() {
			r.left = time.Now()
		}
	}
}

// cancel ends a request that the host has cancelled. It returns the id at the server; nil if
// the host does not wait for it.
func (t *requests) cancel(hostID []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byHost[string(jsonrpc.Key(hostID))]
	if r == nil {
		return nil
	}
	t.move(r, cancelled)
	return r.id
}

// leave notes that the host has left its requests. They stay in their state: a response that
// comes while the bridge ends is still delivered.
func (t *requests) leave() {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.byID {
		if r.left.IsZero() {
			r.left = now
		}
	}
}

// kept returns the ids, at the server, of the requests that the host waits for and that another process may take over.
func (t *requests) kept() (ids [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.byID {
		if r.state == inFlight && !r.print.isZero() {
			ids = append(ids, r.id)
		}
	}
	return ids
}

// settled reports whether no response is being delivered, and all calls that the client has
// in flight are in the table. A call that is not there was cancelled, and the server does not know yet.
func (t *requests) settled(calls []client.CallState) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range calls {
		if t.byID[string(c.ID)] == nil && t.own[string(c.ID)] == nil {
			return false
		}
	}
	return !t.delivering()
}

// delivering reports whether a response is being written. t.mu is held.
func (t *requests) delivering() bool {
	for _, r := range t.byID {
		if r.state == delivering {
			return true
		}
	}
	return false
}

// records returns the records of requests that must not run twice. places are the client's
// calls: a call that the client has ended is kept until the host has its response.
func (t *requests) records(places []client.CallState) (calls []callRecord) {
	byID := make(map[string]*client.CallState, len(places))
	for i := range places {
		byID[string(places[i].ID)] = &places[i]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.byID {
		if r.print.isZero() {
			continue
		}
		if place := byID[string(r.id)]; place != nil {
			r.place = place
		}
		c := callRecord{ID: r.id, Method: r.method, fingerprint: r.print, Left: r.left, Place: r.place, Answer: r.answer, Task: r.task}
		if c.usable() {
			calls = append(calls, c)
		}
	}
	return calls
}

// beginOwn puts a request of the bridge itself into the table. The response comes out of the
// channel.
func (t *requests) beginOwn() (id []byte, response <-chan jsonrpc.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id = t.newID()
	own := make(chan jsonrpc.Message, 1)
	t.own[string(id)] = own
	return id, own
}

// endOwn forgets a request of the bridge itself.
func (t *requests) endOwn(id []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.own, string(id))
}

// progress returns a progress notification with the host's token, and the origin of its
// request; nil if the host waits for no such request.
func (t *requests) progress(m jsonrpc.Message) (raw []byte, from origin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[string(jsonrpc.Key(jsonrpc.Field(m.Params, "progressToken")))]
	if r == nil || r.state != inFlight || r.token == nil {
		return nil, origin{}
	}
	raw, _ = jsonrpc.Set(m.Raw, r.token, "params", "progressToken")
	return raw, r.from
}

// origin returns the origin of a request in flight, by the request's id at the server.
func (t *requests) origin(id []byte) (from origin, ok bool) {
	if id == nil {
		return from, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[string(id)]
	if r == nil || r.state != inFlight {
		return from, false
	}
	return r.from, true
}

// park keeps a question of the server until a host comes back to the request that it belongs to.
// found reports whether there is such a request, and kept whether it has room for the question.
func (t *requests) park(id []byte, m jsonrpc.Message) (found, kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[string(id)]
	if r == nil || r.state != abandoned {
		return false, false
	}
	if kept = len(r.parked) < maxParked; kept {
		r.parked = append(r.parked, m)
	}
	return true, kept
}

// unpark returns the questions that park has kept, and forgets them.
func (t *requests) unpark(id []byte) (parked []jsonrpc.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.byID[string(id)]; r != nil {
		parked, r.parked = r.parked, nil
	}
	return parked
}

// subscribed returns a notification with the host's id of its subscription (2026-07-28,
// subscriptions/listen), or nil if it belongs to no subscription.
func (t *requests) subscribed(m jsonrpc.Message) []byte {
	id := jsonrpc.Field(m.Params, "_meta", protocol.MetaSubscriptionID)
	if id == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.byID[string(jsonrpc.Key(id))]; r != nil && r.state == inFlight {
		if raw, ok := jsonrpc.Set(m.Raw, r.hostID, "params", "_meta", protocol.MetaSubscriptionID); ok {
			return raw
		}
	}
	return nil
}

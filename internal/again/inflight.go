package again

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"holdfast/internal/likeness"
)

// This file tells other nodes of calls in flight, before any cut: a client that makes its request again at once, at another node, comes sooner than
// the notice that the call is stranded. So a request that is like such a call asks the call's node whether the client has left, which the network
// knows there. If that node is lost, the calls in flight of clients that were connected to it are stranded, and their requests, made again, do not
// begin anew. Most calls of sessions need no such notice, as their requests come to one node.

// flyingEvery is the least time between two notices to other nodes of the calls that began and ended. On a busy node most calls are over by then, and cost nothing.
const flyingEvery = 10 * time.Millisecond

// longestFlight is how long a call of another node is taken to be in flight without another notice: that of its end may be lost.
const longestFlight = 24 * time.Hour

// A Flight is a node's notice to others of a call in flight.
type Flight struct {
	Keys   []byte `json:"keys"`             // by which the call is found
	Call   uint64 `json:"call"`             // the name that its node gives it
	Near   bool   `json:"near,omitempty"`   // its client is connected to its node, and the call is not lent
	Landed bool   `json:"landed,omitempty"` // it is no longer in flight; within a second its client may turn out not to have read the answer
}

// flying are the calls in flight, or answered within the last second, that other nodes know. The zero value is ready to use. Its methods may
// be called concurrently, and its lock is taken last.
type flying struct {
	telling sync.Mutex // held while other nodes are told, so that they are told in order
	mu      sync.Mutex
	due     []*flight // that other nodes have to be told of
	waits   bool      // Tell will be called soon
	told    time.Time
	by      map[likeness.Digest][]*flight // the flights that others were told of
}

// A flight is the state of a call in flight towards other nodes. It is guarded by flying.mu.
type flight struct {
	call Call       // nil: it is no longer in flight
	conn Connection // of its client, if call is nil; nil: the client has the answer, as far as can be known
	keys []byte     // under which other nodes know the call; nil: they do not
	name uint64     // by which other nodes know the call, also when it is stranded; it does not change
	lent bool       // its client is at another node by now
	late bool       // it has ended without having begun
}

// mayFly prepares a call that other nodes may be told of. Its session's lock is held.
func (t *Calls) mayFly(c Call) {
	st, s := c.Standing(), c.In()
	if t.peers == nil || st.flight != nil || s.Modern() == "" && (s.IsAnonymous() || st.like.Named == likeness.Digest{}) {
		return
	}
	st.flight = &flight{call: c, name: rand.Uint64()}
}

// takeOff has other nodes told of a call, if it is not over by then. A request for a tool that is safe to call again is attached only by the host's own id.
func (t *Calls) takeOff(s *Standing, safe bool) {
	if s.flight != nil && (!safe || s.like.Named != likeness.Digest{}) {
		t.tellSoon(s.flight, func() bool { return true })
	}
}

// lands has other nodes told that a call is no longer in flight. Locks may be held.
func (t *Calls) lands(c Call) {
	st := c.Standing()
	f := st.flight
	if f == nil {
		return
	}
	var conn Connection
	late := st.IsLate()
	if taken, _ := t.stranded.state(st); !late && !taken {
		conn = st.client()
	}
	t.tellSoon(f, func() bool {
		f.call, f.conn, f.late = nil, conn, late
		return f.keys != nil
	})
}

// goesFar has other nodes told that the client of a call is at another node by now.
func (t *Calls) goesFar(s *Standing) {
	if f := s.flight; f != nil {
		t.tellSoon(f, func() bool {
			f.lent = true
			return f.keys != nil
		})
	}
}

// tellSoon calls change, with the lock held, and has other nodes told of the flight if it returns true.
func (t *Calls) tellSoon(f *flight, change func() bool) {
	all := &t.flying
	all.mu.Lock()
	defer all.mu.Unlock()
	if !change() {
		return
	}
	if all.due = append(all.due, f); all.waits {
		return
	}
	all.waits = true
	t.o.Work.After(max(0, flyingEvery-time.Since(all.told)), t.Tell)
}

// Tell tells other nodes now of the flights that are due.
func (t *Calls) Tell() {
	known := &t.flying
	known.telling.Lock()
	defer known.telling.Unlock()
	known.mu.Lock()
	due := known.due
	known.due, known.waits, known.told = nil, false, time.Now()
	known.mu.Unlock()
	if len(due) == 0 {
		return
	}
	alone := t.peers.Alone()
	var all []Flight
	var over []*flight
	for _, f := range due {
		says, ok := t.says(f, alone)
		if !ok {
			continue
		}
		if all = append(all, says); says.Landed {
			over = append(over, f)
		}
	}
	if len(over) > 0 {
		time.AfterFunc(resetWithin, func() { known.remove(over) })
	}
	for part := range slices.Chunk(all, mostFlights) {
		t.peers.Fly(part)
	}
}

// mostFlights bounds the flights of one notice.
const mostFlights = 1000

// says returns the notice of a flight, if one is due. alone says that no other node is there to hear of a new flight.
func (t *Calls) says(f *flight, alone bool) (Flight, bool) {
	all := &t.flying
	all.mu.Lock()
	c, keys := f.call, f.keys
	all.mu.Unlock()
	if c == nil {
		return Flight{Keys: keys, Call: f.name, Landed: true}, keys != nil
	}
	st, s := c.Standing(), c.In()
	if keys == nil {
		if alone {
			return Flight{}, false
		}
		found := keysIn(&st.like, s)
		if t.o.AttachWithin <= 0 {
			found[likeness.Asked] = likeness.Digest{}
		}
		if keys = keysElsewhere(found, s); keys == nil { // the host gives the call no id of its own
			return Flight{}, false
		}
	}
	// The session of a call of an older revision is taken over, and its next owner knows the call.
	conn := st.client()
	near := s.Modern() != "" && conn != nil && !conn.IsFar()
	all.mu.Lock()
	defer all.mu.Unlock()
	if f.call == nil && f.keys == nil {
		return Flight{}, false
	}
	if f.keys == nil {
		f.keys = keys
		if all.by == nil {
			all.by = make(map[likeness.Digest][]*flight)
		}
		for key := range likeness.EachKey(keys) {
			all.by[key] = append(all.by[key], f)
		}
	}
	return Flight{Keys: keys, Call: f.name, Near: near && !f.lent}, true // if the call has landed meanwhile, another notice is due
}

// remove removes flights.
func (t *flying) remove(all []*flight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range all {
		for key := range likeness.EachKey(f.keys) {
			if rest := slices.DeleteFunc(t.by[key], func(other *flight) bool { return other == f }); len(rest) > 0 {
				t.by[key] = rest
			} else {
				delete(t.by, key)
			}
		}
	}
}

// kept returns how many keys other nodes know.
func (t *flying) kept() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.by)
}

// find returns copies of the flights here with one of the keys: those of calls in flight, and others. Of each key it returns the last ones, no more than most.
func (t *flying) find(keys likeness.Keys, most int) (aloft, landed []flight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		for _, f := range t.by[key][max(0, len(t.by[key])-most):] {
			if f.call != nil {
				aloft = append(aloft, *f)
			} else {
				landed = append(landed, *f)
			}
		}
	}
	return aloft, landed
}

// leaves reports whether the client of a call here with one of the keys has left, so that the call is about to be stranded, or may be. A lent call
// counts only if soon says that there was no time yet to give it back.
func (t *Calls) leaves(keys likeness.Keys, soon bool) bool {
	aloft, landed := t.flying.find(keys, MostCompared)
	return slices.ContainsFunc(landed, func(f flight) bool { return f.conn != nil && f.conn.Unsettled() }) || slices.ContainsFunc(aloft, func(f flight) bool {
		st := f.call.Standing()
		taken, lent := t.stranded.state(st)
		switch conn := st.client(); {
		case st.IsLate():
			return false
		case taken:
			return soon && lent
		default:
			return conn != nil && (conn.Unsettled() || conn.HasLeft())
		}
	})
}

// allWait reports whether there are calls here with one of the keys, and none has begun, or will: their clients have left.
func (t *flying) allWait(keys likeness.Keys) bool {
	aloft, landed := t.find(keys, math.MaxInt)
	return len(aloft)+len(landed) > 0 && !slices.ContainsFunc(landed, func(f flight) bool { return !f.late }) && !slices.ContainsFunc(aloft, func(f flight) bool {
		st := f.call.Standing()
		conn := st.client()
		return !st.IsLate() && (!st.undecided.Load() || conn == nil || !conn.HasLeft())
	})
}

// HintFlights notes the calls in flight that a node tells of.
func (t *Calls) HintFlights(node string, all []Flight) {
	now := time.Now()
	var landed []Flight
	for _, f := range all {
		if f.Landed {
			landed = append(landed, f)
			t.far.Land(f.Keys, node, f.Call)
			continue
		}
		for key := range likeness.EachKey(f.Keys) {
			t.far.Add(&likeness.Hint{Key: key, Node: node, Name: f.Call, InFlight: true, Near: f.Near, Since: now}, longestFlight)
		}
	}
	if len(landed) == 0 {
		return
	}
	time.AfterFunc(resetWithin, func() {
		for _, f := range landed {
			for key := range likeness.EachKey(f.Keys) {
				t.far.Forget(key, node, f.Call)
			}
		}
	})
}

// NodeLost notes that a node is lost: the calls that it had in flight are stranded if their clients were connected to it.
func (t *Calls) NodeLost(node string) {
	for _, h := range t.far.Take(node) {
		if h.Near {
			t.hints.Add(&likeness.Hint{Key: h.Key, Node: node, Name: h.Name, Near: true, Since: time.Now()}, t.o.Keep)
		}
	}
}

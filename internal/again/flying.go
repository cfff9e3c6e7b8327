package again

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"holdfast/internal/likeness"
)

// What follows tells other nodes of calls in flight, before any cut: a client that makes its request again at once, at another node, comes
// sooner than the notice that the call is stranded. So a request that is like such a call asks its node whether the client has left, which the
// network knows there. It serves, too, where that node is lost: the calls in flight of clients that were connected to it are stranded then, and their
// requests, made again, do not begin anew. Most calls of sessions need none of it, as their requests come to one node.

// flyingEvery is how often others are told at the most, of all that began and ended meanwhile. On a busy node most calls are over by then, and cost
// nothing.
const flyingEvery = 10 * time.Millisecond

// longestFlight is how long a call is taken to be in flight of which nothing was heard since: the notice of its end may be lost.
const longestFlight = 24 * time.Hour

// A Flight is what a node tells others of a call in flight.
type Flight struct {
	Keys   []byte `json:"keys"`             // that it is found by
	Call   uint64 `json:"call"`             // what its node calls it
	Near   bool   `json:"near,omitempty"`   // its client is connected to its node, and that knows nobody else who has it
	Landed bool   `json:"landed,omitempty"` // it is in flight no more; its client may turn out not to have read the answer within a second
}

// flying are the calls in flight, or answered within the last second, that other nodes know. The zero value is ready to use. Its methods may
// be called concurrently, and its lock is taken last.
type flying struct {
	telling sync.Mutex // held while others are told, so that they hear it in order
	mu      sync.Mutex
	due     []*flight // of which something is to be told
	waits   bool      // it will be, soon
	told    time.Time
	by      map[likeness.Digest][]*flight // what others were told
}

// A flight is what a call in flight is to other nodes. It is guarded by flying.mu.
type flight struct {
	call Call       // nil: it is in flight no more
	conn Connection // of its client, then; nil: that has the answer, as far as can be known
	keys []byte     // under which others know it; nil: they do not
	name uint64     // by which they know it, also as a stranded call; it does not change
	lent bool       // its client is at another node by now
	late bool       // it has ended without having begun
}

// mayFly prepares a call of which other nodes may be told. Its session's lock is held.
func (t *Calls) mayFly(c Call) {
	st, s := c.Standing(), c.In()
	if t.peers == nil || st.flight != nil || s.Modern() == "" && (s.IsAnonymous() || st.like.Named == likeness.Digest{}) {
		return
	}
	st.flight = &flight{call: c, name: rand.Uint64()}
}

// takeOff has other nodes be told of a call, if it is not over by then. A request for a tool that is safe to call again is attached only by the
// host's own id.
func (t *Calls) takeOff(s *Standing, safe bool) {
	if s.flight != nil && (!safe || s.like.Named != likeness.Digest{}) {
		t.tellSoon(s.flight, func() bool { return true })
	}
}

// lands has them be told that a call is in flight no more. Locks may be held.
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

// goesFar has them be told that the client of a call is at another node by now.
func (t *Calls) goesFar(s *Standing) {
	if f := s.flight; f != nil {
		t.tellSoon(f, func() bool {
			f.lent = true
			return f.keys != nil
		})
	}
}

// tellSoon changes what other nodes are to know, and has them be told if change says so.
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

// Tell tells other nodes now what they are to know.
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

// mostFlights bounds how many calls are told of at once.
const mostFlights = 1000

// says returns what is to be told of a flight, if anything is. alone says that nobody is to hear of a new one.
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
		if keys = keysElsewhere(found, s); keys == nil { // its host gives it no id of its own
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
	return Flight{Keys: keys, Call: f.name, Near: near && !f.lent}, true // if it has landed meanwhile, that is due
}

// remove takes flights out.
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

// kept returns how many keys others know.
func (t *flying) kept() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.by)
}

// find returns the flights here with one of the keys, as they are now: those of calls in flight, and others. Of each key it returns the last ones.
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

// leaves reports whether the client of a call here with one of the keys has left, so that the call is about to be stranded, or may be. A call that is
// lent may be given back; soon says that there was no time for that.
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

// allWait reports whether nothing that is here with one of the keys has begun, or will: its clients have left.
func (t *flying) allWait(keys likeness.Keys) bool {
	aloft, landed := t.find(keys, math.MaxInt)
	return len(aloft)+len(landed) > 0 && !slices.ContainsFunc(landed, func(f flight) bool { return !f.late }) && !slices.ContainsFunc(aloft, func(f flight) bool {
		st := f.call.Standing()
		conn := st.client()
		return !st.IsLate() && (!st.undecided.Load() || conn == nil || !conn.HasLeft())
	})
}

// HintFlights notes what a node tells of calls in flight.
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

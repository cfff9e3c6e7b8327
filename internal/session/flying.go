package session

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"holdfast/internal/again"
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
	by      map[again.Digest][]*flight // what others were told
	far     again.Hints                // what they have told
}

// A flight is what a call in flight is to other nodes. It is guarded by flying.mu.
type flight struct {
	call *Call      // nil: it is in flight no more
	conn Connection // of its client, then; nil: that has the answer, as far as can be known
	keys []byte     // under which others know it; nil: they do not
	name uint64     // by which they know it, also as a stranded call; it does not change
	lent bool       // its client is at another node by now
	late bool       // it has ended without having begun
}

// mayFly prepares a call of which other nodes may be told. s.mu is held.
func (c *Call) mayFly() {
	if s := c.s; s.m.elsewhere == nil || c.flight != nil || s.modern == "" && (s.principal.IsAnonymous() || c.like.Named == again.Digest{}) {
		return
	}
	c.flight = &flight{call: c, name: rand.Uint64()}
}

// takeOff has other nodes be told of the call, if it is not over by then. A request for a tool that is safe to call again is attached only by the
// host's own id.
func (c *Call) takeOff(safe bool) {
	if c.flight != nil && (!safe || c.like.Named != again.Digest{}) {
		c.s.m.tellSoon(c.flight, func() bool { return true })
	}
}

// lands has them be told that it is in flight no more. Locks may be held.
func (c *Call) lands() {
	f := c.flight
	if f == nil {
		return
	}
	var conn Connection
	late := c.late.Load()
	if !late && !c.s.m.stranded.isTaken(c) {
		conn = c.client()
	}
	c.s.m.tellSoon(f, func() bool {
		f.call, f.conn, f.late = nil, conn, late
		return f.keys != nil
	})
}

// goesFar has them be told that its client is at another node by now.
func (c *Call) goesFar() {
	if f := c.flight; f != nil {
		c.s.m.tellSoon(f, func() bool {
			f.lent = true
			return f.keys != nil
		})
	}
}

// tellSoon changes what other nodes are to know, and has them be told if change says so.
func (m *Manager) tellSoon(f *flight, change func() bool) {
	t := &m.flying
	t.mu.Lock()
	defer t.mu.Unlock()
	if !change() {
		return
	}
	if t.due = append(t.due, f); t.waits {
		return
	}
	t.waits = true
	time.AfterFunc(max(0, flyingEvery-time.Since(t.told)), func() {
		if m.startWork() {
			defer m.work.Done()
			m.tellFlights()
		}
	})
}

// tellFlights tells other nodes what they are to know now.
func (m *Manager) tellFlights() {
	t := &m.flying
	t.telling.Lock()
	defer t.telling.Unlock()
	t.mu.Lock()
	due := t.due
	t.due, t.waits, t.told = nil, false, time.Now()
	t.mu.Unlock()
	if len(due) == 0 {
		return
	}
	alone := m.elsewhere.Alone()
	var all []Flight
	var over []*flight
	for _, f := range due {
		says, ok := m.says(f, alone)
		if !ok {
			continue
		}
		if all = append(all, says); says.Landed {
			over = append(over, f)
		}
	}
	if len(over) > 0 {
		time.AfterFunc(resetWithin, func() { t.remove(over) })
	}
	for part := range slices.Chunk(all, mostFlights) {
		m.elsewhere.Fly(part)
	}
}

// mostFlights bounds how many calls are told of at once.
const mostFlights = 1000

// says returns what is to be told of a flight, if anything is. alone says that nobody is to hear of a new one.
func (m *Manager) says(f *flight, alone bool) (Flight, bool) {
	t := &m.flying
	t.mu.Lock()
	c, keys := f.call, f.keys
	t.mu.Unlock()
	if c == nil {
		return Flight{Keys: keys, Call: f.name, Landed: true}, keys != nil
	}
	if keys == nil {
		if alone {
			return Flight{}, false
		}
		of := stranded{keys: keysIn(&c.like, c.s), s: c.s}
		if m.opts.AttachWithin <= 0 {
			of.keys[again.Asked] = again.Digest{}
		}
		if keys = m.keysElsewhere(&of); keys == nil { // its host gives it no id of its own
			return Flight{}, false
		}
	}
	// The session of a call of an older revision is taken over, and its next owner knows the call.
	conn := c.client()
	near := c.s.modern != "" && conn != nil && !conn.IsFar()
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.call == nil && f.keys == nil {
		return Flight{}, false
	}
	if f.keys == nil {
		f.keys = keys
		t.add(f)
	}
	return Flight{Keys: keys, Call: f.name, Near: near && !f.lent}, true // if it has landed meanwhile, that is due
}

// add adds a flight by its keys. t.mu is held.
func (t *flying) add(f *flight) {
	if t.by == nil {
		t.by = make(map[again.Digest][]*flight)
	}
	for key := range again.EachKey(f.keys) {
		t.by[key] = append(t.by[key], f)
	}
}

// remove takes flights out.
func (t *flying) remove(all []*flight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range all {
		for key := range again.EachKey(f.keys) {
			if rest := slices.DeleteFunc(t.by[key], func(other *flight) bool { return other == f }); len(rest) > 0 {
				t.by[key] = rest
			} else {
				delete(t.by, key)
			}
		}
	}
}

// find returns the calls here with one of the keys, and of those that were answered the connections.
func (t *flying) find(keys again.Keys) (calls []*Call, answered []Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		if key == (again.Digest{}) {
			continue
		}
		for _, f := range t.by[key][max(0, len(t.by[key])-mostCompared):] {
			if f.call != nil {
				calls = append(calls, f.call)
			} else if f.conn != nil {
				answered = append(answered, f.conn)
			}
		}
	}
	return calls, answered
}

// leaves reports whether the client of a call here with one of the keys has left, so that the call is about to be stranded, or may be. A call that is
// lent may be given back; soon says that there was no time for that.
func (t *flying) leaves(keys again.Keys, soon bool) bool {
	calls, answered := t.find(keys)
	return slices.ContainsFunc(answered, Connection.Unsettled) || slices.ContainsFunc(calls, func(c *Call) bool {
		switch conn := c.client(); {
		case c.late.Load():
			return false
		case c.s.m.stranded.isTaken(c):
			return soon && c.s.m.stranded.isLent(c)
		default:
			return conn != nil && (conn.Unsettled() || conn.HasLeft())
		}
	})
}

// allWait reports whether nothing that is here with one of the keys has begun, or will: its clients have left.
func (t *flying) allWait(keys again.Keys) bool {
	var calls []*Call
	t.mu.Lock()
	n := 0
	for _, key := range keys {
		for _, f := range t.by[key] {
			switch n++; {
			case f.call != nil:
				calls = append(calls, f.call)
			case !f.late:
				t.mu.Unlock()
				return false
			}
		}
	}
	t.mu.Unlock()
	return n > 0 && !slices.ContainsFunc(calls, func(c *Call) bool {
		conn := c.client()
		return !c.late.Load() && (!c.undecided.Load() || conn == nil || !conn.HasLeft())
	})
}

// HintFlights notes what a node tells of calls in flight.
func (m *Manager) HintFlights(node string, all []Flight) {
	t, now := &m.flying.far, time.Now()
	var landed []Flight
	for _, f := range all {
		if f.Landed {
			landed = append(landed, f)
			t.Land(f.Keys, node, f.Call)
			continue
		}
		for key := range again.EachKey(f.Keys) {
			t.Add(&again.Hint{Key: key, Node: node, Name: f.Call, InFlight: true, Near: f.Near, Since: now}, longestFlight)
		}
	}
	if len(landed) == 0 {
		return
	}
	time.AfterFunc(resetWithin, func() {
		for _, f := range landed {
			for key := range again.EachKey(f.Keys) {
				t.Forget(key, node, f.Call)
			}
		}
	})
}

// NodeLost notes that a node is lost: the calls that it had in flight are stranded if their clients were connected to it.
func (m *Manager) NodeLost(node string) {
	for _, h := range m.flying.far.Take(node) {
		if h.Near {
			m.hints.Add(&again.Hint{Key: h.Key, Node: node, Name: h.Name, Near: true, Since: time.Now()}, m.strandedFor())
		}
	}
}

// dropHint forgets a hint that has turned out to be wrong.
func (m *Manager) dropHint(h again.Hint) {
	if h.InFlight {
		m.flying.far.Drop(h)
	} else {
		m.hints.Drop(h)
	}
}

package session

import (
	linked "container/list"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/again"
	"holdfast/internal/caller"
	"holdfast/internal/clientkind"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows keeps stranded calls: those whose client is known to have lost its connection before it had the answer, and has not
// come back for it. Another request may be one of them that was made again: it is attached (attach.go). A call that was answered, or
// cancelled, is none. See docs/decisions/0053-calls-that-come-again.md.

// mostStranded bounds how many of them a node knows, and mostStrandedBytes the answers that are kept with them. If there are more, the
// oldest is forgotten: its request would begin a call of its own.
const (
	mostStranded      = 10_000
	mostStrandedBytes = 16 << 20
	// mostStrandedAnswer bounds each of them.
	mostStrandedAnswer = 1 << 20
)

// A stranded call.
type stranded struct {
	keys   again.Keys
	s      *Session
	number uint64    // of its stream; 0: its answer is here
	answer []byte    // of a call that is stored nowhere
	since  time.Time // when it was known that the connection had broken
	told   time.Time // when its answer was written on the standalone stream: only a request that came before finds it; zero: it was not
	hinted uint64    // what other nodes know it by, so that an old notice does not concern a new hint; 0: they were not told of it
	// doubtful says that all was written to the client, which has left since, and may have read it.
	doubtful bool
}

// strandings are the stranded calls of a node. The zero value is ready to use. Its lock is taken last.
type strandings struct {
	n     atomic.Int64
	mu    sync.Mutex
	all   linked.List // of *stranded, the oldest first
	by    map[again.Digest][]*linked.Element
	at    map[strandedAt]*linked.Element
	bytes int
	// late are the last streams of requests that did not begin, a ring: who notices now that their clients have left is too late.
	late     [64]stream.ID
	nextLate int
}

type strandedAt struct {
	s      *Session
	number uint64
}

// strandedFor is for how long at the most a call is known that has ended.
func (m *Manager) strandedFor() time.Duration {
	return max(m.opts.AttachWithin, m.namesKept())
}

// add adds a call.
func (t *strandings) add(c *stranded, most time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.number != 0 && (t.at[strandedAt{c.s, c.number}] != nil || slices.Contains(t.late[:], stream.ID{Session: c.s.key, Number: c.number})) {
		return
	}
	if t.by == nil {
		t.by, t.at = make(map[again.Digest][]*linked.Element), make(map[strandedAt]*linked.Element)
	}
	for e := t.all.Front(); e != nil; e = t.all.Front() {
		old := e.Value.(*stranded)
		if t.all.Len() < mostStranded && t.bytes+len(c.answer) <= mostStrandedBytes && (c.since.Sub(old.since) <= most || old.runs()) {
			break
		}
		t.remove(e)
	}
	e := t.all.PushBack(c)
	t.bytes += len(c.answer)
	if c.number != 0 {
		t.at[strandedAt{c.s, c.number}] = e
	}
	for _, key := range c.keys {
		if key != (again.Digest{}) {
			t.by[key] = append(t.by[key], e)
		}
	}
	t.n.Store(int64(t.all.Len()))
}

// runs reports whether the call is in flight.
func (c *stranded) runs() bool { return c.number != 0 && c.s.CallAt(c.number) != nil }

// remove takes a call out. t.mu is held.
func (t *strandings) remove(e *linked.Element) {
	c := t.all.Remove(e).(*stranded)
	t.bytes -= len(c.answer)
	if at := (strandedAt{c.s, c.number}); t.at[at] == e {
		delete(t.at, at)
	}
	for _, key := range c.keys {
		if key == (again.Digest{}) {
			continue
		}
		rest := t.by[key]
		for i := range rest {
			if rest[i] == e {
				rest = append(rest[:i:i], rest[i+1:]...)
				break
			}
		}
		if t.by[key] = rest; len(rest) == 0 {
			delete(t.by, key)
		}
	}
	t.n.Store(int64(t.all.Len()))
}

// dropStranded forgets the call of a stream: its client is back, or wants no answer any more.
func (m *Manager) dropStranded(s *Session, number uint64) {
	if of := m.stranded.drop(s, number); of != nil && m.elsewhere != nil && m.startWork() {
		go func() { // locks may be held here
			defer m.work.Done()
			m.tellTaken(of)
		}()
	}
}

// dropLate forgets the call of a stream for good: it did not begin.
func (m *Manager) dropLate(s *Session, number uint64) {
	if number == 0 {
		return
	}
	t := &m.stranded
	t.mu.Lock()
	t.late[t.nextLate] = stream.ID{Session: s.key, Number: number}
	t.nextLate = (t.nextLate + 1) % len(t.late)
	t.mu.Unlock()
	m.dropStranded(s, number)
}

// drop takes out the call of a stream; nil: there is none.
func (t *strandings) drop(s *Session, number uint64) (c *stranded) {
	if t.n.Load() == 0 { // as a rule
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.at[strandedAt{s, number}]; e != nil {
		c = e.Value.(*stranded)
		t.remove(e)
	}
	return c
}

// dropIf is drop, if that is so. It reports whether the call is no longer known.
func (t *strandings) dropIf(s *Session, number uint64, is func() bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.at[strandedAt{s, number}]
	if e != nil && is() {
		t.remove(e)
		return true
	}
	return e == nil
}

// knows reports whether the call of a stream is stranded.
func (t *strandings) knows(s *Session, number uint64) bool {
	if number == 0 || t.n.Load() == 0 { // as a rule
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[strandedAt{s, number}] != nil
}

// has reports whether another call than c is found by one of the keys.
func (t *strandings) has(keys *again.Keys, c *Call) bool {
	if t.n.Load() == 0 { // as a rule
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		for _, e := range t.by[key] {
			if of := e.Value.(*stranded); of.s != c.s || of.number != c.Number() {
				return true
			}
		}
	}
	return false
}

// tell notes that the client of a call has its answer from the standalone stream, unless it has given it up by now.
func (t *strandings) tell(s *Session, number uint64) {
	if t.n.Load() == 0 { // as a rule
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.at[strandedAt{s, number}]; e != nil {
		e.Value.(*stranded).told = time.Now()
	}
}

// take takes out the oldest call that is found by one of the keys, and for which good says that it is one.
func (t *strandings) take(keys again.Keys, good func(*stranded, again.Reason) bool) (*stranded, again.Reason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for reason, key := range keys {
		for _, e := range t.by[key] {
			if c := e.Value.(*stranded); good(c, again.Reason(reason)) {
				t.remove(e)
				return c, again.Reason(reason)
			}
		}
	}
	return nil, 0
}

// strand notes that the client of a call with a likeness has lost its connection before it had what the stream says, or that this is doubtful.
// A reader may have come since. by is what was sent by the reader that has lost it; nil: that has left.
func (m *Manager) strand(s *Session, number uint64, like again.Likeness, doubtful bool, by *sent) {
	if like.IsZero() || number == 0 || doubtful && s.modern != "" {
		return
	}
	if c := s.CallAt(number); c != nil && (c.followers.Load() > 0 || c.late.Load()) {
		return // its client has it from another one
	}
	of := &stranded{keys: keysIn(&like, s), s: s, number: number, since: time.Now(), doubtful: doubtful}
	m.stranded.add(of, m.strandedFor())
	if !m.stranded.dropIf(s, number, func() bool { return s.streams.ReadBesides(number, by) }) {
		m.tellStranded(of)
	}
}

// takeAnswer takes the answer of a light call, if it has one that may be kept; else it is nil.
func (c *Call) takeAnswer() (answer []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.light) == 1 && len(c.light[0]) <= mostStrandedAnswer && (c.recovery == nil || c.recovery.state != recoveryHandedBack) {
		answer = c.light[0]
	}
	c.dropAnswers()
	return answer
}

// strandAnswer is strand for a call that has been answered from memory, before its client was known to have gone.
func (c *Call) strandAnswer() {
	if s, answer := c.s, c.takeAnswer(); answer != nil && !c.like.IsZero() && !c.late.Load() {
		of := &stranded{keys: keysIn(&c.like, s), s: s, answer: answer, since: time.Now()}
		s.m.stranded.add(of, s.m.strandedFor())
		s.m.tellStranded(of)
	}
}

// attaches reports whether requests that come again are attached.
func (m *Manager) attaches() bool { return !m.opts.Stateless }

// keysIn returns what calls like one in a session are found by, where its client may find them.
func keysIn(l *again.Likeness, s *Session) again.Keys { return l.KeysAt(placesOf(s)) }

// placesOf returns where two calls of the session's client may be one: in the same conversation, and if they have one id of the host's.
// Clients who are nobody in particular have nothing in common but their session, or, where there is none, their credential and address.
func placesOf(s *Session) (talk, client again.Digest) {
	own := again.PlaceOf("session", string(s.key))
	if s.modern == "" {
		if s.principal.IsAnonymous() {
			return own, own
		}
		var kind clientkind.Kind
		locked(s, func() { kind = clientkind.Of(jsonrpc.Field(s.backend.initialize, "params", "clientInfo")) })
		return own, again.PlaceOf("client", s.principal.Text(), kind.Name, kind.Version)
	}
	if s.carrier == nil { // it was taken over, and no other request gets it
		return own, own
	}
	key := &s.carrier.key
	who := []string{s.principal.Text(), s.carrier.kind.Name, s.carrier.kind.Version}
	if s.principal.IsAnonymous() {
		who = append(who, key.tenant)
	}
	if key.credential != (caller.Credential{}) {
		who = append(who, string(key.credential[:]))
	}
	client = again.PlaceOf("client", who...)
	return client, client
}

// A Source is where what was written to a connection came from.
type Source = interface {
	// Disconnected is called when the client at an address has left with bytes unread that were written after a time.
	Disconnected(from string, since time.Time)
}

// What was sent as the answer of a call. It is a [Source]: if its client has left with some of that unread, the call is stranded.
type sent struct {
	s      *Session
	number uint64 // of the stream; 0: it is the answer
	like   again.Likeness
	answer []byte
	at     time.Time
	once   sync.Once
}

// newSent returns what stands for an answer in a stream, or nil if nothing is like its call.
func newSent(s *Session, number uint64, like again.Likeness) *sent {
	if like.IsZero() {
		return nil
	}
	return &sent{s: s, number: number, like: like, at: time.Now()}
}

// Disconnected implements [Source].
func (a *sent) Disconnected(from string, since time.Time) {
	if a.number != 0 {
		a.s.streams.Disconnected(from, since)
	}
	a.Strand()
}

// Strand implements [reading.Sent]: it strands the call, once. A client that has read all and ends its connection does not reset it.
func (a *sent) Strand() {
	a.once.Do(func() {
		switch doubtful := time.Since(a.at) > resetWithin; {
		case a.number != 0:
			a.s.m.strand(a.s, a.number, a.like, doubtful, a)
		case !doubtful:
			of := &stranded{keys: keysIn(&a.like, a.s), s: a.s, answer: a.answer, since: time.Now()}
			a.s.m.stranded.add(of, a.s.m.strandedFor())
			a.s.m.tellStranded(of)
		}
	})
}

// heldAnswer bounds the answers that wait with a connection for what the network says of its client, in bytes. Larger ones wait
// for a second.
const heldAnswer = 4 << 10

// wrote notes that an answer was written, or is about to be, that is stored nowhere. nil: none was.
func (c *Call) wrote(answer []byte) {
	if c.conn == nil || c.like.IsZero() || answer == nil || c.late.Load() {
		return
	}
	what := &sent{s: c.s, like: c.like, answer: answer, at: time.Now()}
	c.conn.Wrote(what)
	if len(answer) > heldAnswer {
		time.AfterFunc(resetWithin, func() { what.once.Do(func() { what.answer = nil }) })
	}
}

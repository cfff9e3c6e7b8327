package again

import (
	linked "container/list"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/likeness"
	"holdfast/internal/reading"
	"holdfast/stream"
)

// mostStranded bounds how many stranded calls a node knows, and mostStrandedBytes the answers that are kept with them. The oldest call is
// forgotten first: its request, made again, would begin a new call.
const (
	mostStranded      = 10_000
	mostStrandedBytes = 16 << 20
)

// A stranded call, which may have ended. It is forgotten when its client comes back, or cancels it.
type stranded struct {
	keys   likeness.Keys
	s      Session
	number uint64    // of its stream; 0: it has none, and its answer is here
	answer []byte    // of a call that is stored nowhere
	since  time.Time // when it was known that the connection had broken
	told   time.Time // when its answer was written on the standalone stream: only requests that came before find it; zero: it was not
	// hinted is the name by which other nodes know the call, so that an old notice does not concern a new hint; 0: they were not told of it.
	hinted atomic.Uint64
	// doubtful says that all messages were written to the client, which has left since, and may have read them.
	doubtful bool
}

// strandings are the stranded calls of a node. The zero value is ready to use. Its lock is taken last.
type strandings struct {
	n     atomic.Int64
	mu    sync.Mutex
	all   linked.List // of *stranded, the oldest first
	by    map[likeness.Digest][]*linked.Element
	at    map[strandedAt]*linked.Element
	bytes int
	late  ring // the last streams of requests that did not begin: they are not stranded if their clients turn out to have left
	// taken are the last streams that requests were taken for: they are not stranded again if the network tells of the loss once more, as a
	// later request is another call. A client that comes back for one may lose it again.
	taken    ring
	anyTaken atomic.Bool
}

// A ring has the ids of the last streams that were added. The zero value is ready to use.
type ring struct {
	all  [64]stream.ID
	next int
}

func (r *ring) add(id stream.ID) {
	r.all[r.next] = id
	r.next = (r.next + 1) % len(r.all)
}

func (r *ring) has(id stream.ID) bool { return slices.Contains(r.all[:], id) }

func (r *ring) remove(id stream.ID) {
	if i := slices.Index(r.all[:], id); i >= 0 {
		r.all[i] = stream.ID{}
	}
}

type strandedAt struct {
	s      Session
	number uint64
}

// id returns the id of the call's stream.
func (at strandedAt) id() stream.ID {
	return stream.ID{Session: stream.SessionKey(at.s.Name()), Number: at.number}
}

// add adds a call.
func (t *strandings) add(c *stranded, most time.Duration) {
	at := strandedAt{c.s, c.number}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.number != 0 && (t.at[at] != nil || t.late.has(at.id()) || t.taken.has(at.id())) {
		return
	}
	if t.by == nil {
		t.by, t.at = make(map[likeness.Digest][]*linked.Element), make(map[strandedAt]*linked.Element)
	}
	for e := t.all.Front(); e != nil; e = t.all.Front() {
		old := e.Value.(*stranded)
		if t.all.Len() < mostStranded && t.bytes+len(c.answer) <= mostStrandedBytes && (c.since.Sub(old.since) <= most || old.number != 0 && old.s.Call(old.number) != nil) {
			break
		}
		t.remove(e)
	}
	e := t.all.PushBack(c)
	t.bytes += len(c.answer)
	if c.number != 0 {
		t.at[at] = e
	}
	for _, key := range c.keys {
		if key != (likeness.Digest{}) {
			t.by[key] = append(t.by[key], e)
		}
	}
	t.n.Store(int64(t.all.Len()))
}

// remove removes a call. t.mu is held.
func (t *strandings) remove(e *linked.Element) {
	c := t.all.Remove(e).(*stranded)
	t.bytes -= len(c.answer)
	if at := (strandedAt{c.s, c.number}); t.at[at] == e {
		delete(t.at, at)
	}
	for _, key := range c.keys {
		if key == (likeness.Digest{}) {
			continue
		}
		if rest := slices.DeleteFunc(t.by[key], func(other *linked.Element) bool { return other == e }); len(rest) > 0 {
			t.by[key] = rest
		} else {
			delete(t.by, key)
		}
	}
	t.n.Store(int64(t.all.Len()))
}

// with calls do for the call of a stream, if the call is stranded, and reports whether it is. t.mu is held meanwhile.
func (t *strandings) with(s Session, number uint64, do func(e *linked.Element)) bool {
	if number == 0 || t.n.Load() == 0 { // as a rule
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.at[strandedAt{s, number}]
	if e != nil {
		do(e)
	}
	return e != nil
}

// knows reports whether the call of a stream is stranded.
func (t *strandings) knows(s Session, number uint64) bool {
	return t.with(s, number, func(*linked.Element) {})
}

// tell notes that the client of a stranded call gets its answer on the standalone stream, unless the client has given the call up by now.
func (t *strandings) tell(s Session, number uint64) {
	t.with(s, number, func(e *linked.Element) { e.Value.(*stranded).told = time.Now() })
}

// state reports whether a request was taken for the call made again, so that no other request is, and whether the call was lent to another node. That
// node may be about to give it back, as the client there has left.
func (t *strandings) state(s *Standing) (taken, lent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.taken || s.lent, s.lent
}

// isLent reports whether a call was lent.
func (t *strandings) isLent(s *Standing) bool {
	_, lent := t.state(s)
	return lent
}

// cancel notes that a call's client wants no answer.
func (t *strandings) cancel(s *Standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.cancelled = true
}

// isCancelled reports whether a call's client wants no answer.
func (t *strandings) isCancelled(s *Standing) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.cancelled
}

// giveBack notes that a call is no longer lent.
func (t *strandings) giveBack(s *Standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.lent = false
}

// follow has a call wait for the messages of another. It is false if the other waits for this one, by itself or through others: then neither would end.
func (t *strandings) follow(s, other *Standing) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.follows(other)
}

// follows is [strandings.follow]. strandings.mu is held.
func (s *Standing) follows(other *Standing) bool {
	for o := other; o != nil; o = o.following {
		if o == s {
			return false
		}
	}
	s.following = other
	return true
}

// leave notes that a call no longer waits for another, which it would keep in memory.
func (t *strandings) leave(s *Standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.following = nil
}

// has reports whether one of the keys finds a call other than that of the stream.
func (t *strandings) has(keys *likeness.Keys, s Session, number uint64) bool {
	if t.n.Load() == 0 { // as a rule
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		for _, e := range t.by[key] {
			if of := e.Value.(*stranded); of.s != s || of.number != number {
				return true
			}
		}
	}
	return false
}

// take removes and returns the oldest call with one of the keys for which good returns true, and the reason of that key.
func (t *strandings) take(keys likeness.Keys, good func(*stranded, likeness.Reason) bool) (*stranded, likeness.Reason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for reason, key := range keys {
		for _, e := range t.by[key] {
			if c := e.Value.(*stranded); good(c, likeness.Reason(reason)) {
				if t.remove(e); c.number != 0 {
					t.taken.add(strandedAt{c.s, c.number}.id())
					t.anyTaken.Store(true)
				}
				return c, likeness.Reason(reason)
			}
		}
	}
	return nil, 0
}

// wholeWithin is how long after its connection has broken a modern call is found by a request that its client's HTTP library makes again:
// the default of the time that such a call is given.
const wholeWithin = 30 * time.Second

// take removes and returns the stranded call that a request with the keys makes again; nil: there is none. The [Call] is nil if it has
// ended. safe says that the tool may run twice, and came when the request came. by is the call of the request; nil: it is another node's.
func (t *Calls) take(keys likeness.Keys, safe bool, came time.Time, by Call) (*stranded, Call, likeness.Reason) {
	now := time.Now()
	of, reason := t.stranded.take(keys, func(of *stranded, reason likeness.Reason) bool {
		if !of.told.IsZero() && of.told.Before(came) || !t.isMeant(of, reason, safe, now.Sub(of.since)) {
			return false
		}
		if of.number == 0 {
			return true
		}
		if by != nil && of.s == by.In() && of.number == by.Number() || of.s.IsClosed() || of.s.Streams().IsBlind(of.number) {
			return false
		}
		call := of.s.Call(of.number)
		if call == nil {
			return true
		}
		other := call.Standing()
		switch {
		case other.undecided.Load(), other.IsLate(): // the call may be found to be another call itself, or did not begin
			return false
		case by != nil:
			other.taken = by.Standing().follows(other) || other.taken
			return by.Standing().following == other
		}
		other.lent = true
		return true
	})
	if of == nil {
		return nil, nil, 0
	}
	t.tellTaken(of)
	if of.number == 0 {
		return of, nil, reason
	}
	call := of.s.Call(of.number)
	of.s.Streams().Found(of.number)
	return of, call, reason
}

// isMeant reports whether a request that is like a stranded call, for a reason, makes that call again. age is how long the call has been stranded.
func (t *Calls) isMeant(of *stranded, reason likeness.Reason, safe bool, age time.Duration) bool {
	switch reason {
	case likeness.Whole:
		return of.s.Modern() == "" || age <= max(t.o.AttachWithin, wholeWithin) // ids of two runs of a program may be the same
	case likeness.Named:
		return !of.doubtful
	default:
		return !of.doubtful && !safe && age <= t.o.AttachWithin
	}
}

// untake notes that the call of a stream may be stranded again.
func (t *strandings) untake(s Session, number uint64) {
	if !t.anyTaken.Load() { // as a rule
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken.remove(strandedAt{s, number}.id())
}

// Drop forgets the call of a stream: its client is back, or no longer wants an answer. Locks may be held.
func (t *Calls) Drop(s Session, number uint64) {
	t.stranded.untake(s, number)
	var of *stranded
	if t.stranded.with(s, number, func(e *linked.Element) {
		of = e.Value.(*stranded)
		t.stranded.remove(e)
	}) && t.peers != nil {
		t.o.Work.Go(func() { t.tellTaken(of) })
	}
}

// dropLate forgets the call of a stream for good: it did not begin.
func (t *Calls) dropLate(s Session, number uint64) {
	if number == 0 {
		return
	}
	all := &t.stranded
	all.mu.Lock()
	all.late.add(strandedAt{s, number}.id())
	all.mu.Unlock()
	t.Drop(s, number)
}

// Strand notes that the client of a call with a likeness has lost its connection before it had all of the stream.
func (t *Calls) Strand(s Session, number uint64, like likeness.Likeness) {
	t.strand(s, number, like, false, nil)
}

// strand is Strand, which may be doubtful. It does nothing if a reader has come since. by is the [reading.Sent] of the reader that has lost its
// connection; nil: the reader has left.
func (t *Calls) strand(s Session, number uint64, like likeness.Likeness, doubtful bool, by reading.Sent) {
	if like.IsZero() || number == 0 || doubtful && s.Modern() != "" {
		return
	}
	if c := s.Call(number); c != nil && (c.Standing().IsFollowed() || c.Standing().IsLate()) {
		return // another request follows it, or it did not begin
	}
	of := &stranded{keys: keysIn(&like, s), s: s, number: number, since: time.Now(), doubtful: doubtful}
	t.stranded.add(of, t.o.Keep)
	stays := false
	t.stranded.with(s, number, func(e *linked.Element) {
		if stays = !s.Streams().ReadBesides(number, by); !stays {
			t.stranded.remove(e)
		}
	})
	if stays {
		t.tellStranded(of)
	}
}

// mostStrandedAnswer bounds each of the answers that are kept, in bytes.
const mostStrandedAnswer = 1 << 20

// mayKeep reports whether there is an answer, and it is short enough to be kept.
func mayKeep(answer []byte) bool { return answer != nil && len(answer) <= mostStrandedAnswer }

// StrandAnswer is Strand for a call that was answered from memory, before its client was known to have gone. answer is nil if it has none.
func (t *Calls) StrandAnswer(c Call, answer []byte) {
	if st := c.Standing(); !st.IsLate() {
		t.strandAnswer(c.In(), st.like, answer)
	}
}

// strandAnswer strands the answer to a call with a likeness.
func (t *Calls) strandAnswer(s Session, like likeness.Likeness, answer []byte) {
	if like.IsZero() || !mayKeep(answer) {
		return
	}
	of := &stranded{keys: keysIn(&like, s), s: s, answer: answer, since: time.Now()}
	t.stranded.add(of, t.o.Keep)
	t.tellStranded(of)
}

// A sent is an answer that was sent to the client of a call. It is a [Source]: if the client has left with some of it unread, the call is stranded.
type sent struct {
	t      *Calls
	s      Session
	number uint64 // of the stream with the answer; 0: it is in answer
	like   likeness.Likeness
	answer []byte
	at     time.Time
	once   sync.Once
}

// Sent returns the [reading.Sent] for the answer of a call with a likeness, in a stream, or nil if nothing is like the call. besides says that the
// answer is written on the standalone stream.
func (t *Calls) Sent(s Session, number uint64, like likeness.Likeness, besides bool) reading.Sent {
	if besides {
		t.stranded.tell(s, number)
	}
	if like.IsZero() {
		return nil
	}
	return &sent{t: t, s: s, number: number, like: like, at: time.Now()}
}

// Disconnected implements [Source].
func (a *sent) Disconnected(from string, since time.Time) {
	if a.number != 0 {
		a.s.Streams().Disconnected(from, since)
	}
	a.Strand()
}

// Strand implements [reading.Sent]: it strands the call, once. A client that has read all and ends its connection does not reset it.
func (a *sent) Strand() {
	a.once.Do(func() {
		switch doubtful := time.Since(a.at) > resetWithin; {
		case a.number != 0:
			a.t.strand(a.s, a.number, a.like, doubtful, a)
		case !doubtful:
			a.t.strandAnswer(a.s, a.like, a.answer)
		}
	})
}

// heldAnswer bounds, in bytes, the answers that a connection holds until the network tells whether its client has read them. Larger ones are held for [resetWithin].
const heldAnswer = 4 << 10

// Wrote notes that an answer which is stored nowhere was written to the client of a call, or is about to be; nil: none was.
func (t *Calls) Wrote(c Call, answer []byte) {
	st := c.Standing()
	if st.conn == nil || st.like.IsZero() || st.IsLate() || !mayKeep(answer) {
		return
	}
	what := &sent{t: t, s: c.In(), like: st.like, answer: answer, at: time.Now()}
	st.conn.Wrote(what)
	if len(answer) > heldAnswer {
		time.AfterFunc(resetWithin, func() { what.once.Do(func() { what.answer = nil }) })
	}
}

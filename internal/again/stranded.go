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

// mostStranded bounds how many stranded calls a node knows, and mostStrandedBytes the answers that are kept with them. If there are more, the
// oldest is forgotten: its request would begin a call of its own.
const (
	mostStranded      = 10_000
	mostStrandedBytes = 16 << 20
)

// A stranded call. One that was answered, or cancelled, is none.
type stranded struct {
	keys   likeness.Keys
	s      Session
	number uint64    // of its stream; 0: its answer is here
	answer []byte    // of a call that is stored nowhere
	since  time.Time // when it was known that the connection had broken
	told   time.Time // when its answer was written on the standalone stream: only a request that came before finds it; zero: it was not
	// hinted is what other nodes know it by, so that an old notice does not concern a new hint; 0: they were not told of it.
	hinted atomic.Uint64
	// doubtful says that all was written to the client, which has left since, and may have read it.
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
	// late are the last streams of requests that did not begin, a ring: who notices now that their clients have left is too late.
	late     [64]stream.ID
	nextLate int
}

type strandedAt struct {
	s      Session
	number uint64
}

// id is that of the stream of a call.
func (at strandedAt) id() stream.ID {
	return stream.ID{Session: stream.SessionKey(at.s.Name()), Number: at.number}
}

// add adds a call.
func (t *strandings) add(c *stranded, most time.Duration) {
	at := strandedAt{c.s, c.number}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.number != 0 && (t.at[at] != nil || slices.Contains(t.late[:], at.id())) {
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

// remove takes a call out. t.mu is held.
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

// with calls do for the call of a stream, if that is stranded, and reports whether it is. t.mu is held meanwhile.
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

// tell notes that the client of a call has its answer from the standalone stream, unless it has given it up by now.
func (t *strandings) tell(s Session, number uint64) {
	t.with(s, number, func(e *linked.Element) { e.Value.(*stranded).told = time.Now() })
}

// state returns whether a request was taken for a call made again, so that no other one is; and whether the call was lent to another node. That may be
// about to give it back, as the client there has left.
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

// giveBack notes that a call is lent no more.
func (t *strandings) giveBack(s *Standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.lent = false
}

// follow has a call wait for what another one says. It is false if that one waits for this one, by itself or through others: then
// neither would end.
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

// leave notes that a call does not wait for another one any more, which it would keep in memory.
func (t *strandings) leave(s *Standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.following = nil
}

// has reports whether another call than that of a stream is found by one of the keys.
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

// take takes out the oldest call that is found by one of the keys, and for which good says that it is one.
func (t *strandings) take(keys likeness.Keys, good func(*stranded, likeness.Reason) bool) (*stranded, likeness.Reason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for reason, key := range keys {
		for _, e := range t.by[key] {
			if c := e.Value.(*stranded); good(c, likeness.Reason(reason)) {
				t.remove(e)
				return c, likeness.Reason(reason)
			}
		}
	}
	return nil, 0
}

// wholeWithin is how long after its connection has broken a modern call is taken for one that its client's HTTP makes again: the default of
// the time that such a call is given.
const wholeWithin = 30 * time.Second

// take takes a stranded call, which is not known as such any more; nil: there is none. The call is nil if it has ended. safe says
// that the tool may run twice, and came when the request came. by is the call that makes it again, or nil.
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
		case other.undecided.Load(), other.IsLate(): // it may be found to be another call itself, or not begin
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

// isMeant reports whether a stranded call of an age is the one that a request makes again which is like it, for a reason.
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

// Drop forgets the call of a stream: its client is back, or wants no answer any more. Locks may be held.
func (t *Calls) Drop(s Session, number uint64) {
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
	all.late[all.nextLate] = strandedAt{s, number}.id()
	all.nextLate = (all.nextLate + 1) % len(all.late)
	all.mu.Unlock()
	t.Drop(s, number)
}

// Strand notes that the client of a call with a likeness has lost its connection before it had what the stream says.
func (t *Calls) Strand(s Session, number uint64, like likeness.Likeness) {
	t.strand(s, number, like, false, nil)
}

// strand is Strand, or notes that this is doubtful. A reader may have come since. by is what was sent by the reader that has lost it; nil: that has left.
func (t *Calls) strand(s Session, number uint64, like likeness.Likeness, doubtful bool, by reading.Sent) {
	if like.IsZero() || number == 0 || doubtful && s.Modern() != "" {
		return
	}
	if c := s.Call(number); c != nil && (c.Standing().IsFollowed() || c.Standing().IsLate()) {
		return // its client has it from another one
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

// mostStrandedAnswer bounds each of the answers that are kept.
const mostStrandedAnswer = 1 << 20

// mayKeep reports whether there is an answer, and it is short enough to be kept.
func mayKeep(answer []byte) bool { return answer != nil && len(answer) <= mostStrandedAnswer }

// StrandAnswer is Strand for a call that has been answered from memory, before its client was known to have gone. nil: it has no answer.
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

// What was sent as the answer of a call. It is a [Source]: if its client has left with some of that unread, the call is stranded.
type sent struct {
	t      *Calls
	s      Session
	number uint64 // of the stream; 0: it is the answer
	like   likeness.Likeness
	answer []byte
	at     time.Time
	once   sync.Once
}

// Sent returns what stands for the answer of a call with a likeness, in a stream, or nil if nothing is like it. besides says that it is written on the
// standalone stream.
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

// heldAnswer bounds the answers that wait with a connection for what the network says of its client, in bytes. Larger ones wait
// for a second.
const heldAnswer = 4 << 10

// Wrote notes that the answer of a call was written, or is about to be, that is stored nowhere. nil: none was.
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

package clustertest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// forever is the time of an operation that did not happen.
const forever = time.Duration(1<<63 - 1)

// Check returns the errors in a history:
//
//   - An entry that was read differs from the entry that was appended there, or
//     that another read found there; its append was refused, or had not begun; a
//     sequence is missing; an entry follows the last one.
//   - An owner is refused, although no other node tried to take the session over.
//   - An entry that was acknowledged, or read, is not found by a node that acquires
//     the session later; or an entry that is found appeared, or its append began,
//     after a newer epoch was given out.
//   - Only a part of an append's entries is there.
//   - A note that is found is older than an acknowledged note.
//   - Two owners have one epoch, or a later one has a lower epoch.
//   - Lookup does not know of an owner who had acquired the session before.
//   - A claim has two values.
//
// An append with an unknown outcome may be there or not. Once the next owner has acquired the
// session, that is the same for all readers.
func Check(history []*Op) []error {
	c := &checker{byID: make(map[int]*Op)}
	sessions := make(map[stream.SessionKey][]*Op)
	claims := make(map[shared.ClaimID][]*Op)
	for _, op := range history {
		c.byID[op.ID] = op
		if op.Kind == Claim {
			claims[op.Claim] = append(claims[op.Claim], op)
		} else {
			sessions[op.Key] = append(sessions[op.Key], op)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(sessions)) {
		s := newSessionHistory(c, sessions[key])
		s.epochs()
		s.appends()
		s.reads()
		s.found()
		s.wholes()
		s.lookups()
	}
	for _, ops := range claims {
		c.claims(ops)
	}
	return c.wrong
}

type checker struct {
	byID  map[int]*Op
	wrong []error
}

func (c *checker) fail(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Errorf(format, args...))
}

// A place is where an entry is in a session.
type place struct{ number, seq uint64 }

// A fact is an entry that is known to be at a place.
type fact struct {
	data  string
	epoch uint64
	by    *Op // the operation that appended or read it
}

// A sessionHistory is the history of one session.
type sessionHistory struct {
	*checker
	ops     []*Op
	owners  map[uint64]*Op // Create and Acquire that succeeded, by epoch
	byEpoch []uint64       // the keys of owners, in order
	lost    map[uint64]time.Duration
	facts   map[place]fact
	seqs    map[uint64]map[uint64]uint64 // by stream and epoch: the highest sequence with a fact
}

func newSessionHistory(c *checker, ops []*Op) *sessionHistory {
	s := &sessionHistory{
		checker: c, ops: ops,
		owners: make(map[uint64]*Op),
		lost:   make(map[uint64]time.Duration),
		facts:  make(map[place]fact),
		seqs:   make(map[uint64]map[uint64]uint64),
	}
	return s
}

// epochs checks that each epoch has one owner, and that epochs rise.
func (s *sessionHistory) epochs() {
	var given []*Op
	for _, op := range s.ops {
		if (op.Kind != Create && op.Kind != Acquire) || op.Outcome != Done {
			continue
		}
		if other := s.owners[op.Epoch]; other != nil {
			s.fail("one epoch, two owners: %v; %v", other, op)
		}
		s.owners[op.Epoch] = op
		given = append(given, op)
	}
	for _, a := range given {
		for _, b := range given {
			if a.End < b.Start && b.Epoch <= a.Epoch {
				s.fail("the epoch does not rise: %v; %v", a, b)
			}
		}
	}
	s.byEpoch = slices.Sorted(maps.Keys(s.owners))
}

// lostAt returns the time at which an epoch is over at the latest: when a newer one was given out.
func (s *sessionHistory) lostAt(epoch uint64) time.Duration {
	if at, ok := s.lost[epoch]; ok {
		return at
	}
	at := forever
	for _, e := range s.byEpoch {
		if e > epoch {
			at = min(at, s.owners[e].End)
		}
	}
	s.lost[epoch] = at
	return at
}

// addFact notes that an entry is at a place, and checks that it agrees with other facts.
func (s *sessionHistory) addFact(at place, f fact) {
	if known, ok := s.facts[at]; ok {
		if known.data != f.data || known.epoch != f.epoch {
			s.fail("at %d of stream %d there is %.20q of epoch %d (%v) and %.20q of epoch %d (%v)", at.seq, at.number,
				known.data, known.epoch, known.by, f.data, f.epoch, f.by)
		}
		return
	}
	s.facts[at] = f
	if s.seqs[at.number] == nil {
		s.seqs[at.number] = make(map[uint64]uint64)
	}
	s.seqs[at.number][f.epoch] = max(s.seqs[at.number][f.epoch], at.seq)
}

// appends adds facts about acknowledged appends.
func (s *sessionHistory) appends() {
	for _, op := range s.ops {
		if op.Kind != Append {
			continue
		}
		if op.Outcome == Refused {
			s.refused(op)
		}
		if op.Outcome != Done {
			continue
		}
		if op.Start > s.lostAt(op.Epoch) {
			s.fail("accepted though a newer epoch was given out at %v: %v", s.lostAt(op.Epoch), op)
		}
		for _, r := range op.Records {
			if !r.Note {
				s.addFact(place{r.Number, r.Seq}, fact{string(r.Data), op.Epoch, op})
			}
		}
	}
}

// refused checks that there was a reason to refuse an owner's append: the owner knows which entry
// is next.
func (s *sessionHistory) refused(op *Op) {
	switch {
	case errors.Is(op.Err, stream.ErrFull), errors.Is(op.Err, stream.ErrTooLarge):
	case errors.Is(op.Err, stream.ErrFenced) && s.contested(op):
	default:
		s.fail("its owner was refused an append (%v): %v", op.Err, op)
	}
}

// contested reports whether another node may have acquired the session before an operation ended,
// or may have fenced its owner before being refused.
func (s *sessionHistory) contested(op *Op) bool {
	return slices.ContainsFunc(s.ops, func(o *Op) bool {
		return o.Kind == Acquire && o.Start < op.End && (o.Epoch == 0 || o.Epoch > op.Epoch)
	})
}

// reads checks each read, and adds facts about its entries.
func (s *sessionHistory) reads() {
	for _, op := range s.ops {
		if op.Kind != Read {
			continue
		}
		if op.Outcome != Done {
			s.readFailed(op)
			continue
		}
		next := op.After + 1
		for i, e := range op.Entries {
			if e.Seq != next {
				s.fail("entry %d of stream %d where %d was due: %v", e.Seq, op.Number, next, op)
			}
			next = e.Seq + 1
			if e.Last && i < len(op.Entries)-1 {
				s.fail("something follows the last entry, %d of stream %d: %v", e.Seq, op.Number, op)
			}
			s.entry(op, e)
		}
		for epoch, seq := range s.seqs[op.Number] {
			switch by := s.facts[place{op.Number, seq}].by; {
			case seq < next, epoch > op.Epoch:
			case epoch == op.Epoch && by.End >= op.Start:
				s.missing(op, next)
			default:
				s.fail("entry %d of stream %d is missing, of %v: %v", seq, op.Number, by, op)
			}
		}
	}
}

// missing checks a read that ended before the newest entry of its own epoch: that is right if the
// next entry had not been acknowledged when the read began.
func (s *sessionHistory) missing(op *Op, next uint64) {
	f, ok := s.facts[place{op.Number, next}]
	if ok && f.by.End < op.Start {
		s.fail("entry %d of stream %d is missing, of %v: %v", next, op.Number, f.by, op)
	}
}

// entry checks one entry that was read.
func (s *sessionHistory) entry(op *Op, e stream.Entry) {
	id, i, ok := origin(e.Data)
	by := s.byID[id]
	if !ok || by == nil || by.Kind != Append || i >= len(by.Records) {
		s.fail("entry %d of stream %d, %.20q, was never appended: %v", e.Seq, op.Number, e.Data, op)
		return
	}
	r := by.Records[i]
	switch {
	case by.Key != op.Key || r.Note || r.Number != op.Number || r.Seq != e.Seq || !bytes.Equal(r.Data, e.Data) || r.Last != e.Last || by.Epoch != e.Epoch:
		s.fail("entry %d of stream %d and epoch %d, %.20q, differs from what was appended by %v: %v", e.Seq, op.Number, e.Epoch, e.Data, by, op)
		return
	case by.Outcome == Refused:
		s.fail("entry %d of stream %d was refused (%v) to %v: %v", e.Seq, op.Number, by.Err, by, op)
	case by.Start > op.End:
		s.fail("entry %d of stream %d was read before it was appended by %v: %v", e.Seq, op.Number, by, op)
	case by.Start > s.lostAt(by.Epoch):
		s.fail("accepted though a newer epoch was given out at %v: %v, as read by %v", s.lostAt(by.Epoch), by, op)
	}
	s.addFact(place{op.Number, e.Seq}, fact{string(e.Data), e.Epoch, op})
}

// readFailed checks a read that failed: a read of an owner may be refused only if another node may
// have acquired the session by then.
func (s *sessionHistory) readFailed(op *Op) {
	if op.Outcome == Refused && len(s.seqs[op.Number]) > 0 && !s.contested(op) {
		s.fail("its owner can't read stream %d (%v): %v", op.Number, op.Err, op)
	}
}

// lookups checks that each Lookup sees the owner that had acquired the session before.
func (s *sessionHistory) lookups() {
	for _, op := range s.ops {
		if op.Kind != Lookup {
			continue
		}
		for _, epoch := range s.byEpoch {
			owner := s.owners[epoch]
			if owner.End >= op.Start {
				continue
			}
			if op.Outcome == Refused {
				s.fail("not found (%v), after %v: %v", op.Err, owner, op)
				break
			}
			if op.Outcome == Done && op.Found.Epoch < epoch {
				s.fail("epoch %d is found after %v: %v", op.Found.Epoch, owner, op)
			}
		}
		if op.Outcome == Done {
			s.ownerFound(op)
		}
	}
}

// ownerFound checks the owner that a Lookup returned.
func (s *sessionHistory) ownerFound(op *Op) {
	owner := s.owners[op.Found.Epoch]
	if owner == nil {
		return // of an Acquire with an unknown outcome
	}
	released, maybe := false, false
	for _, by := range s.ops {
		if by.Kind != Release || by.Epoch != op.Found.Epoch {
			continue
		}
		// A refused Release may have happened: another node has acquired the session since.
		maybe = maybe || by.Start < op.End
		released = released || by.Outcome == Done && by.End < op.Start
	}
	switch {
	case op.Found.Owner == "" && !maybe:
		s.fail("nobody owns it, though it was not released by %v: %v", owner, op)
	case op.Found.Owner != "" && op.Found.Owner != owner.Node:
		s.fail("it is told to be owned by %s, and is owned by %v: %v", op.Found.Owner, owner, op)
	case op.Found.Owner != "" && released:
		s.fail("it is told to be owned though it was released by %v: %v", owner, op)
	}
}

// claims checks that all claims of one id have one value.
func (c *checker) claims(ops []*Op) {
	var value []byte
	var by *Op
	for _, op := range ops {
		if op.Outcome != Done {
			continue
		}
		got := op.Value
		if op.Was != nil {
			got = op.Was
			if bytes.Equal(op.Was, op.Value) {
				c.fail("it was told its own value as another's: %v", op)
			}
		}
		if by != nil && !bytes.Equal(got, value) {
			c.fail("one claim has two values, %q of %v and %q of %v", value, by, got, op)
		}
		value, by = got, op
		offered := slices.ContainsFunc(ops, func(o *Op) bool {
			return bytes.Equal(o.Value, got) && o.Start <= op.End && o.Outcome != Refused
		})
		if !offered {
			c.fail("a claim has the value %q that nobody had offered: %v", got, op)
		}
	}
}

package clustertest

import (
	"bytes"
	"cmp"

	"holdfast/internal/engine/shared"
)

// found checks the streams that each Acquire of the session found.
func (s *sessionHistory) found() {
	for i, epoch := range s.byEpoch {
		op := s.owners[epoch]
		next := make(map[uint64]shared.Stream)
		for _, st := range op.Streams {
			next[st.Number] = st
			if st.Oldest != 1 {
				s.fail("stream %d begins at %d: %v", st.Number, st.Oldest, op)
			}
		}
		if i > 0 {
			s.nothingLost(op, next)
		}
		// An entry of an older epoch is there now, or never.
		for at, f := range s.facts {
			if f.epoch < epoch && at.seq >= max(1, next[at.number].Next) {
				s.fail("entry %d of stream %d, of epoch %d, is not found by %v, though known by %v",
					at.seq, at.number, f.epoch, op, f.by)
			}
		}
		s.notes(op, next)
	}
}

// nothingLost checks the streams that are found against those that earlier owners found.
func (s *sessionHistory) nothingLost(op *Op, next map[uint64]shared.Stream) {
	for _, epoch := range s.byEpoch {
		if epoch >= op.Epoch {
			return
		}
		for _, st := range s.owners[epoch].Streams {
			if now := next[st.Number]; now.Next < st.Next || st.Ended && !now.Ended {
				s.fail("stream %d was at %d (ended: %v), and is at %d (%v): %v; %v", st.Number,
					st.Next, st.Ended, now.Next, now.Ended, s.owners[epoch], op)
			}
		}
	}
}

// notes checks that the note found for each stream is not older than the last acknowledged note.
func (s *sessionHistory) notes(op *Op, found map[uint64]shared.Stream) {
	newest := make(map[uint64]*Op) // acknowledged
	for _, by := range s.ops {
		if by.Kind != Append || by.Outcome != Done || by.Epoch >= op.Epoch {
			continue
		}
		for _, r := range by.Records {
			if r.Note && (newest[r.Number] == nil || older(newest[r.Number], by)) {
				newest[r.Number] = by
			}
		}
	}
	for number, by := range newest {
		if st := found[number]; !st.Ended && len(st.Note) == 0 {
			s.fail("stream %d has no note, in spite of %v: %v", number, by, op)
		}
	}
	for number, st := range found {
		if len(st.Note) == 0 {
			continue
		}
		id, i, ok := origin(st.Note)
		by := s.byID[id]
		switch {
		case !ok || by == nil || by.Kind != Append || by.Key != op.Key || i >= len(by.Records) ||
			!by.Records[i].Note || by.Records[i].Number != number || !bytes.Equal(by.Records[i].Data, st.Note):
			s.fail("the note of stream %d, %.20q, was never appended: %v", number, st.Note, op)
		case by.Outcome == Refused:
			s.fail("the note of stream %d was refused to %v: %v", number, by, op)
		case by.Start > s.lostAt(by.Epoch):
			s.fail("accepted though a newer epoch was given out: %v, as found by %v", by, op)
		case !st.Ended && newest[number] != nil && older(by, newest[number]):
			s.fail("the note of stream %d is of %v, older than of %v: %v", number, by, newest[number], op)
		}
	}
}

// older reports whether an append came before another of the same session.
func older(a, b *Op) bool {
	return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.ID, b.ID)) < 0
}

// wholes checks that the last owner found all entries of each append, or none.
func (s *sessionHistory) wholes() {
	if len(s.byEpoch) == 0 {
		return
	}
	last := s.owners[s.byEpoch[len(s.byEpoch)-1]]
	next := make(map[uint64]uint64)
	for _, st := range last.Streams {
		next[st.Number] = st.Next
	}
	for _, op := range s.ops {
		if op.Kind != Append || op.Outcome == Refused || op.Epoch >= last.Epoch {
			continue
		}
		there, missing := 0, 0
		for _, r := range op.Records {
			f, ok := s.facts[place{r.Number, r.Seq}]
			switch {
			case r.Note:
			case ok && f.data == string(r.Data):
				there++
			case ok || r.Seq >= next[r.Number]:
				missing++
			}
		}
		if there > 0 && missing > 0 {
			s.fail("%d entries are there and %d are not, of %v", there, missing, op)
		}
	}
}

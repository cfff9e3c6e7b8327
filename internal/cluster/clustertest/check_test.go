package clustertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// A script makes a history by hand: each operation begins when the one before has
// ended, unless the test moves it.
type script struct {
	ops []*Op
	now time.Duration
}

// did adds an operation that took some time.
func (s *script) did(op Op) *Op {
	op.ID = len(s.ops) + 1
	op.Key = "k"
	if op.Node == "" {
		op.Node = fmt.Sprint("n", op.Epoch)
	}
	if op.Outcome == "" {
		op.Outcome = outcome(op.Err)
	}
	s.now += 10
	op.Start, op.End = s.now, s.now+5
	s.ops = append(s.ops, &op)
	return &op
}

func (s *script) create() { s.did(Op{Kind: Create, Epoch: 1}) }

func (s *script) acquire(epoch uint64, streams ...shared.Stream) *Op {
	return s.did(Op{Kind: Acquire, Epoch: epoch, Streams: streams})
}

// append appends an entry to each place, in pairs of stream and sequence.
func (s *script) append(epoch uint64, err error, places ...uint64) *Op {
	op := s.did(Op{Kind: Append, Epoch: epoch, Err: err})
	for i := 0; i < len(places); i += 2 {
		op.Records = append(op.Records, stream.Record{Number: places[i], Entry: stream.Entry{Seq: places[i+1]}})
	}
	for i := range op.Records {
		op.Records[i].Data = []byte(token(op.ID, i))
	}
	return op
}

// note appends, under epoch 1, a note to stream 1, beside an entry.
func (s *script) note(err error, seq uint64) []byte {
	op := s.append(1, err, 1, seq, 1, seq)
	op.Records[0].Note = true
	return op.Records[0].Data
}

// read reads stream 1 after a sequence and finds an entry of each append.
func (s *script) read(epoch, after uint64, of ...*Op) *Op {
	op := s.did(Op{Kind: Read, Epoch: epoch, Number: 1, After: after})
	for _, by := range of {
		e := by.Records[0].Entry
		e.Epoch = by.Epoch
		op.Entries = append(op.Entries, e)
	}
	return op
}

func (s *script) lookup(epoch uint64, owner string) {
	s.did(Op{Kind: Lookup, Found: shared.Session{Epoch: epoch, Owner: owner}})
}

func at(next uint64) shared.Stream { return shared.Stream{Number: 1, Oldest: 1, Next: next} }

func claim(value, was string) Op {
	op := Op{Kind: Claim, Value: []byte(value)}
	if was != "" {
		op.Was = []byte(was)
	}
	return op
}

// Check finds the fault in each history, and none in those with an empty want.
func TestCheck(t *testing.T) {
	t.Parallel()
	unknown, fenced := stream.ErrUnavailable, stream.ErrFenced
	for _, c := range []struct {
		name, want string
		do         func(s *script)
	}{
		{"all is well", "", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			s.lookup(1, "n1")
			b := s.append(1, nil, 1, 2)
			s.read(1, 0, a, b)
			s.acquire(2, at(3))
			s.append(1, fenced, 1, 3)
			s.read(2, 0, a, b)
			c := s.append(2, nil, 1, 3)
			s.read(2, 1, b, c)
			s.did(Op{Kind: Release, Epoch: 2})
			s.lookup(2, "")
			s.acquire(3, at(4))
			s.read(3, 2, c)
			s.did(claim("x", ""))
			s.did(claim("y", "x"))
		}},
		{"an unknown append is there", "", func(s *script) {
			s.create()
			a := s.append(1, unknown, 1, 1)
			s.acquire(2, at(2))
			s.read(2, 0, a)
		}},
		{"an unknown append is not there", "", func(s *script) {
			s.create()
			s.append(1, unknown, 1, 1)
			s.acquire(2)
			a := s.append(2, nil, 1, 1)
			s.read(2, 0, a)
		}},
		{"an append that is not acknowledged yet may be read or not", "", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			a.End += 100
			s.read(1, 0)
			s.read(1, 0, a)
		}},
		{"an owner that does not know that it is lost reads what it knows", "", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			s.acquire(2, at(2))
			s.append(2, nil, 1, 2)
			s.read(1, 0, a)
		}},
		{"a gap", "where 2 was due", func(s *script) {
			s.create()
			a, _, c := s.append(1, nil, 1, 1), s.append(1, nil, 1, 2), s.append(1, nil, 1, 3)
			s.read(1, 0, a, c)
		}},
		{"twice", "where 2 was due", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			s.read(1, 0, a, a)
		}},
		{"out of nowhere", "never appended", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			s.read(1, 0, a).Entries[0].Data = []byte("999.0;")
		}},
		{"changed", "differs", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			s.read(1, 0, a).Entries[0].Data = []byte(token(a.ID, 0) + "x")
		}},
		{"under another epoch", "differs", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			s.acquire(2, at(2))
			s.read(2, 0, a).Entries[0].Epoch = 2
		}},
		{"two at one place", "at 1 of stream 1", func(s *script) {
			s.create()
			a := s.append(1, unknown, 1, 1)
			s.acquire(2)
			b := s.append(2, nil, 1, 1)
			s.read(2, 0, b)
			s.acquire(3, at(2))
			s.read(3, 0, a)
		}},
		{"two acknowledged at one place", "at 1 of stream 1", func(s *script) {
			s.create()
			s.append(1, nil, 1, 1)
			s.append(1, nil, 1, 1)
		}},
		{"something after the last entry", "follows the last", func(s *script) {
			s.create()
			a, b := s.append(1, nil, 1, 1), s.append(1, nil, 1, 2)
			a.Records[0].Last = true
			s.read(1, 0, a, b)
		}},
		{"lost before its owner", "is missing", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			s.append(1, nil, 1, 2)
			s.read(1, 0, a)
		}},
		{"lost at a take-over", "is not found", func(s *script) {
			s.create()
			s.append(1, nil, 1, 1)
			s.acquire(2)
		}},
		{"lost at a take-over, acknowledged later", "is not found", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			s.acquire(2)
			a.End += 100
		}},
		{"lost after a take-over", "is missing", func(s *script) {
			s.create()
			a := s.append(1, nil, 1, 1)
			s.append(1, nil, 1, 2)
			s.acquire(2, at(3))
			s.read(2, 0, a)
		}},
		{"lost later, though never acknowledged", "was at 2", func(s *script) {
			s.create()
			s.append(1, unknown, 1, 1)
			s.acquire(2, at(2))
			s.acquire(3)
		}},
		{"read, and lost", "is not found", func(s *script) {
			s.create()
			a := s.append(1, unknown, 1, 1)
			s.read(1, 0, a)
			s.acquire(2)
		}},
		{"trimmed", "begins at 2", func(s *script) {
			s.create()
			s.acquire(2, shared.Stream{Number: 1, Oldest: 2, Next: 3})
		}},
		{"an end that is gone", "was at 2 (ended: true)", func(s *script) {
			s.create()
			s.append(1, unknown, 1, 1).Records[0].Last = true
			s.acquire(2, shared.Stream{Number: 1, Oldest: 1, Next: 2, Ended: true})
			s.acquire(3, at(2))
		}},
		{"an older owner is not fenced", "accepted though", func(s *script) {
			s.create()
			s.acquire(2)
			s.append(1, nil, 1, 1)
		}},
		{"an older owner is not fenced, and is not told", "accepted though", func(s *script) {
			s.create()
			s.acquire(2)
			a := s.append(1, unknown, 1, 1)
			s.acquire(3, at(2))
			s.read(3, 0, a)
		}},
		{"it appears after the take-over", "is not found", func(s *script) {
			s.create()
			a := s.append(1, unknown, 1, 1)
			s.acquire(2)
			s.acquire(3, at(2))
			s.read(3, 0, a)
		}},
		{"refused, and there", "was refused", func(s *script) {
			s.create()
			a := s.append(1, stream.ErrFull, 1, 1)
			s.read(1, 0, a)
		}},
		{"refused for no reason", "was refused an append", func(s *script) {
			s.create()
			s.append(1, fenced, 1, 1)
		}},
		{"refused the next entry", "was refused an append", func(s *script) {
			s.create()
			s.append(1, stream.ErrConflict, 1, 1)
			s.acquire(2)
		}},
		{"its owner can't read", "can't read", func(s *script) {
			s.create()
			s.append(1, nil, 1, 1)
			s.did(Op{Kind: Read, Epoch: 1, Number: 1, Err: stream.ErrTrimmed})
		}},
		{"read before it was appended", "before it was appended", func(s *script) {
			s.create()
			a := s.append(1, unknown, 1, 1)
			s.read(1, 0, a)
			a.Start += 100
		}},
		{"half an append", "1 entries are there and 1 are not", func(s *script) {
			s.create()
			a := s.append(1, unknown, 1, 1, 2, 1)
			s.acquire(2, at(2))
			s.read(2, 0, a)
		}},
		{"two owners", "two owners", func(s *script) {
			s.create()
			s.acquire(2)
			s.acquire(2).Node = "other"
		}},
		{"created twice", "two owners", func(s *script) {
			s.create()
			s.create()
		}},
		{"an epoch that falls", "does not rise", func(s *script) {
			s.create()
			s.acquire(3)
			s.acquire(2)
		}},
		{"an old note", "older than", func(s *script) {
			s.create()
			note := s.note(nil, 1)
			s.note(nil, 2)
			st := at(3)
			st.Note = note
			s.acquire(2, st)
		}},
		{"a note whose outcome was unknown", "", func(s *script) {
			s.create()
			s.note(nil, 1)
			st := at(3)
			st.Note = s.note(unknown, 2)
			s.acquire(2, st)
		}},
		{"a note that is gone", "has no note", func(s *script) {
			s.create()
			s.note(nil, 1)
			s.acquire(2, at(2))
		}},
		{"a note that was refused", "was refused", func(s *script) {
			s.create()
			st := at(1)
			st.Note = s.note(stream.ErrFull, 1)
			s.acquire(2, st)
		}},
		{"a lookup of long ago", "epoch 1 is found", func(s *script) {
			s.create()
			s.acquire(2)
			s.lookup(1, "n1")
		}},
		{"a lookup while it is taken over", "", func(s *script) {
			s.create()
			s.acquire(2).End += 100
			s.lookup(1, "n1")
		}},
		{"not found", "not found", func(s *script) {
			s.create()
			s.did(Op{Kind: Lookup, Err: stream.ErrNotFound})
		}},
		{"another owner", "owned by n3", func(s *script) {
			s.create()
			s.lookup(1, "n3")
		}},
		{"nobody's", "nobody owns it", func(s *script) {
			s.create()
			s.lookup(1, "")
		}},
		{"a release that is forgotten", "though it was released", func(s *script) {
			s.create()
			s.did(Op{Kind: Release, Epoch: 1})
			s.lookup(1, "n1")
		}},
		{"a claim of two", "two values", func(s *script) {
			s.did(claim("x", ""))
			s.did(claim("y", ""))
		}},
		{"a claim of another value", "nobody had offered", func(s *script) {
			s.did(claim("x", "z"))
		}},
		{"a claim of its own", "its own value", func(s *script) {
			s.did(claim("x", "x"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &script{}
			c.do(s)
			wrong := Check(s.ops)
			switch {
			case c.want == "":
				for _, err := range wrong {
					t.Errorf("found wrong: %v", err)
				}
			case len(wrong) == 0:
				t.Errorf("nothing is found wrong; want %q", c.want)
			case !strings.Contains(fmt.Sprint(wrong), c.want):
				t.Errorf("found wrong: %v; want %q", wrong, c.want)
			}
		})
	}
}

package again

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/likeness"
	"holdfast/internal/reading"
)

// A node remembers at most mostStranded stranded calls, and at most mostStrandedBytes of their answers: the oldest are forgotten.
func TestManyStranded(t *testing.T) {
	t.Parallel()
	key := func(i int) (k likeness.Keys) {
		k[likeness.Asked] = likeness.DigestOf(binary.AppendUvarint(nil, uint64(i)))
		return k
	}
	any := func(*stranded, likeness.Reason) bool { return true }
	var all strandings
	now := time.Now()
	for i := range mostStranded + 10 {
		all.add(&stranded{keys: key(i), answer: []byte("x"), since: now}, time.Hour)
	}
	if n := all.n.Load(); n != mostStranded || len(all.by) != mostStranded {
		t.Errorf("%d are known, by %d keys", n, len(all.by))
	}
	for i, want := range map[int]bool{9: false, 10: true, mostStranded + 9: true} {
		if of, _ := all.take(key(i), any); (of != nil) != want {
			t.Errorf("the one number %d: %v", i, of)
		}
	}
	all.add(&stranded{keys: key(0), answer: make([]byte, mostStrandedBytes), since: now}, time.Hour)
	if n := all.n.Load(); n != 1 || all.bytes != mostStrandedBytes {
		t.Errorf("%d are known, of %d bytes", n, all.bytes)
	}
	all.add(&stranded{keys: key(1), since: now.Add(2 * time.Hour)}, time.Hour)
	if of, _ := all.take(key(0), any); of != nil {
		t.Error("one is found after its time")
	}
	all.take(key(1), any)
	if all.n.Load() != 0 || all.bytes != 0 || len(all.by) != 0 || all.all.Len() != 0 {
		t.Errorf("%+v is left", &all)
	}
}

// A place is a session without calls in flight.
type place struct {
	Session
	streams reading.Streams
}

func (p *place) Name() string              { return "place" }
func (p *place) Modern() string            { return "" }
func (p *place) Streams() *reading.Streams { return &p.streams }
func (p *place) Call(uint64) Call          { return nil }
func (p *place) Places() (talk, client likeness.Digest) {
	return likeness.Digest{1}, likeness.Digest{2}
}

// A request that did not begin is not stranded by a goroutine that notices late that the client has left.
func TestStrandedLate(t *testing.T) {
	t.Parallel()
	all, s, like := New(Options{Keep: time.Hour}), &place{}, likeness.Likeness{Asked: likeness.Digest{1}}
	all.Strand(s, 7, like)
	all.dropLate(s, 7)
	all.Strand(s, 7, like)
	all.Strand(s, 8, like)
	if all.stranded.knows(s, 7) || !all.stranded.knows(s, 8) {
		t.Errorf("7: %v, 8: %v", all.stranded.knows(s, 7), all.stranded.knows(s, 8))
	}
}

// A waited is a call that other requests wait for.
type waited struct {
	Call
	standing Standing
}

func (w *waited) Standing() *Standing { return &w.standing }
func (w *waited) Returned()           {}

// Of the requests that wait for a call and are cancelled at the same time, one is the last, and cancels the call. None is of a call that has ended.
func TestLastFollower(t *testing.T) {
	t.Parallel()
	c := &waited{}
	one, other := followed(c), followed(c)
	first, repeated := one(), one()
	if first || repeated || !c.standing.IsFollowed() {
		t.Error("the first of two that leave is taken for the last")
	}
	if !other() || c.standing.IsFollowed() {
		t.Error("the second of two that leave is not the last")
	}
	if followed(nil)() {
		t.Error("a call that has ended is left")
	}
	for range 100 {
		var lasts atomic.Int32
		var all sync.WaitGroup
		for range 4 {
			left := followed(c)
			all.Go(func() {
				if left() {
					lasts.Add(1)
				}
			})
		}
		all.Wait()
		if n := lasts.Load(); n == 0 {
			t.Fatal("none is the last")
		}
	}
}

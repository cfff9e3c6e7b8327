package durable_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"holdfast/internal/engine/contest"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
	"holdfast/stream/streamtest"
)

// A lateStore fences older owners as late as possible, like the takeover of a session from
// an owner that seems to be gone.
type lateStore struct{ *durable.Store }

func (st lateStore) Acquire(ctx context.Context, was shared.Session) (shared.Taken, error) {
	taken, err := st.AcquireUnfenced(ctx, was)
	if err == nil {
		err = st.Fence(ctx, taken.Lease)
	}
	if !errors.Is(err, stream.ErrFenced) {
		return taken, err
	}
	is, err := st.Lookup(ctx, was.Key)
	switch {
	case err != nil:
		return shared.Taken{}, err
	case is.Owner != st.Node() || is.Epoch != was.Epoch+1:
		return shared.Taken{}, stream.ErrConflict
	}
	return st.Store.Acquire(ctx, is)
}

// All rules hold if owners are fenced late.
func TestStoreFencedLate(t *testing.T) {
	t.Parallel()
	makeStores := maker(logtest.Options{})
	streamtest.Run(t, func(t *testing.T, l streamtest.Limits) func() stream.Store {
		next := makeStores(t, l)
		return func() stream.Store { return lateStore{next().(*durable.Store)} }
	}, streamtest.Options{Nodes: true, Durable: true, Bubble: true})
}

func TestContestFencedLate(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	e := logtest.New(logtest.Options{Seed: seed, Faults: logtest.Faults{Before: 0.1, After: 0.1, Late: 0.1, Behind: 0.5, Latency: 200 * time.Microsecond}})
	var nodes []shared.Store
	var handles []*logtest.Handle
	for range 3 {
		n := open(t, e, durable.Options{Patience: 300 * time.Millisecond})
		t.Cleanup(n.shut)
		nodes = append(nodes, lateStore{n.Store})
		handles = append(handles, n.h)
	}
	contest.Run(t, nodes, contest.Options{
		Seed: seed, For: time.Second,
		Disturb: func(rng *rand.Rand) { handles[rng.IntN(3)].Cut(rng.IntN(3) == 0) },
		Calm: func() {
			for _, h := range handles {
				h.Cut(false)
			}
			e.SetFaults(logtest.Faults{})
		},
	})
}

// The first append of a new owner fences the older one. It is refused if the older
// owner has appended since the new one read the session.
func TestAcquireUnfenced(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{})
	a, b := open(t, e, durable.Options{}), open(t, e, durable.Options{})
	defer a.shut()
	defer b.shut()
	lease := a.create("a")
	a.want("append", a.put(lease, entry(1, 1)), nil)
	was, err := b.Lookup(t.Context(), "a")
	b.want("Lookup", err, nil)
	before := e.Count("Append")
	taken, err := b.AcquireUnfenced(t.Context(), was)
	b.want("AcquireUnfenced", err, nil)
	if n := e.Count("Append") - before; n != 0 {
		t.Errorf("%d frames appended", n)
	}
	a.want("append of the old owner, which is not fenced", a.put(lease, entry(1, 2)), nil)
	b.want("append after what was read", b.put(taken.Lease, entry(1, 2)), stream.ErrFenced)
	b.want("Fence", b.Fence(t.Context(), taken.Lease), stream.ErrFenced)

	was, err = b.Lookup(t.Context(), "a")
	b.want("Lookup", err, nil)
	taken, err = b.AcquireUnfenced(t.Context(), was)
	b.want("AcquireUnfenced", err, nil)
	b.want("append", b.put(taken.Lease, entry(1, 3)), nil)
	a.want("append of the old owner", a.put(lease, entry(1, 3)), stream.ErrFenced)
	before = e.Count("Append")
	b.want("Fence", b.Fence(t.Context(), taken.Lease), nil)
	if n := e.Count("Append") - before; n != 0 {
		t.Errorf("%d frames appended to fence what is fenced", n)
	}
}

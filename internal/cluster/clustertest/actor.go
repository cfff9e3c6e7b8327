package clustertest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// An actor is the work of a node on one session: one operation at a time.
type actor struct {
	*run
	store  Store
	key    stream.SessionKey
	rng    *rand.Rand
	greedy bool // takes over sessions that have an owner

	lease   stream.Lease      // no epoch: none
	next    map[uint64]uint64 // the next sequence of each stream that has not ended, by the stream's number
	streams uint64            // the highest number
}

func (a *actor) act(ctx context.Context) {
	for ctx.Err() == nil {
		if a.lease.Epoch == 0 {
			a.lookUp(ctx)
		} else {
			a.own(ctx)
		}
		a.pause(ctx, 2*time.Millisecond)
	}
}

// pause waits up to most.
func (a *actor) pause(ctx context.Context, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(rand.N(most)):
	}
}

// randomTimeout returns a context with a random timeout. Some are so short that the outcome of
// the operation is unknown.
func (a *actor) randomTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	d := 3 * time.Second
	if a.rng.IntN(10) == 0 {
		d = time.Duration(1+a.rng.IntN(200)) * time.Millisecond
	}
	return context.WithTimeout(ctx, d)
}

// do records an operation of this session.
func (a *actor) do(op Op, prepare func(op *Op), f func(op *Op) (func(), error)) error {
	op.Node, op.Key = a.store.Node(), a.key
	if op.Epoch == 0 {
		op.Epoch = a.lease.Epoch
	}
	rec := a.begin(op, prepare)
	result, err := f(rec)
	a.finish(rec, err, result)
	return err
}

// lookUp looks the session up, and may take it over.
func (a *actor) lookUp(ctx context.Context) {
	ctx, cancel := a.randomTimeout(ctx)
	defer cancel()
	var found shared.Session
	err := a.do(Op{Kind: Lookup}, nil, func(op *Op) (func(), error) {
		var err error
		found, err = a.store.Lookup(ctx, a.key)
		return func() { op.Found = found }, err
	})
	switch {
	case errors.Is(err, stream.ErrNotFound):
		a.create(ctx)
	case err != nil:
		a.pause(ctx, 20*time.Millisecond)
	case a.greedy, found.Owner == "", !a.isAlive(found.Owner), a.rng.IntN(40) == 0:
		a.acquire(ctx, found)
	default:
		a.pause(ctx, 20*time.Millisecond)
	}
}

func (a *actor) create(ctx context.Context) {
	_ = a.do(Op{Kind: Create}, nil, func(op *Op) (func(), error) {
		lease, err := a.store.Create(ctx, a.key, []byte("about "+a.key))
		if err == nil {
			a.lease, a.next, a.streams = lease, make(map[uint64]uint64), 0
		}
		return func() { op.Epoch = lease.Epoch }, err
	})
}

// acquire takes the session over, and reads all its streams.
func (a *actor) acquire(ctx context.Context, was shared.Session) {
	var taken shared.Taken
	err := a.do(Op{Kind: Acquire}, nil, func(op *Op) (func(), error) {
		var err error
		taken, err = a.store.Acquire(ctx, was)
		return func() { op.Epoch, op.Streams = taken.Epoch, taken.Streams }, err
	})
	if err != nil {
		a.pause(ctx, 20*time.Millisecond)
		return
	}
	if want := "about " + string(a.key); string(taken.About) != want {
		a.fail("session %s is about %q", a.key, taken.About)
	}
	a.lease, a.next, a.streams = taken.Lease, make(map[uint64]uint64), 0
	for _, st := range taken.Streams {
		a.streams = max(a.streams, st.Number)
		if !st.Ended {
			a.next[st.Number] = st.Next
		}
		if st.Next > 1 {
			a.read(ctx, st.Number, 0)
		}
	}
}

// read reads the entries of a stream after a sequence.
func (a *actor) read(ctx context.Context, number, after uint64) {
	_ = a.do(Op{Kind: Read, Number: number, After: after}, nil, func(op *Op) (func(), error) {
		var all []stream.Entry
		cursor := stream.Cursor{Stream: stream.ID{Session: a.key, Number: number}, Seq: after}
		for {
			got, err := a.store.Read(ctx, cursor, make([]stream.Entry, 0, 64))
			all = append(all, got...)
			ended := errors.Is(err, io.EOF)
			if err != nil && !ended {
				return nil, err
			}
			if ended || len(got) == 0 {
				return func() { op.Entries, op.Ended = all, ended }, nil
			}
			cursor.Seq = got[len(got)-1].Seq
		}
	})
}

// own does one operation of an owner.
func (a *actor) own(ctx context.Context) {
	ctx, cancel := a.randomTimeout(ctx)
	defer cancel()
	switch n := a.rng.IntN(100); {
	case n < 80:
		a.append(ctx)
	case n < 90:
		if len(a.next) > 0 {
			number := slices.Sorted(maps.Keys(a.next))[0]
			if next := a.next[number]; next > 1 {
				a.read(ctx, number, a.rng.Uint64N(next))
			}
		}
	case n < 95:
		a.claim(ctx)
	case n < 98:
		if errors.Is(a.store.Touch(ctx, a.lease), stream.ErrFenced) {
			a.lose()
		}
	case n < 99 || a.rng.IntN(3) > 0:
	default:
		lease := a.lease
		_ = a.do(Op{Kind: Release}, nil, func(*Op) (func(), error) {
			return nil, a.store.Release(ctx, lease, len(a.next) > 0)
		})
		a.lose()
	}
}

// lose forgets the lease, which another node has or may have.
func (a *actor) lose() {
	a.store.Forget(a.lease)
	a.lease = stream.Lease{}
}

// append appends to one stream or more.
func (a *actor) append(ctx context.Context) {
	var records []stream.Record
	next := maps.Clone(a.next)
	err := a.do(Op{Kind: Append}, func(op *Op) {
		records = a.records(op.ID, next)
		op.Records = records
	}, func(*Op) (func(), error) { return nil, a.store.Append(ctx, a.lease, slices.Clone(records)) })
	switch {
	case err == nil:
		a.next = next
	case errors.Is(err, stream.ErrFull), errors.Is(err, stream.ErrTooLarge):
	default:
		a.lose()
	}
}

// records returns the records of an append, and changes next accordingly.
func (a *actor) records(id int, next map[uint64]uint64) []stream.Record {
	var records []stream.Record
	data := func() []byte {
		size := a.rng.IntN(200)
		if a.rng.IntN(50) == 0 {
			size = a.rng.IntN(20_000)
		}
		return []byte(token(id, len(records)) + strings.Repeat("x", size))
	}
	for range 1 + a.rng.IntN(3) {
		numbers := slices.Sorted(maps.Keys(next))
		var number uint64
		if len(numbers) < 3 {
			a.streams++
			number = a.streams
			next[number] = 1
		} else {
			number = numbers[a.rng.IntN(len(numbers))]
		}
		if a.rng.IntN(5) == 0 {
			records = append(records, stream.Record{Number: number, Note: true, Entry: stream.Entry{Data: data()}})
		}
		last := next[number] > 10 && a.rng.IntN(20) == 0
		entry := stream.Entry{Seq: next[number], Last: last, Data: data()}
		records = append(records, stream.Record{Number: number, Entry: entry})
		next[number]++
		if last {
			delete(next, number)
		}
	}
	return records
}

// claim claims an id that a few other actors claim too.
func (a *actor) claim(ctx context.Context) {
	id := shared.ClaimID(sha256.Sum256(fmt.Append(nil, a.keys[0], a.nextClaim())))
	_ = a.do(Op{Kind: Claim, Claim: id}, func(op *Op) {
		op.Value = fmt.Appendf(nil, "claim %d", op.ID)
	}, func(op *Op) (func(), error) {
		was, _, err := a.store.Claim(ctx, id, op.Value)
		return func() { op.Was = was }, err
	})
}

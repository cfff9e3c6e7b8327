// Package contest tests shared stores with several nodes that contend for the same sessions.
package contest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// Options configure a contest. The zero value of each field stands for the default
// given with it.
type Options struct {
	Seed     uint64        // of all random decisions; a random one
	Sessions int           // how many sessions the nodes contend for; 4
	For      time.Duration // minimum duration; 2 s
	// Disturb is called repeatedly, and may cause faults in the engine or between the
	// engine and the nodes. Nil: there are no faults.
	Disturb func(rng *rand.Rand)
	// Calm ends the faults that Disturb caused. It may be nil.
	Calm func()
}

// Run lets several nodes create, write, read, release and acquire the same sessions
// concurrently, and checks the history against the rules: no acknowledged record is lost
// or changed; every entry that was read was appended; no node appends after a newer lease
// was given; and no two nodes get the same lease. The nodes must keep everything for
// longer than the contest lasts. The keys of the sessions begin with "contest".
func Run(t *testing.T, nodes []shared.Store, o Options) {
	t.Helper()
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.Sessions <= 0 {
		o.Sessions = 4
	}
	if o.For <= 0 {
		o.For = 2 * time.Second
	}
	t.Logf("seed %d", o.Seed)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	histories := make([]*history, o.Sessions)
	for i := range histories {
		h := &history{key: stream.SessionKey(fmt.Sprintf("contest%d-%016x", i, o.Seed))}
		histories[i] = h
		h.began(t, nodes[i%len(nodes)])
		for j, st := range nodes {
			p := &player{h: h, st: st, rng: rand.New(rand.NewPCG(o.Seed, uint64(i*100+j)))}
			wg.Go(func() { p.play(ctx) })
		}
		r := &client{h: h, nodes: nodes, rng: rand.New(rand.NewPCG(o.Seed, uint64(i*100+99)))}
		wg.Go(func() { r.read(ctx) })
	}
	if o.Disturb != nil {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(o.Seed, 1<<32))
			for ctx.Err() == nil {
				o.Disturb(rng)
				pause(ctx, rng, 20*time.Millisecond)
			}
		})
	}
	await(histories, o.For)
	cancel()
	wg.Wait()
	if o.Calm != nil {
		o.Calm()
	}
	sum := tally{}
	for i, h := range histories {
		h.check(t, nodes[i%len(nodes)])
		sum.add(h)
	}
	t.Logf("%d appends acknowledged, %d fenced, %d unknown, %d refused otherwise; %d sessions taken over %d times; %d entries read",
		sum.stored, sum.fenced, sum.unknown, sum.refused, len(histories), sum.acquired, sum.read)
	if sum.stored == 0 || sum.acquired == 0 || sum.read == 0 {
		t.Error("there was no contest")
	}
}

// patience is how long a contest waits for something that must happen.
const patience = time.Minute

// await waits for as long as a contest lasts. If the machine stood still meanwhile it
// waits longer, until the nodes have contended.
func await(histories []*history, least time.Duration) {
	time.Sleep(least)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		sum := tally{}
		for _, h := range histories {
			h.add(func() { sum.add(h) })
		}
		if sum.stored > 0 && sum.acquired > 0 && sum.read > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond) // polling
	}
}

func pause(ctx context.Context, rng *rand.Rand, most time.Duration) {
	timer := time.NewTimer(time.Duration(rng.Int64N(int64(most))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// A player makes one node's operations on a session.
type player struct {
	h   *history
	st  shared.Store
	rng *rand.Rand

	lease stream.Lease // Epoch 0: the node has none
	next  map[uint64]uint64
	top   uint64 // the newest stream
}

func (p *player) play(ctx context.Context) {
	for ctx.Err() == nil {
		switch {
		case p.lease.Epoch == 0:
			pause(ctx, p.rng, 10*time.Millisecond)
			p.acquire(ctx)
		case p.rng.IntN(200) == 0:
			p.release(ctx)
		case p.rng.IntN(100) == 0:
			if err := p.st.Touch(ctx, p.lease); errors.Is(err, stream.ErrFenced) {
				p.forget()
			}
		default:
			p.append(ctx)
		}
	}
}

func (p *player) acquire(ctx context.Context) {
	if was, err := p.st.Lookup(ctx, p.h.key); err == nil {
		p.take(ctx, was)
	}
}

// take acquires the session that was looked up.
func (p *player) take(ctx context.Context, was shared.Session) bool {
	a := &acquisition{node: p.st.Node(), was: was.Epoch, call: p.h.now()}
	taken, err := p.st.Acquire(ctx, was)
	if err != nil {
		return false
	}
	a.taken, a.done = taken, p.h.now()
	p.h.add(func() { p.h.acquired = append(p.h.acquired, a) })
	p.lease, p.next, p.top = taken.Lease, make(map[uint64]uint64), 0
	a.streams = make(map[uint64]shared.Stream)
	for _, x := range taken.Streams {
		a.streams[x.Number] = x
		p.top = max(p.top, x.Number)
		if !x.Ended {
			p.next[x.Number] = x.Next
		}
	}
	return true
}

func (p *player) release(ctx context.Context) {
	if p.st.Release(ctx, p.lease, p.rng.IntN(2) == 0) != nil {
		p.st.Forget(p.lease)
	}
	p.lease.Epoch = 0
}

func (p *player) forget() {
	if p.rng.IntN(2) == 0 { // else a later lease replaces it
		p.st.Forget(p.lease)
	}
	p.lease.Epoch = 0
}

// append appends to some streams, ends some, and begins others.
func (p *player) append(ctx context.Context) {
	x := &attempt{lease: p.lease, node: p.st.Node()}
	numbers := []uint64{1, 2, p.top}
	if _, open := p.next[p.top]; !open || p.top < 3 {
		p.top = max(p.top+1, 3)
		numbers[2] = p.top
	}
	ahead := make(map[uint64]uint64)
	ends := make(map[uint64]bool)
	for range 1 + p.rng.IntN(4) {
		n := numbers[p.rng.IntN(len(numbers))]
		if ends[n] {
			continue
		}
		seq := max(p.next[n], 1) + ahead[n]
		ahead[n]++
		r := stream.Record{Number: n, Entry: stream.Entry{Seq: seq, Data: fmt.Appendf(nil, "%d/%d %016x", n, seq, p.rng.Uint64())}}
		r.Last = n > 2 && p.rng.IntN(4) == 0
		ends[n] = r.Last
		x.records = append(x.records, r)
	}
	if n := numbers[p.rng.IntN(2)]; p.rng.IntN(4) == 0 {
		x.records = append(x.records, note(n, fmt.Sprintf("%016x", p.rng.Uint64())))
	}
	x.call = p.h.now()
	x.err = p.st.Append(ctx, p.lease, x.records)
	x.done = p.h.now()
	p.h.add(func() { p.h.attempts = append(p.h.attempts, x) })
	switch {
	case x.err == nil:
		for n, more := range ahead {
			if p.next[n] = max(p.next[n], 1) + more; ends[n] {
				delete(p.next, n)
			}
		}
	case errors.Is(x.err, stream.ErrFull), errors.Is(x.err, stream.ErrTooLarge):
	default:
		p.forget()
	}
	pause(ctx, p.rng, 500*time.Microsecond)
}

// A client reads the streams of a session, on the node that owns it.
type client struct {
	h     *history
	nodes []shared.Store
	rng   *rand.Rand
}

func (c *client) read(ctx context.Context) {
	cursors := make(map[uint64]stream.Cursor)
	for ctx.Err() == nil {
		st := c.nodes[c.rng.IntN(len(c.nodes))]
		number := 1 + c.rng.Uint64N(2+c.rng.Uint64N(30))
		after, ok := cursors[number]
		if !ok {
			after.Stream = stream.ID{Session: c.h.key, Number: number}
		}
		// A node that has lost the session may not have the cursor's entry.
		got, _ := st.Read(ctx, after, make([]stream.Entry, 0, 16))
		for _, e := range got {
			c.h.shown(number, after.Seq, e)
			after.Seq, after.Epoch = e.Seq, e.Epoch
		}
		cursors[number] = after
		if len(got) == 0 {
			pause(ctx, c.rng, 2*time.Millisecond)
		}
	}
	c.h.add(func() { c.h.cursors = cursors })
}

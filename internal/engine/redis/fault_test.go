//go:build unix

package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine/redis/redistest"
	"holdfast/stream"
)

// A writer appends to a sequence as an owner does: it repeats an append with an
// unknown outcome. If the repeated append is refused, and the last frame is the
// same, the append has succeeded.
type writer struct {
	log   *Log
	key   string
	last  uint64
	acked []string
}

// write appends until quit is closed.
func (w *writer) write(ctx context.Context, quit <-chan struct{}, count *atomic.Int64) error {
	for n := 0; ; n++ {
		select {
		case <-quit:
			return nil
		default:
		}
		frame := fmt.Sprintf("%s %d", w.key, n)
		if err := w.add(ctx, frame); err != nil {
			return fmt.Errorf("frame %d of %s: %w", n, w.key, err)
		}
		w.acked = append(w.acked, frame)
		count.Add(1)
	}
}

func (w *writer) add(ctx context.Context, frame string) error {
	for {
		at, err := w.log.Append(ctx, w.key, w.last, []byte(frame))
		switch {
		case err == nil:
			w.last = at
			return nil
		case errors.Is(err, stream.ErrConflict):
			found := ""
			for found == "" && ctx.Err() == nil {
				err = w.log.Frames(ctx, w.key, w.last, func(_ uint64, _ time.Duration, data []byte) bool {
					found = string(data)
					return true
				})
			}
			if found != frame {
				return fmt.Errorf("%q is there, at %d after %d, %w", found, at, w.last, err)
			}
			w.last = at
			return nil
		case !errors.Is(err, stream.ErrUnavailable) || ctx.Err() != nil:
			return err
		}
		time.Sleep(10 * time.Millisecond) // a pause before the next try
	}
}

// survives has writers at work while faults happen. Afterwards all acknowledged
// frames must be there, once and in order.
func survives(t *testing.T, url string, fault func(progress func())) {
	t.Helper()
	l := hasty(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	writers := make([]*writer, 8)
	var (
		wg    sync.WaitGroup
		count atomic.Int64
	)
	quit := make(chan struct{})
	for i := range writers {
		w := &writer{log: l, key: fmt.Sprint("e.", i)}
		writers[i] = w
		wg.Go(func() {
			if err := w.write(ctx, quit, &count); err != nil {
				t.Error(err)
			}
		})
	}
	fault(func() {
		for was := count.Load(); count.Load() < was+300 && ctx.Err() == nil; {
			time.Sleep(time.Millisecond) // polling
		}
	})
	close(quit)
	wg.Wait()
	check := hasty(t, url)
	for _, w := range writers {
		if got := frames(t, check, w.key); !equal(got, w.acked) {
			t.Errorf("%s: %d frames are kept, %d were acknowledged", w.key, len(got), len(w.acked))
		}
	}
	t.Logf("%d appends", count.Load())
}

// A server that is killed and started again has all acknowledged frames.
func TestKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendfsync", "always")
	survives(t, server.URL(), func(progress func()) {
		for range 3 {
			progress()
			server.Kill()
			server.Restart()
		}
		progress()
		server.Pause()
		time.Sleep(2500 * time.Millisecond) // longer than an attempt
		server.Resume()
		progress()
	})
}

// If a master is killed, and its replica takes its place, no acknowledged frame is
// lost with wait=1.
func TestMasterKilled(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Replica(t, master)
	sentinel := redistest.Sentinel(t, master, "mymaster")
	survives(t, "redis+sentinel://"+sentinel.Addr()+"?master=mymaster&wait=1", func(progress func()) {
		progress()
		master.Kill()
		sentinel.FailOver("mymaster", replica)
		// The new master acknowledges no write until it has a replica.
		redistest.Replica(t, replica)
		progress()
	})
}

// The same holds in a Cluster.
func TestClusterMasterKilled(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, true)
	url := "redis+cluster://" + servers[1].Addr() + "," + servers[2].Addr() + "/?wait=1"
	survives(t, url, func(progress func()) {
		progress()
		servers[0].Kill()
		redistest.FailOver(servers[3], servers[1:]...)
		servers[0].Restart()
		progress()
	})
}

// A write that reaches too few replicas is not acknowledged. When it is repeated,
// the frame is not reported until enough replicas have it.
func TestTooFewReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Replica(t, master)
	l := hasty(t, master.URL()+"?wait=1")
	ctx := t.Context()
	one := appendAll(t, l, "e.k", 0, "one")
	version := uint64(0)
	err := settled(func() (err error) {
		if version, err = l.Put(ctx, "s.k", 0, []byte("one"), time.Hour); errors.Is(err, stream.ErrConflict) {
			_, version, _, err = l.Get(ctx, "s.k") // the value was written, but not acknowledged
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	replica.Pause()
	var wg sync.WaitGroup
	for what, f := range map[string]func() error{
		"append": func() error {
			for range 2 {
				if _, err := l.Append(ctx, "e.k", one, []byte("two")); !errors.Is(err, stream.ErrUnavailable) {
					return err
				}
			}
			return nil
		},
		"put": func() error {
			for range 2 {
				if _, err := l.Put(ctx, "s.k", version, []byte("two"), time.Hour); !errors.Is(err, stream.ErrUnavailable) {
					return err
				}
			}
			return nil
		},
		"get": func() error {
			if _, _, _, err := l.Get(ctx, "s.k"); !errors.Is(err, stream.ErrUnavailable) {
				return err
			}
			return nil
		},
		"ping": func() error {
			if err := l.Ping(ctx); !errors.Is(err, stream.ErrUnavailable) {
				return err
			}
			return nil
		},
	} {
		wg.Go(func() {
			if err := f(); err != nil {
				t.Errorf("%s without a replica: %v", what, err)
			}
		})
	}
	wg.Wait()
	replica.Resume()
	for what, f := range map[string]func() error{
		"append": func() error { _, err := l.Append(ctx, "e.k", one, []byte("two")); return err },
		"put":    func() error { _, err := l.Put(ctx, "s.k", version, []byte("two"), time.Hour); return err },
	} {
		// There is no conflict if the server never got the write.
		if err := settled(f); err != nil && !errors.Is(err, stream.ErrConflict) {
			t.Errorf("%s again: %v", what, err)
		}
	}
	if got := frames(t, l, "e.k"); !equal(got, []string{"one", "two"}) {
		t.Errorf("frames are %q", got)
	}
	var value []byte
	err = settled(func() (err error) { value, _, _, err = l.Get(ctx, "s.k"); return err })
	if err != nil || string(value) != "two" {
		t.Errorf("the value is %q, %v", value, err)
	}
}

// A hearer counts messages, and nodes that are gone.
type hearer struct {
	messages, gone atomic.Int64
}

func (h *hearer) Message([]byte) { h.messages.Add(1) }
func (h *hearer) Gone(string)    { h.gone.Add(1) }

// While Redis is away, no operation waits much longer than its deadline. When Redis
// is back, messages between nodes arrive, and no node was reported gone.
func TestAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := hasty(t, server.URL()), hasty(t, server.URL())
	var atA, atB hearer
	for l, h := range map[*Log]*hearer{a: &atA, b: &atB} {
		var stop func()
		err := settled(func() (err error) { stop, err = l.Receive(h); return err })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
	}
	last := appendAll(t, a, "e.k", 0, "one")
	for _, away := range []struct{ begin, end func() }{
		{server.Pause, server.Resume},
		{server.Kill, server.Restart},
	} {
		away.begin()
		for try := 1; ; try++ {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			began := time.Now()
			if _, err := a.Append(ctx, "e.k", last, []byte("two")); !errors.Is(err, stream.ErrUnavailable) {
				t.Errorf("append: %v", err)
			}
			if err := a.Ping(ctx); !errors.Is(err, stream.ErrUnavailable) {
				t.Errorf("ping: %v", err)
			}
			cancel()
			took := time.Since(began)
			if took < 3*time.Second { // two attempts would take 4
				break
			}
			if try == 3 { // otherwise the machine may have stood still
				t.Errorf("with 200 ms of time it took %v", took)
				break
			}
		}
		_ = a.Send(b.Node(), []byte("x"))
		time.Sleep(2500 * time.Millisecond) // how long Redis is away
		away.end()
		was, back := atA.messages.Load(), time.Now()
		for deadline := time.Now().Add(time.Minute); atA.messages.Load() == was; {
			if time.Now().After(deadline) {
				t.Fatal("nothing is heard after Redis is back")
			}
			_ = b.Send(a.Node(), []byte("x"))
			if time.Since(back) < settling/2 { // a node that takes longer to come back counts as gone
				_ = a.Send(b.Node(), []byte("x"))
			}
			time.Sleep(10 * time.Millisecond) // polling
		}
		last, _ = a.Append(t.Context(), "e.k", last, []byte("two"))
	}
	if atA.gone.Load()+atB.gone.Load() > 0 {
		t.Errorf("%d times a node was said to be gone that was there", atA.gone.Load()+atB.gone.Load())
	}
	hasty(t, server.URL())
}

// Sessions can append while slots of a Cluster move to another master.
func TestClusterResharded(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, false)
	survives(t, "redis+cluster://"+servers[0].Addr()+"/", func(progress func()) {
		for round := range 2 {
			for i := range 8 {
				slot := servers[0].MustDo("CLUSTER", "KEYSLOT", fmt.Sprintf("{%d}", i))
				n, err := strconv.Atoi(slot)
				if err != nil {
					t.Fatal(err)
				}
				owner := n * 3 / 16384
				redistest.Move(t, servers, slot, servers[(owner+round)%3], servers[(owner+round+1)%3])
			}
			progress()
		}
	})
}

//go:build unix

package redis

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine/redis/redistest"
	"holdfast/stream"
)

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
	if got := frames(t, l, "e.k"); !slices.Equal(got, []string{"one", "two"}) {
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

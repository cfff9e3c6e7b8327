package clustertest

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/stream"
)

// A brokenLog is the log of an engine that breaks its contract.
type brokenLog struct {
	*logtest.Handle
	append func(l *brokenLog, key string, last uint64, frame []byte) (uint64, error)
}

func (l *brokenLog) Append(_ context.Context, key string, last uint64, frame []byte) (uint64, error) {
	return l.append(l, key, last, frame)
}

// uncompared appends a frame without comparing the last place.
func uncompared(l *brokenLog, key string, last uint64, frame []byte) (uint64, error) {
	for {
		at, err := l.Handle.Append(context.Background(), key, last, frame)
		if !errors.Is(err, stream.ErrConflict) {
			return at, err
		}
		last = at
	}
}

// The check finds each fault of an engine.
func TestBroken(t *testing.T) {
	t.Parallel()
	e := logtest.New(logtest.Options{Faults: logtest.Faults{Latency: time.Millisecond}})
	for name, act := range map[string]func(l *brokenLog, key string, last uint64, frame []byte) (uint64, error){
		"appends are not compared": uncompared,
		"what was acknowledged is lost": func(l *brokenLog, key string, last uint64, frame []byte) (uint64, error) {
			at, err := l.Handle.Append(context.Background(), key, last, frame)
			if err == nil && rand.IntN(20) == 0 {
				e.Lose(key, e.Kept(key)-1)
			}
			return at, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var wrong []error
			var summary string
			for try := 0; len(wrong) == 0 && try < 10; try++ {
				wrong, _, summary = observe(t, Options{
					For: 300 * time.Millisecond,
					Open: func(testing.TB) Node {
						o := durable.Options{Patience: time.Second, Logger: slog.New(slog.DiscardHandler)}
						return Node{Store: durable.New(&brokenLog{Handle: e.Open(), append: act}, o)}
					},
				})
			}
			if len(wrong) == 0 {
				t.Errorf("nothing is found wrong with %s", summary)
			} else {
				t.Logf("%d things are wrong; the first: %v", len(wrong), wrong[0])
			}
		})
	}
}

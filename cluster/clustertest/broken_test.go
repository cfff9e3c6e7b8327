package clustertest

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"holdfast/engine/durable"
	"holdfast/engine/durable/logtest"
	"holdfast/stream"
)

// A brokenLog is one of an engine that does not do what it says, now and then.
type brokenLog struct {
	*logtest.Handle
	append func(l *brokenLog, key string, last uint64, frame []byte) (uint64, error)
}

func (l *brokenLog) Append(ctx context.Context, key string, last uint64, frame []byte) (uint64, error) {
	if l.append != nil && rand.IntN(20) == 0 {
		return l.append(l, key, last, frame)
	}
	return l.Handle.Append(ctx, key, last, frame)
}

// What is wrong with an engine shows.
func TestBroken(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]func(e *logtest.Engine) func(*brokenLog, string, uint64, []byte) (uint64, error){
		"appends are not compared": func(*logtest.Engine) func(*brokenLog, string, uint64, []byte) (uint64, error) {
			return func(l *brokenLog, key string, last uint64, frame []byte) (uint64, error) {
				for {
					at, err := l.Handle.Append(context.Background(), key, last, frame)
					if !errors.Is(err, stream.ErrConflict) {
						return at, err
					}
					last = at
				}
			}
		},
		"what was acknowledged is lost": func(e *logtest.Engine) func(*brokenLog, string, uint64, []byte) (uint64, error) {
			return func(l *brokenLog, key string, last uint64, frame []byte) (uint64, error) {
				at, err := l.Handle.Append(context.Background(), key, last, frame)
				if err == nil {
					e.Lose(key, e.Kept(key)-1)
				}
				return at, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := logtest.New(logtest.Options{Faults: logtest.Faults{Latency: time.Millisecond}})
			act := broken(e)
			wrong, _, _ := observe(t, Options{
				For: time.Second,
				Open: func(testing.TB) Node {
					log := &brokenLog{Handle: e.Open(), append: act}
					o := durable.Options{Patience: time.Second, Logger: slog.New(slog.DiscardHandler)}
					return Node{Store: durable.New(log, o)}
				},
			})
			if len(wrong) == 0 {
				t.Error("nothing is found wrong")
			} else {
				t.Logf("%d things are wrong; the first: %v", len(wrong), wrong[0])
			}
		})
	}
}

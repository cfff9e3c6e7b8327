package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine/contest"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/engine/redis"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
	"holdfast/stream/streamtest"
)

// An opener opens an engine.
type opener func(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error)

// stores makes stores over an engine. Each case has a URL of its own.
func stores(open opener, url func(t *testing.T) string) streamtest.Maker {
	return func(t *testing.T, l streamtest.Limits) func() stream.Store {
		at := url(t)
		o := durable.Options{
			Keep: l.Keep, SessionTTL: l.SessionTTL,
			StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes,
			Logger: slog.New(slog.DiscardHandler),
		}
		return func() stream.Store {
			for end := time.Now().Add(30 * time.Second); ; {
				log, err := open(context.Background(), at, o)
				if err == nil {
					return durable.New(log, o)
				}
				var late net.Error
				if !errors.As(err, &late) || !late.Timeout() || time.Now().After(end) {
					t.Fatal(err)
				}
				// Try again: the machine is busy.
			}
		}
	}
}

// prefixes returns URLs of one engine: under each, a case has keys of its own.
func prefixes(url string) func(t *testing.T) string {
	var n atomic.Int64
	return func(*testing.T) string { return fmt.Sprintf("%s?prefix=case%d", url, n.Add(1)) }
}

// A store passes streamtest over the engine in a directory.
func TestFile(t *testing.T) {
	t.Parallel()
	streamtest.Run(t, stores(embedded.Open, func(t *testing.T) string {
		return "file:" + filepath.Join(t.TempDir(), "new")
	}), streamtest.Options{Durable: true})
}

func TestNATS(t *testing.T) {
	t.Parallel()
	s, err := natstest.Start(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	streamtest.Run(t, stores(embedded.Open, prefixes(s.URL())), streamtest.Options{Nodes: true, Durable: true})
}

func TestRedis(t *testing.T) {
	t.Parallel()
	streamtest.Run(t, stores(redis.Open, prefixes(redistest.Start(t).URL())), streamtest.Options{Nodes: true, Durable: true})
}

// No acknowledged entry is lost when nodes contend for a session, on any engine
// that takes several nodes.
func TestContest(t *testing.T) {
	t.Parallel()
	s, err := natstest.Start(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for name, open := range map[string]func() stream.Store{
		"NATS":  stores(embedded.Open, prefixes(s.URL()))(t, streamtest.Limits{}),
		"Redis": stores(redis.Open, prefixes(redistest.Start(t).URL()))(t, streamtest.Limits{}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var nodes []shared.Store
			for range 3 {
				st := open().(*durable.Store)
				t.Cleanup(func() {
					if err := st.Close(); err != nil {
						t.Error(err)
					}
				})
				nodes = append(nodes, st)
			}
			contest.Run(t, nodes, contest.Options{For: time.Second})
		})
	}
}

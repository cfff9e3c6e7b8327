package durable_test

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/testlong"
	"holdfast/stream"
	"holdfast/stream/streamtest"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(16)
	goleak.VerifyTestMain(m)
}

// maker makes stores over one engine for each case.
func maker(o logtest.Options) streamtest.Maker {
	return func(t *testing.T, l streamtest.Limits) func() stream.Store {
		e := logtest.New(o)
		return func() stream.Store {
			return durable.New(e.Open(), durable.Options{
				Keep: l.Keep, SessionTTL: l.SessionTTL,
				StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes,
				Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			})
		}
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	streamtest.Run(t, maker(logtest.Options{}), streamtest.Options{Nodes: true, Durable: true, Bubble: true})
}

func TestStoreOneNode(t *testing.T) {
	t.Parallel()
	streamtest.Run(t, maker(logtest.Options{}), streamtest.Options{Durable: true, Bubble: true})
}

// All rules hold while operations fail now and then. (The contests cover one more
// fault: a request that takes effect long after it was given up may bring back the
// record of a deleted session, which then expires unused.)
func TestStoreFaults(t *testing.T) {
	t.Parallel()
	streamtest.Run(t, maker(logtest.Options{
		Seed:   uint64(time.Now().UnixNano()),
		Faults: logtest.Faults{Before: 0.03, After: 0.05, Behind: 0.5},
	}), streamtest.Options{Nodes: true, Durable: true, Bubble: true})
}

package jetstream_test

import (
	"context"
	"log/slog"
	"testing"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/jetstream"
	"holdfast/stream"
	"holdfast/stream/streamtest"

	"holdfast/internal/testlong"
)

// stores makes stores over engines whose URLs it is given, one for each case.
func stores(url func(t *testing.T) string) streamtest.Maker {
	return func(t *testing.T, l streamtest.Limits) func() stream.Store {
		engine := url(t)
		o := durable.Options{
			Keep: l.Keep, SessionTTL: l.SessionTTL,
			StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes,
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}
		return func() stream.Store {
			log, err := jetstream.Open(context.Background(), engine, o)
			if err != nil {
				t.Fatal(err)
			}
			return durable.New(log, o)
		}
	}
}

// What holds for every store holds over a disk.
func TestStoreFile(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "package engine runs the same suite over the same engine, by its URL")
	streamtest.Run(t, stores(func(t *testing.T) string { return "file:" + t.TempDir() }),
		streamtest.Options{Durable: true})
}

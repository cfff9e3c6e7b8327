package jetstream_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/jetstream"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/stream"
	"holdfast/stream/streamtest"
)

// stores makes stores over engines. url returns the URL for each case.
func stores(url func(t *testing.T) string) streamtest.Maker {
	return func(t *testing.T, l streamtest.Limits) func() stream.Store {
		engine := url(t)
		o := durable.Options{
			Keep: l.Keep, SessionTTL: l.SessionTTL,
			StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes,
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}
		return func() stream.Store {
			log := mcptest.Must(embedded.Open(context.Background(), engine, o))(t)
			return durable.New(log, o)
		}
	}
}

// A store over a disk passes the suite of all stores.
func TestStoreFile(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "package engine runs the same suite over the same engine, by its URL")
	streamtest.Run(t, stores(func(t *testing.T) string { return "file:" + t.TempDir() }),
		streamtest.Options{Durable: true})
}

// Deleted sessions leave no messages, nor do sleeping ones, which are deleted, too: very many sessions may sleep, and each
// message takes the engine's memory.
func TestDeletedSessionsLeaveNothing(t *testing.T) {
	t.Parallel()
	log := patient(must(t, "file:"+t.TempDir()))
	st := durable.New(log, durable.Options{Logger: quiet})
	defer st.Close()
	const many = 300
	each := func(do func(key stream.SessionKey) error) {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for i := i; i < many; i += 8 {
					if err := do(stream.SessionKey(fmt.Sprintf("s%d", i))); err != nil {
						t.Errorf("session %d: %v", i, err)
					}
				}
			})
		}
		all.Wait()
	}
	each(func(key stream.SessionKey) error {
		lease, err := st.Create(t.Context(), key, []byte("about"))
		if err == nil {
			err = st.Append(t.Context(), lease, []stream.Record{{Note: true, Entry: stream.Entry{Data: []byte("note")}}})
		}
		return err
	})
	if n := kept(t, log); n < 2*many {
		t.Fatalf("%d messages of %d sessions", n, many)
	}
	each(func(key stream.SessionKey) error { return st.Delete(t.Context(), key) })
	// The node itself has one value: it says that the node marks sessions.
	const ofNode = 1

	for end := time.Now().Add(time.Minute); kept(t, log) > ofNode; time.Sleep(10 * time.Millisecond) { // polling
		if time.Now().After(end) {
			t.Fatalf("%d messages are left", kept(t, log))
		}
	}
}

// kept returns how many messages an engine has, which began empty.
func kept(t *testing.T, log durable.Log) (n uint64) {
	t.Helper()
	js := mcptest.Must(natsjs.New(jetstream.Conn(log)))(t)
	all := js.ListStreams(t.Context())
	for is := range all.Info() {
		n += is.State.Msgs
	}
	mcptest.Check(t, all.Err())
	return n
}

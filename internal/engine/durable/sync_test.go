package durable_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// A syncedLog records the order of calls.
type syncedLog struct {
	durable.Log
	mu    sync.Mutex
	asked []string
}

func (l *syncedLog) note(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, what)
}

func (l *syncedLog) since() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.asked = nil }()
	return strings.Join(slices.Clone(l.asked), " ")
}

func (l *syncedLog) Put(ctx context.Context, key string, was uint64, value []byte, ttl time.Duration) (uint64, error) {
	if !strings.HasPrefix(key, "w.") && !strings.HasPrefix(key, "n.") { // marks are written independently
		l.note("put")
	}
	return l.Log.Put(ctx, key, was, value, ttl)
}

func (l *syncedLog) Append(ctx context.Context, key string, last uint64, frame []byte) (uint64, error) {
	l.note("append")
	return l.Log.Append(ctx, key, last, frame)
}

func (l *syncedLog) Sync(context.Context) error {
	l.note("sync")
	return nil
}

// A claim is on the disk before Claim returns, and a new epoch before anything is
// written under it. No other write waits for the disk.
func TestSyncedBefore(t *testing.T) {
	log := &syncedLog{Log: logtest.New(logtest.Options{}).Open()}
	st := durable.New(log, durable.Options{})
	t.Cleanup(func() { _ = st.Close() })
	lease, err := st.Create(t.Context(), "S", nil)
	if err == nil {
		err = st.Append(t.Context(), lease, []stream.Record{{Number: 1, Entry: stream.Entry{Seq: 1, Data: []byte("x")}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if asked := log.since(); asked != "put append" {
		t.Errorf("a session was begun with %q", asked)
	}
	if _, _, err := st.Claim(t.Context(), shared.ClaimID{1}, []byte("mine")); err != nil {
		t.Fatal(err)
	}
	if asked := log.since(); asked != "put sync" {
		t.Errorf("claimed with %q", asked)
	}
	was, err := st.Lookup(t.Context(), "S")
	if err == nil {
		_, err = st.Acquire(t.Context(), was)
	}
	if err != nil {
		t.Fatal(err)
	}
	if asked := log.since(); asked != "put sync append" {
		t.Errorf("taken over with %q", asked)
	}
}

//go:build unix

package redis

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/stream"
	"holdfast/stream/streamtest"
)

// A store over Redis passes the suite of all stores. Each case has keys of its own.
func TestStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var cases atomic.Int64
	streamtest.Run(t, func(t *testing.T, l streamtest.Limits) func() stream.Store {
		url := fmt.Sprintf("%s?prefix=case%d", server.URL(), cases.Add(1))
		return func() stream.Store {
			o := durable.Options{
				Keep: l.Keep, SessionTTL: l.SessionTTL,
				StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes,
				Logger: quiet,
			}
			return durable.New(patient(t, url, o), o)
		}
	}, streamtest.Options{Nodes: true, Durable: true})
}

// Deleted sessions leave no keys, nor do sleeping ones, which are deleted, too: many thousands of sessions may sleep, and even an empty key takes memory.
func TestDeletedSessionsLeaveNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := open(t, server.URL())
	st := durable.New(patient(t, server.URL(), durable.Options{Logger: quiet}), durable.Options{Logger: quiet})
	defer st.Close()
	const many = 1000
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for i := i; i < many; i += 8 {
				key := stream.SessionKey(fmt.Sprintf("s%d", i))
				lease, err := st.Create(t.Context(), key, []byte("about"))
				if err == nil {
					err = st.Append(t.Context(), lease, []stream.Record{{Note: true, Entry: stream.Entry{Data: []byte("note")}}})
				}
				if err != nil {
					t.Errorf("session %s: %v", key, err)
				}
			}
		})
	}
	all.Wait()
	kept := func() []string {
		names, err := l.client.Keys(t.Context(), "*}:*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, ":v:n") }) // the node's own value: it says that the node marks sessions
	}
	if n := len(kept()); n != 2*many {
		t.Fatalf("%d keys of %d sessions", n, many)
	}
	for i := range 8 {
		all.Go(func() {
			for i := i; i < many; i += 8 {
				if err := st.Delete(t.Context(), stream.SessionKey(fmt.Sprintf("s%d", i))); err != nil {
					t.Errorf("Delete: %v", err)
				}
			}
		})
	}
	all.Wait()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left := kept()
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d keys are left: %v", len(left), left[0])
		}
	}
}

package jetstream_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/jetstream"
	"holdfast/internal/mcptest"
)

// All sessions are listed every now and then. This once cost 6 KB of garbage for each
// idle session, and 0.1 ms in which no other goroutine could write.
func TestListIsCheap(t *testing.T) {
	const values, most = 3000, 3 << 10
	l, err := embedded.Open(t.Context(), "file:"+t.TempDir(), durable.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	jetstream.Patient(l, time.Minute, time.Minute)
	value := make([]byte, 150)
	var work sync.WaitGroup
	for i := range 16 {
		work.Go(func() {
			for n := i; n < values; n += 16 {
				if _, err := l.Put(t.Context(), fmt.Sprintf("s.%d", n), 0, value, time.Hour); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	mcptest.Must(l.Put(t.Context(), "other.1", 0, value, time.Hour))(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	seen := make(map[string]bool, values)
	err = l.List(t.Context(), "s.", func(key string, got []byte, _ uint64) bool {
		if len(got) != len(value) {
			t.Errorf("%s has %d bytes", key, len(got))
		}
		seen[key] = true
		return true
	})
	runtime.ReadMemStats(&after)
	if err != nil || len(seen) != values {
		t.Fatalf("%d listed, want %d: %v", len(seen), values, err)
	}
	each := (after.TotalAlloc - before.TotalAlloc) / values
	t.Logf("%d bytes allocated for each", each)
	if each > most {
		t.Errorf("%d bytes allocated for each, want at most %d", each, most)
	}
}

// A list that is not read to its end leaves no goroutine. Some values may be gone by
// the time that the list asks for them.
func TestListEnds(t *testing.T) {
	l, err := embedded.Open(t.Context(), "file:"+t.TempDir(), durable.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	jetstream.Patient(l, time.Minute, time.Minute)
	const values = 600
	for i := range values {
		mcptest.Must(l.Put(t.Context(), fmt.Sprintf("s.%d", i), 0, []byte("x"), time.Hour))(t)
	}
	n := 0
	err = l.List(t.Context(), "s.", func(string, []byte, uint64) bool {
		n++
		return n < 10
	})
	if err != nil || n != 10 {
		t.Errorf("%d listed, want 10: %v", n, err)
	}
	n = 0
	err = l.List(t.Context(), "s.", func(string, []byte, uint64) bool {
		if n++; n == 1 { // remove values after the first answer
			for i := 300; i < values; i++ {
				if err := l.Remove(t.Context(), fmt.Sprintf("s.%d", i), 0); err != nil {
					t.Error(err)
				}
			}
		}
		return true
	})
	if err != nil || n < 300 || n >= values {
		t.Errorf("%d listed, want the 300 that are left, and those of the first answer: %v", n, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	err = l.List(ctx, "s.", func(string, []byte, uint64) bool {
		stop()
		return true
	})
	if err == nil {
		t.Error("a list went on without its context")
	}
}

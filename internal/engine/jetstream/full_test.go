package jetstream_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/mcptest"
	"holdfast/stream"
)

// A full engine returns an error, keeps its frames, and has room again when some are
// dropped.
func TestFull(t *testing.T) {
	t.Parallel()
	l := patient(must(t, "file:"+t.TempDir()+"?max=16MiB"))
	defer closed(t, l)
	frame := make([]byte, 1<<20)
	var last, n uint64
	for {
		at, err := l.Append(t.Context(), "a", last, frame)
		if errors.Is(err, stream.ErrFull) {
			break
		}
		if err != nil || n > 16 {
			t.Fatalf("after %d frames: %v", n, err)
		}
		last, n = at, n+1
	}
	if got := count(t, l, "a"); got != n {
		t.Errorf("%d frames, want %d", got, n)
	}
	if err := l.Ping(t.Context()); err != nil {
		t.Errorf("the values are not full: %v", err)
	}
	mcptest.Check(t, l.Trim(t.Context(), "a", last))
	if _, err := l.Append(t.Context(), "a", last, frame); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// A value can be removed from an engine that is full.
func TestRemoveFull(t *testing.T) {
	t.Parallel()
	l := patient(must(t, "file:"+t.TempDir()+"?max=16MiB"))
	defer closed(t, l)
	var keys []string
	versions := make(map[string]uint64)
	for size := 1 << 20; size > 0; size /= 2 {
		for i := 0; ; i++ {
			key := fmt.Sprintf("v.%d-%d", size, i)
			v, err := l.Put(t.Context(), key, 0, make([]byte, size-1), time.Hour)
			if errors.Is(err, stream.ErrFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			keys, versions[key] = append(keys, key), v
		}
	}
	if err := l.Ping(t.Context()); !errors.Is(err, stream.ErrFull) {
		t.Errorf("Ping: %v, want that it is full", err)
	}
	for _, key := range keys {
		if err := l.Remove(t.Context(), key, versions[key]); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		if _, _, _, err := l.Get(t.Context(), key); !errors.Is(err, stream.ErrNotFound) {
			t.Fatalf("%s: %v", key, err)
		}
	}
	if err := l.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// count returns how many frames a key has.
func count(t *testing.T, l durable.Log, key string) (n uint64) {
	t.Helper()
	until(t, func() error { // the machine may just have stood still
		n = 0
		return l.Frames(t.Context(), key, 0, func(uint64, time.Duration, []byte) bool { n++; return true })
	})
	return n
}

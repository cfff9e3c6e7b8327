package jetstream_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
	"holdfast/stream"
)

// An engine that comes back without its data is used as a new one.
func TestLostData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mcptest.Must(natstest.StartProcesses(dir, 1))(t)
	t.Cleanup(s.Close)
	l := must(t, s.URL())
	defer closed(t, l)
	at := mcptest.Must(l.Append(t.Context(), "a", 0, []byte("1")))(t)
	s.Kill(0)
	mcptest.Check(t, os.RemoveAll(filepath.Join(dir, "n0")))
	mcptest.Check(t, s.Restart(0))
	until(t, func() error {
		last, err := l.Append(t.Context(), "a", at, []byte("2"))
		if errors.Is(err, stream.ErrConflict) && last == 0 {
			return nil
		}
		return fmt.Errorf("after %d comes %d, %w", at, last, err)
	})
	if _, err := l.Append(t.Context(), "a", 0, []byte("2")); err != nil {
		t.Error(err)
	}
	until(t, func() error { return l.Ping(t.Context()) })
}

// until repeats f until it succeeds, and fails the test if that takes too long.
func until(t *testing.T, f func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // polling: the engine does not report this
	}
}

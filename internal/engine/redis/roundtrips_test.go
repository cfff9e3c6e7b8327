//go:build unix

package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/redis/redistest"
	"holdfast/stream"
)

// Many writes share round trips, each with its own outcome, even if Redis forgets
// the scripts meanwhile.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := open(t, server.URL())
	quit := make(chan struct{})
	var flushing, writing sync.WaitGroup
	flushing.Go(func() {
		for {
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
				if _, err := server.Do("SCRIPT", "FLUSH"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	const writers, each = 64, 30
	for i := range writers {
		writing.Go(func() {
			key, last := fmt.Sprint("e.", i), uint64(0)
			for n := range each {
				frame := bytes.Repeat([]byte{byte(i)}, 10+n*i*50)
				at, err := l.Append(t.Context(), key, last, frame)
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				if conflicting, err := l.Append(t.Context(), key, last, frame); !errors.Is(err, stream.ErrConflict) || conflicting != at {
					t.Errorf("the same again: %d, %v", conflicting, err)
				}
				last = at
			}
		})
	}
	writing.Wait()
	close(quit)
	flushing.Wait()
	for i := range writers {
		for n, frame := range frames(t, l, fmt.Sprint("e.", i)) {
			if frame != string(bytes.Repeat([]byte{byte(i)}, 10+n*i*50)) {
				t.Fatalf("frame %d of writer %d is another", n, i)
			}
		}
	}
}

// A caller that has given up may change its frame: the sent bytes stay the same.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := open(t, server.URL())
	server.Pause()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			frame := bytes.Repeat([]byte("x"), 1000)
			if _, err := l.Append(ctx, fmt.Sprint("e.", i), 0, frame); !errors.Is(err, stream.ErrUnavailable) {
				t.Errorf("append: %v", err)
			}
			copy(frame, bytes.Repeat([]byte("y"), 1000))
		})
	}
	wg.Wait()
	server.Resume()
	for i := range 40 {
		key := fmt.Sprint("e.", i)
		_, err := l.Append(t.Context(), key, 0, bytes.Repeat([]byte("x"), 1000))
		if err != nil && !errors.Is(err, stream.ErrConflict) {
			t.Fatal(err)
		}
		for _, frame := range frames(t, l, key) {
			if frame != string(bytes.Repeat([]byte("x"), 1000)) {
				t.Fatalf("%s has a frame that nobody appended: %.20q", key, frame)
			}
		}
	}
}

package jetstream

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/stream"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	mcptest.Check(t, f.Close())
}

// With sync=always an append waits until it is on the disk, and appends that wait
// share one sync.
func TestSyncGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "1.blk", "first")
		d := newSyncer(0, []string{dir}, slog.New(slog.DiscardHandler))
		mcptest.Check(t, d.acknowledge(t.Context()))
		if is := d.streams[0].synced["1.blk"]; is == nil || is.Size() != 5 {
			t.Fatalf("acknowledged with %v on the disk", is)
		}
		d.close()
		// The goroutine of the next syncer is the test.
		d = &syncer{streams: d.streams, log: d.log, wake: make(chan struct{}, 1), haste: make(chan struct{}, 1), quit: make(chan struct{})}
		var acknowledged atomic.Int32
		for range 10 {
			go func() {
				if err := d.acknowledge(t.Context()); err != nil {
					t.Error(err)
				}
				acknowledged.Add(1)
			}()
		}
		synctest.Wait()
		if n := acknowledged.Load(); n != 0 {
			t.Errorf("%d appends were acknowledged before the sync", n)
		}
		write(t, dir, "1.blk", "second")
		d.turn()
		synctest.Wait()
		if n, is := acknowledged.Load(), d.streams[0].synced["1.blk"]; n != 10 || is.Size() != 11 {
			t.Errorf("one sync acknowledged %d appends, with %d bytes on the disk", n, is.Size())
		}
	})
}

// If acknowledged data may be in memory for a while, no append waits, and the data is on
// the disk within that time. If the disk is slower, appends wait.
func TestSyncInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "1.blk", "first")
		d := newSyncer(time.Second, []string{dir}, slog.New(slog.DiscardHandler))
		defer d.close()
		begun := time.Now()
		if err := d.acknowledge(t.Context()); err != nil || time.Since(begun) > 0 {
			t.Fatalf("acknowledged after %v: %v", time.Since(begun), err)
		}
		d.mu.Lock()
		r := d.coming()
		d.mu.Unlock()
		<-r.done
		if passed := time.Since(begun); passed > time.Second {
			t.Errorf("on the disk after %v", passed)
		}

		d.mu.Lock()
		d.oldest = time.Now().Add(-time.Second) // as if the disk had been busy since then
		d.mu.Unlock()
		write(t, dir, "1.blk", "second")
		mcptest.Check(t, d.acknowledge(t.Context()))
		if is := d.streams[0].synced["1.blk"]; is == nil || is.Size() != 11 {
			t.Errorf("acknowledged with %v on the disk, though that is late", is)
		}
	})
}

// A sync writes all files that are new, longer, or replaced, and no others.
func TestSyncBlocks(t *testing.T) {
	dir := t.TempDir()
	b := &blocks{dir: dir}
	sync := func(name string, size int64) {
		t.Helper()
		mcptest.Check(t, b.sync())
		if is := b.synced[name]; is == nil || is.Size() != size {
			t.Errorf("%s: %v is on the disk, want %d bytes", name, is, size)
		}
	}
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"9.blk", "10.blk"} {
		write(t, dir, name, name)
	}
	mcptest.Check(t, os.Chtimes(dir, old, old))
	sync("9.blk", 5)
	if b.last != "10.blk" || b.changed.IsZero() {
		t.Fatalf("the last block is %s, the directory of %v", b.last, b.changed)
	}
	write(t, dir, "10.blk", "more")
	sync("10.blk", 10)
	write(t, dir, "11.blk", "next")
	sync("11.blk", 4)
	write(t, dir, "10.new", "less")
	mcptest.Check(t, os.Rename(filepath.Join(dir, "10.new"), filepath.Join(dir, "10.blk")))
	sync("10.blk", 4)
	mcptest.Check(t, os.Remove(filepath.Join(dir, "9.blk")))
	sync("11.blk", 4)
	if len(b.synced) != 2 {
		t.Errorf("%d blocks are known, want 2", len(b.synced))
	}
}

// After the disk has failed once, no more is acknowledged: a later success of the disk
// says nothing about the data that it has lost.
func TestSyncFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	d := newSyncer(0, []string{dir}, slog.New(slog.DiscardHandler))
	defer d.close()
	for range 2 {
		err := d.acknowledge(t.Context())
		if !errors.Is(err, stream.ErrUnavailable) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("acknowledged with %v", err)
		}
		mcptest.Check(t, os.MkdirAll(dir, 0o700))
	}
	if d.failed() == nil {
		t.Error("it does not say so")
	}
}

// Appends that wait get an error when the engine is closed.
func TestSyncClosed(t *testing.T) {
	d := newSyncer(time.Hour, nil, slog.New(slog.DiscardHandler))
	d.close()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := d.flush(ctx); !errors.Is(err, stream.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("waited with %v", err)
	}
}

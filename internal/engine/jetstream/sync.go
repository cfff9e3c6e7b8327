package jetstream

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// defaultSync is how long acknowledged messages may be in the machine's memory only.
const defaultSync = time.Second

// A syncer calls fsync on the files that the server in this process writes. The server
// could do that itself, after each message or periodically, but it takes no writes
// meanwhile. The syncer has file descriptors of its own, so the server goes on, and one
// fsync serves all callers that wait.
type syncer struct {
	most    time.Duration // how long acknowledged writes may stay off the disk; 0: not at all
	log     *slog.Logger
	streams []*blocks // used by the goroutine alone

	mu      sync.Mutex
	next    *round    // the round that has not begun
	since   time.Time // when the first write was acknowledged that next will sync; zero: no write was
	oldest  time.Time // the same for all writes that are not on the disk yet
	failure error     // no write is acknowledged until restart
	anew    bool      // blocks.synced is no longer true
	closed  bool

	work  sync.WaitGroup
	wake  chan struct{} // holds one: there is a next round
	haste chan struct{} // holds one: a caller waits for the next round
	quit  chan struct{}
}

// A round is one fsync of all files, for all writes before it began.
type round struct {
	done chan struct{}
	err  error // once done
}

// newSyncer begins to sync the blocks in dirs. Their present state must be on the
// disk.
func newSyncer(most time.Duration, dirs []string, log *slog.Logger) *syncer {
	d := &syncer{
		most: most, log: log,
		wake: make(chan struct{}, 1), haste: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	for _, dir := range dirs {
		d.streams = append(d.streams, &blocks{dir: dir})
	}
	d.work.Go(d.run)
	return d
}

// close ends the goroutine. Callers of wait get errClosed: their outcome is unknown.
func (d *syncer) close() {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.quit)
	}
	d.mu.Unlock()
	d.work.Wait()
}

// errClosed is the error for callers that wait when the engine is closed.
var errClosed = errors.New("the engine is closed")

// acknowledge is called after the server has acknowledged a write, and before we do. It
// waits for the disk if sync=always was set, or if the oldest write that is not on the
// disk is older than d.most.
func (d *syncer) acknowledge(ctx context.Context) error {
	now := time.Now()
	d.mu.Lock()
	if d.since.IsZero() {
		d.since = now
	}
	if d.oldest.IsZero() {
		d.oldest = now
	}
	if d.most > 0 && now.Sub(d.oldest) < d.most && d.failure == nil {
		d.coming()
		d.mu.Unlock()
		return nil
	}
	return d.wait(ctx)
}

// flush waits until all earlier writes are on the disk.
func (d *syncer) flush(ctx context.Context) error {
	d.mu.Lock()
	return d.wait(ctx)
}

// coming returns the next round. mu is held.
func (d *syncer) coming() *round {
	if d.next == nil {
		d.next = &round{done: make(chan struct{})}
		d.wake <- struct{}{} // has room: the goroutine took the last one with its round
	}
	return d.next
}

// wait waits for the next round. mu is held, and released.
func (d *syncer) wait(ctx context.Context) error {
	if err := d.failure; err != nil || d.closed {
		d.mu.Unlock()
		return unavailable(errors.Join(err, errClosed))
	}
	r := d.coming()
	select {
	case d.haste <- struct{}{}:
	default:
	}
	d.mu.Unlock()
	select {
	case <-r.done:
		if r.err != nil {
			return unavailable(r.err)
		}
		return nil
	case <-d.quit:
		return unavailable(errClosed)
	case <-ctx.Done():
		return unavailable(fmt.Errorf("waiting for the disk: %w", ctx.Err()))
	}
}

// failed returns why no write is acknowledged any more, or nil.
func (d *syncer) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

// restart allows acknowledgements again after a failure. The caller has brought all files to the disk.
func (d *syncer) restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failure, d.anew = nil, true
}

func (d *syncer) run() {
	for {
		select {
		case <-d.quit:
			return
		case <-d.wake:
		}
		// Half of the time is for gathering, the other half for the disk.
		t := time.NewTimer(d.most / 2)
		select {
		case <-t.C:
		case <-d.haste:
		case <-d.quit:
		}
		t.Stop()
		d.turn()
	}
}

// turn makes the next round.
func (d *syncer) turn() {
	d.mu.Lock()
	r := d.next
	d.next, d.since = nil, time.Time{}
	select { // callers that wait now wait for this round
	case <-d.haste:
	default:
	}
	anew := d.anew
	d.anew = false
	d.mu.Unlock()
	for _, b := range d.streams {
		if anew {
			b.synced = nil
		}
		if r.err = b.sync(); r.err != nil {
			break
		}
	}
	d.mu.Lock()
	d.oldest = d.since
	if r.err != nil {
		// After an fsync that failed the next one may succeed although data were lost.
		r.err = fmt.Errorf("bringing data to the disk: %w", r.err)
		d.failure = r.err
	}
	d.mu.Unlock()
	if r.err != nil && !isNoSpace(r.err) { // the healer logs that
		d.log.Error("the engine's data can't be brought to the disk: nothing is acknowledged until this is started again", "error", r.err)
	}
	close(r.done)
}

// blocks are the files in which the server keeps a stream's messages. It appends to
// the last, and changes the others only by replacing the file.
type blocks struct {
	dir    string
	synced map[string]fs.FileInfo // by their names, as they were when they were brought to the disk
	last   string
	// The directory's time of change; zero: a later change may have the same time.
	changed time.Time
}

const blockSuffix = ".blk"

// settling is after how long a further change of a directory gives it another time for
// sure: file systems keep times in steps of some milliseconds.
const settling = 100 * time.Millisecond

// sync brings all writes before the call to the disk.
func (b *blocks) sync() error {
	now := time.Now()
	dir, err := os.Stat(b.dir)
	if err != nil {
		return err
	}
	if b.synced != nil && b.changed.Equal(dir.ModTime()) {
		return b.syncLast()
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	was := b.synced
	b.synced = make(map[string]fs.FileInfo, len(entries))
	b.last = ""
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, blockSuffix) {
			continue
		}
		if newer(name, b.last) {
			b.last = name
		}
		is, err := b.syncFile(name, was[name])
		switch {
		case err != nil:
			return err
		case is != nil:
			b.synced[name] = is
		}
	}
	if b.changed = dir.ModTime(); now.Sub(b.changed) < settling {
		b.changed = time.Time{}
	}
	return syncDir(b.dir)
}

func (b *blocks) syncLast() error {
	if b.last == "" {
		return nil
	}
	is, err := b.syncFile(b.last, b.synced[b.last])
	if is != nil {
		b.synced[b.last] = is
	}
	return err
}

// newer reports whether a block follows another: they are numbered.
func newer(name, than string) bool {
	return len(name) > len(than) || len(name) == len(than) && name > than
}

// syncFile brings a block to the disk, unless it has not changed since was, and returns
// its present FileInfo; nil: the file is gone.
func (b *blocks) syncFile(name string, was fs.FileInfo) (fs.FileInfo, error) {
	path := filepath.Join(b.dir, name)
	is, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case was != nil && os.SameFile(is, was) && is.Size() == was.Size():
		return was, nil
	}
	err = syncFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return is, err
}

// syncFile brings a file to the disk.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncDir brings a directory's names to the disk.
func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil // which has no call for that
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncTree brings all files below a directory to the disk, and the directory's own name.
func syncTree(root string) error {
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
		case e.IsDir():
			err = syncDir(path)
		case e.Type().IsRegular():
			err = syncFile(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the server has removed it
		}
		return err
	})
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(filepath.Clean(root)))
}

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

// defaultSync is how long what was acknowledged may be in the machine's memory only.
const defaultSync = time.Second

// A syncer brings what the server in this process has written to the disk itself. The
// server could: after each message, while nobody else can write, or every so often, with
// the same effect for as long as the disk takes. The syncer calls fsync on the same files
// with descriptors of its own. So the server goes on meanwhile, and one fsync is for all
// who wait for theirs.
type syncer struct {
	most    time.Duration // how old what is not on the disk may become; 0: nothing is acknowledged before
	log     *slog.Logger
	streams []*blocks // used by the goroutine alone

	mu      sync.Mutex
	next    *round    // that has not begun
	since   time.Time // when the first write was acknowledged that next is for; zero: there is none
	oldest  time.Time // the same for all that is not on the disk yet
	failure error     // nothing is acknowledged any more, until restart
	anew    bool      // what the streams' files were when they were synced holds no more
	closed  bool

	work  sync.WaitGroup
	wake  chan struct{} // holds one: there is a next round
	haste chan struct{} // holds one: somebody waits for it
	quit  chan struct{}
}

// A round is one turn of fsync, for all that was written before it began.
type round struct {
	done chan struct{}
	err  error // once done
}

// newSyncer begins to sync the blocks in some directories, which are on the disk as
// they are now.
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

// close ends the goroutine. Whoever waits is told that it is not known.
func (d *syncer) close() {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.quit)
	}
	d.mu.Unlock()
	d.work.Wait()
}

// errClosed is what those are told who wait when the engine is closed.
var errClosed = errors.New("the engine is closed")

// acknowledge is called between the server's word that something is written and ours. It
// waits for the disk where that was promised, and where the disk is too slow for what
// was promised.
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

// flush waits until all that was written before is on the disk.
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

// failed returns why nothing is acknowledged any more.
func (d *syncer) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

// restart takes acknowledgements again after a failure. What the files have now is on the disk.
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
	select { // who waits now waits for this one
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
		// After an fsync that failed the next one may succeed, without what was lost.
		r.err = fmt.Errorf("bringing data to the disk: %w", r.err)
		d.failure = r.err
	}
	d.mu.Unlock()
	if r.err != nil && !isNoSpace(r.err) { // of which the healer tells
		d.log.Error("the engine's data can't be brought to the disk: nothing is acknowledged until this is started again", "error", r.err)
	}
	close(r.done)
}

// blocks are the files in which the server keeps a stream's messages. To each but the
// last it only ever gives another file's place; to the last it appends.
type blocks struct {
	dir    string
	synced map[string]fs.FileInfo // by their names, as they were when they were brought to the disk
	last   string
	// When the directory was changed, if every later change will show.
	changed time.Time
}

const blockSuffix = ".blk"

// settling is how long after its last change a directory can be told from one that has
// changed since: file systems keep times in steps of some milliseconds.
const settling = 100 * time.Millisecond

// sync brings to the disk what was written before it was called.
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

// syncFile brings a block to the disk, unless it is as it was then, and returns what it
// is; nil: it is gone.
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
		return nil // where that can't be asked for
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncTree brings all that is in a directory to the disk, and the directory's own name.
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
			return nil // the server was done with it
		}
		return err
	})
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(filepath.Clean(root)))
}

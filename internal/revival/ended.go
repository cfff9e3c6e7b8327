package revival

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/sessionid"
	"holdfast/internal/statefile"
	"holdfast/stream"
)

// mostEnded bounds how many ended sessions a node remembers. If there are more, it forgets those that began first, and no
// session that began as early can be revived: an ended session never comes back.
const mostEnded = 100_000

// ended are sessions that were ended on this node, and those in the file in Options.Dir.
type ended struct {
	mu    sync.Mutex
	began map[stream.SessionKey]int64 // in seconds since 1970
	floor int64                       // in seconds since 1970: sessions that began until then count as ended
	read  int64                       // how many bytes of the file were read
	head  []byte                      // the first bytes of the file that was read, which tell it from a file that has replaced it
	told  bool                        // it was logged that the file cannot be read

	lines, expired int // lines read of the file, and those of them that had expired

	refused, refusedBefore map[stream.SessionKey]struct{} // two generations: see [Keeper.Refuse]
}

// mostRefused bounds how many sessions Refuse remembers, in each of two generations: when the younger one is full, the older one is forgotten.
const mostRefused = 2048

// Refuse keeps this node from reviving a session that has not begun, as its client knows. It may forget that once mostRefused
// others are refused.
func (k *Keeper) Refuse(key stream.SessionKey) {
	e := &k.ended
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.refused) >= mostRefused || e.refused == nil {
		e.refused, e.refusedBefore = make(map[stream.SessionKey]struct{}), e.refused
	}
	e.refused[key] = struct{}{}
}

// add adds a session. floor is the new floor; zero: it has not changed.
func (e *ended) add(key stream.SessionKey, began time.Time) (floor time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.began[key] = began.Unix()
	return e.bound()
}

// all returns the sessions, and when they began.
func (e *ended) all() map[stream.SessionKey]time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[stream.SessionKey]time.Time, len(e.began))
	for key, began := range e.began {
		all[key] = time.Unix(began, 0)
	}
	return all
}

// bound forgets the oldest tenth of the sessions, if there are too many, and returns the new floor. e.mu is held.
func (e *ended) bound() (floor time.Time) {
	if len(e.began) <= mostEnded {
		return floor
	}
	all := slices.Sorted(maps.Values(e.began))
	e.floor = max(e.floor, all[len(all)/10])
	for key, began := range e.began {
		if began <= e.floor {
			delete(e.began, key)
		}
	}
	return time.Unix(e.floor, 0)
}

// has reports whether a session counts as ended.
func (e *ended) has(key stream.SessionKey, began time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.began[key]
	_, refused := e.refused[key]
	_, before := e.refusedBefore[key]
	return ok || refused || before || began.Unix() <= e.floor
}

func formatTime(t time.Time) []byte { return strconv.AppendInt(nil, t.Unix(), 10) }

// parseTime parses a text of formatTime. It returns the present time for any other text: then no earlier session is revived.
func parseTime(text []byte) time.Time {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return time.Now()
	}
	return time.Unix(n, 0)
}

// The functions below keep keys and ended sessions in a directory.

// keysIn returns the keys in a directory. If it has no file of keys, it gets one with own.
func keysIn(dir string, own sessionid.Key) ([]sessionid.Key, error) {
	name := filepath.Join(dir, keysName)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		if text, err = firstFile(name, []byte(own.Text()+"\n")); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	return sessionid.ParseKeys(text)
}

// firstFile makes a file that only this user can read, atomically, unless there is one, and returns the content: another
// process may have been faster.
func firstFile(name string, data []byte) ([]byte, error) {
	fresh := name + ".new" + strconv.Itoa(os.Getpid())
	if err := statefile.Replace(fresh, data); err != nil {
		return nil, err
	}
	defer os.Remove(fresh)
	if err := os.Link(fresh, name); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(name)
}

func (k *Keeper) endedFile() string { return filepath.Join(k.o.Dir, "sessions-ended") }

// lockTime is how long to wait for another process that locks the file while it rewrites it.
const lockTime = 5 * time.Second

// endInDir appends a line for an ended session to the file, and one for a new floor.
func (k *Keeper) endInDir(key stream.SessionKey, began, floor time.Time) error {
	k.settling.Lock()
	dir := k.o.Dir
	k.settling.Unlock()
	if dir == "" {
		return nil
	}
	line := append([]byte{'\n'}, formatTime(began)...) // the line end completes a line that was cut off
	line = append(append(line, ' '), key...)
	if !floor.IsZero() {
		line = append(append(line, '\n'), formatTime(floor)...)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), lockTime)
	defer stop()
	if lock, err := statefile.Lock(ctx, statefile.LockName(k.endedFile())); err == nil { // without the lock it is written all the same
		defer lock.Close()
	}
	f, err := os.OpenFile(k.endedFile(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// readEnded reads the lines of the file that are new to this process.
func (k *Keeper) readEnded() {
	k.settling.Lock()
	dir := k.o.Dir
	k.settling.Unlock()
	if dir == "" {
		return
	}
	e := &k.ended
	e.mu.Lock()
	defer e.mu.Unlock()
	text, err := e.readFrom(k.endedFile())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		if !e.told {
			e.told = true
			k.o.Logger.Warn("sessions that were ended before may be revived: the list of them cannot be read (--state-dir)", "error", err)
		}
		return
	}
	e.take(text, time.Now().Add(-k.o.Life))
	if e.lines > 1000 && e.expired > e.lines/2 {
		k.rewriteEnded()
	}
}

// take adds the sessions and floors in lines of the file, and counts sessions that began before oldest as expired. e.mu is held.
func (e *ended) take(text []byte, oldest time.Time) {
	for {
		line, rest, ok := bytes.Cut(text, []byte("\n"))
		if !ok {
			break // the rest is being written
		}
		e.read += int64(len(line)) + 1
		text = rest
		if len(line) == 0 {
			continue
		}
		at, key, isKey := bytes.Cut(line, []byte(" "))
		began, err := strconv.ParseInt(string(at), 10, 64)
		e.lines++
		switch {
		case err != nil:
		case !isKey:
			e.floor = max(e.floor, began)
		case began < oldest.Unix():
			e.expired++
		default:
			e.began[stream.SessionKey(key)] = began
		}
	}
	e.bound()
}

// mostHead is how many bytes tell a file from one that has replaced it: a rewritten file begins with a random line.
const mostHead = 64

// readFrom reads the bytes of the file that were not read yet: all of them, if it has replaced the last one. e.mu is held.
func (e *ended) readFrom(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	head := make([]byte, min(size, mostHead))
	if _, err = f.ReadAt(head, 0); err != nil && len(head) > 0 {
		return nil, err
	}
	if size < e.read || !bytes.HasPrefix(head, e.head) {
		e.read, e.lines, e.expired = 0, 0, 0
	}
	e.head = head
	if _, err = f.Seek(e.read, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// rewriteEnded writes the file without expired lines, unless another process has locked it. ended.mu is held.
func (k *Keeper) rewriteEnded() {
	lock, err := statefile.TryLock(statefile.LockName(k.endedFile()))
	if err != nil || lock == nil {
		return // the next readEnded tries again
	}
	defer lock.Close()
	rest, err := k.ended.readFrom(k.endedFile()) // lines written before the lock
	if err != nil {
		return
	}
	k.ended.take(rest, time.Now().Add(-k.o.Life))
	text := []byte("#" + rand.Text() + "\n")
	if k.ended.floor > 0 {
		text = append(strconv.AppendInt(text, k.ended.floor, 10), '\n')
	}
	oldest := time.Now().Add(-k.o.Life).Unix()
	for key, began := range k.ended.began {
		if began < oldest {
			delete(k.ended.began, key)
			continue
		}
		text = append(append(append(strconv.AppendInt(text, began, 10), ' '), key...), '\n')
	}
	if err := statefile.Replace(k.endedFile(), text); err != nil {
		k.o.Logger.Warn("the list of ended sessions cannot be written (--state-dir)", "error", err)
		return
	}
	k.ended.read, k.ended.head = int64(len(text)), bytes.Clone(text[:min(len(text), mostHead)])
	k.ended.lines, k.ended.expired = len(k.ended.began), 0
}

// endAgain puts the ended sessions that this node remembers into the store again, which has lost them.
func (k *Keeper) endAgain(ctx context.Context) error {
	for key, began := range k.ended.all() {
		rest := k.o.Life - time.Since(began)
		if rest <= time.Second {
			continue
		}
		if _, err := k.o.Values.FirstValue(ctx, endedName(key), []byte{'1'}, rest); err != nil {
			return fmt.Errorf("session not noted as ended: %w", err)
		}
	}
	return nil
}

// floorName names the value of the time up to which sessions count as ended.
const floorName = "session-floor"

func endedName(key stream.SessionKey) string { return "session-ended." + string(key) }

// End makes a session that began at a time stay ended. After an error other nodes may revive it.
func (k *Keeper) End(ctx context.Context, key stream.SessionKey, began time.Time) error {
	rest := k.o.Life - time.Since(began)
	if rest <= 0 {
		return nil
	}
	floor := k.ended.add(key, began)
	if k.o.Values == nil {
		k.notes.Lock()
		delete(k.notes.all, key)
		k.notes.Unlock()
		return k.endInDir(key, began, floor)
	}
	_, err := k.o.Values.FirstValue(ctx, endedName(key), []byte{'1'}, max(rest, time.Second))
	if err == nil && !floor.IsZero() {
		err = k.o.Values.SetValue(ctx, floorName, formatTime(floor), k.o.Life+time.Hour)
	}
	if err != nil {
		return fmt.Errorf("session not noted as ended: %w", err)
	}
	return nil
}

// IsEnded reports whether a session that began at a time was ended, or may have been.
func (k *Keeper) IsEnded(ctx context.Context, key stream.SessionKey, began time.Time) (bool, error) {
	if k.o.Values == nil {
		k.readEnded()
	}
	if k.ended.has(key, began) {
		return true, nil
	}
	if k.o.Values == nil {
		return false, nil
	}
	_, err := k.o.Values.Value(ctx, endedName(key))
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, stream.ErrNotFound) {
		return false, fmt.Errorf("session not looked up: %w", err)
	}
	switch floor, err := k.o.Values.Value(ctx, floorName); {
	case errors.Is(err, stream.ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("session not looked up: %w", err)
	default:
		return !began.After(parseTime(floor)), nil
	}
}

package jetstream

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats.go"

	"holdfast/internal/engine/driver"
)

// A Server is a NATS server in this process. Package embedded implements it.
type Server interface {
	nats.InProcessConnProvider
	Reopen() error // ends its streams, and opens them again
	Shutdown()
	WaitForShutdown()
}

// A ServerLog takes the log lines of such a server: it is a Logger of package server of NATS.
type ServerLog interface {
	Noticef(format string, v ...any)
	Warnf(format string, v ...any)
	Fatalf(format string, v ...any)
	Errorf(format string, v ...any)
	Debugf(format string, v ...any)
	Tracef(format string, v ...any)
	Fatal() error // why the server cannot go on, or nil
}

// A Start starts such a server over a directory, and waits until it is ready. A server that it returns with an error has to be shut
// down.
type Start func(dir string, log ServerLog, patience time.Duration) (Server, error)

// embedded is a server in this process, without a port.
type embedded struct {
	Server
	dir  string
	lock *flock.Flock
	log  *serverLog
}

// embed starts a server over a directory, which it locks.
func embed(a address, log *slog.Logger, start Start) (*embedded, error) {
	if err := makeDir(a.dir); err != nil {
		return nil, err
	}
	e := &embedded{dir: a.dir, lock: flock.New(filepath.Join(a.dir, "lock"), flock.SetPermissions(0o600)), log: &serverLog{log: log}}
	switch ok, err := e.lock.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("locking directory %s: %w", a.dir, errors.Unwrap(err))
	case !ok:
		return nil, driver.Errorf(driver.ErrInUse, "directory %s is in use by another process", a.dir)
	}
	err := e.start(start)
	if err != nil {
		_ = e.close()
		return nil, fmt.Errorf("starting in %s: %w", a.dir, err)
	}
	return e, nil
}

// makeDir makes a directory if there is none, and returns an error if it cannot be used.
func makeDir(dir string) error {
	var made []string // directories with names that are not on the disk
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, at)
	}
	err := os.MkdirAll(dir, 0o700)
	var info fs.FileInfo
	if err == nil {
		info, err = os.Stat(dir)
	}
	switch {
	case errors.Is(err, syscall.ENOTDIR), err == nil && !info.IsDir():
		return driver.Errorf(driver.ErrURL, "%s is not a directory", dir)
	case errors.Is(err, syscall.ENOSPC):
		return diskFull(fmt.Sprintf("making directory %s: the disk is full", dir))
	case err != nil:
		return fmt.Errorf("making directory: %w", err)
	}
	for _, at := range made {
		if err := syncDir(filepath.Dir(at)); err != nil {
			return fmt.Errorf("making directory %s: %w", at, err)
		}
	}
	return nil
}

func (e *embedded) start(start Start) error {
	if free, ok := freeDisk(e.dir); ok && free < leastMax {
		return diskFull(fmt.Sprintf("the disk is full: %d bytes are free, and %d are needed at least", free, leastMax))
	}
	is, err := start(e.dir, e.log, opening)
	if is != nil {
		e.Server = is
	}
	return err
}

// stream returns the directory of a stream.
func (e *embedded) stream(name string) string {
	return filepath.Join(e.dir, "jetstream", "$G", "streams", name)
}

// holds reports whether the directory has files of a stream, intact or not.
func (e *embedded) holds(name string) bool {
	_, err := os.Stat(e.stream(name))
	return err == nil
}

// sync brings all files of the server to the disk, and returns a syncer for later
// writes.
func (e *embedded) sync(most time.Duration, streams ...string) (*syncer, error) {
	if err := syncTree(e.dir); err != nil {
		return nil, fmt.Errorf("bringing %s to the disk: %w", e.dir, err)
	}
	var dirs []string
	for _, name := range streams {
		dirs = append(dirs, filepath.Join(e.stream(name), "msgs"))
	}
	return newSyncer(most, dirs, e.log.log), nil
}

// close ends the server, which writes an index that spares the next one reading all
// files.
func (e *embedded) close() error {
	var err error
	if e.Server != nil {
		e.Shutdown()
		done := make(chan struct{})
		go func() {
			e.WaitForShutdown()
			close(done)
		}()
		select {
		case <-done:
			err = syncTree(e.dir)
		case <-time.After(closing):
			err = fmt.Errorf("the server in this process does not end within %v", closing)
		}
	}
	return errors.Join(err, e.lock.Unlock())
}

// serverLog hands the log lines of a server to our logger, most of them as debug lines: they
// are for operators of servers, and not for those of a program that has a server inside.
type serverLog struct {
	log     *slog.Logger
	fatal   atomic.Pointer[string]
	noSpace atomic.Pointer[string] // the first line that said that the disk has no room; nil: no line did

	reopening atomic.Bool
}

func (s *serverLog) Noticef(format string, v ...any) { s.log.Debug(line(format, v)) }
func (s *serverLog) Debugf(format string, v ...any)  { s.log.Debug(line(format, v)) }
func (s *serverLog) Tracef(format string, v ...any)  { s.log.Debug(line(format, v)) }

// Errorf takes an error. The [healer] logs that the disk is full, once.
func (s *serverLog) Errorf(format string, v ...any) {
	text := line(format, v)
	if saysNoSpace(text) {
		s.noSpace.CompareAndSwap(nil, &text)
		s.log.Debug(text)
		return
	}
	if s.reopening.Load() {
		s.log.Debug(text)
		return
	}
	s.log.Warn(text)
}

// Warnf takes a warning. After a SIGKILL the file store warns of the repairs that
// it makes, which are expected.
func (s *serverLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Filestore ") && (strings.Contains(format, "outdated") || strings.Contains(format, "Recovering")) {
		s.log.Debug(line(format, v))
		return
	}
	s.Errorf(format, v...)
}

// Fatal implements [ServerLog].
func (s *serverLog) Fatal() error {
	if text := s.fatal.Load(); text != nil {
		return errors.New(*text)
	}
	return nil
}

func (s *serverLog) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	s.fatal.Store(&text)
}

func line(format string, v []any) string { return "JetStream: " + fmt.Sprintf(format, v...) }

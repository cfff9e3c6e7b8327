package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"holdfast/stream"
)

// A healer opens the streams of the server in this process again after the disk was full. A stream
// that could not write a message takes no more messages while it is open, and the server may close
// its streams.
//
// Acknowledged messages that are not yet on the disk may be lost then, as in a loss of power: those
// of the last [defaultSync] at most, or of the time that sync= gives.
type healer struct {
	log *Log

	mu      sync.Mutex
	full    time.Time     // since when the disk is full or nearly full; zero: it is neither
	next    time.Time     // when to try next
	wait    time.Duration // after a try that failed
	working bool
	work    sync.WaitGroup
	ctx     context.Context
	stop    context.CancelFunc
}

// The time between two tries. Each try reads the streams' files.
const (
	leastWait = time.Second
	mostWait  = 8 * time.Second
)

// roomAgain is how many bytes must be free until a disk no longer counts as nearly full.
const roomAgain = spareDisk + spareDisk/4

func newHealer(l *Log) *healer {
	h := &healer{log: l}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// close ends a try and waits for its goroutine.
func (h *healer) close() {
	h.stop()
	h.mu.Lock()
	h.working = true // no try begins
	h.mu.Unlock()
	h.work.Wait()
}

// look reports whether the disk is full, or nearly, and returns an error if the server can't write. If there is
// room again it begins a try. Ping calls it, each second or so.
func (h *healer) look() (full bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server, log := h.log.server, h.log.log
	free, known := freeDisk(server.dir)
	roomy := !known || free >= spareDisk
	if h.working {
		return true, errReopening
	}
	why := h.failure()
	switch {
	case h.full.IsZero() && roomy && why == nil:
		return false, nil
	case h.full.IsZero():
		h.full, h.wait, h.next = time.Now(), leastWait, time.Now()
		log.Error("the disk of the store is full: new calls are refused, and those that run wait until there is room", "dir", server.dir, "free", free, "needed", spareDisk)
	}
	switch {
	case why == nil && known && free < roomAgain:
		return true, nil
	case why == nil:
		h.over()
		return false, nil
	case roomy && !time.Now().Before(h.next):
		h.working = true
		h.work.Go(h.try)
	}
	return true, why
}

// errReopening is the error of [Log.Ping] until the streams are open again.
var errReopening error = diskFull("the disk of the store was full: the store is being opened again")

// A diskFull says that the disk of the store is full. It is a [stream.ErrFull].
type diskFull string

func (e diskFull) Error() string { return string(e) }

// Is reports whether target is [stream.ErrFull], for errors.Is.
func (diskFull) Is(target error) bool { return target == stream.ErrFull }

// failure returns why the server can't write, or nil.
func (h *healer) failure() error {
	if line := h.log.server.log.noSpace.Load(); line != nil {
		return diskFull("the disk of the store is full: " + *line)
	}
	if err := h.log.disk.failed(); isNoSpace(err) {
		return diskFull("the disk of the store is full: " + err.Error())
	}
	return nil
}

// over logs that there is room again. mu is held.
func (h *healer) over() {
	h.log.log.Info("the disk of the store has room again: the store goes on", "dir", h.log.server.dir, "full_for", time.Since(h.full).Round(time.Second).Seconds())
	h.full = time.Time{}
}

func (h *healer) try() {
	err := h.reopen()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.working = h.ctx.Err() != nil
	if err != nil {
		h.log.log.Debug("the store can't be opened again yet", "dir", h.log.server.dir, "error", err)
		h.next = time.Now().Add(h.wait)
		h.wait = min(2*h.wait, mostWait)
		return
	}
	h.over()
}

// reopen opens the streams again.
func (h *healer) reopen() error {
	l := h.log
	l.server.log.noSpace.Store(nil)
	l.server.log.reopening.Store(true) // its lines about files that were not written to their end are expected
	defer l.server.log.reopening.Store(false)
	if err := l.server.Reopen(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(h.ctx, opening)
	defer cancel()
	if err := l.led(ctx); err != nil {
		return err
	}
	if err := syncTree(l.server.dir); err != nil {
		return fmt.Errorf("bringing %s to the disk: %w", l.server.dir, err)
	}
	l.disk.restart()
	return l.write(ctx)
}

// isNoSpace reports whether err says that the disk has no room.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// saysNoSpace reports whether a log line of the server says that the disk has no room. There is no
// other sign: the server does not answer for a message that it cannot store.
func saysNoSpace(text string) bool {
	for _, no := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(text, no.Error()) {
			return true
		}
	}
	return strings.Contains(text, "JetStream out of ")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/engine"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// An engine may start at the same time.
const (
	storeWait  = 10 * time.Second       // how long to wait for it
	storeTry   = 3 * time.Second        // how long one try takes at most
	storePause = 500 * time.Millisecond // between tries
)

// openStore opens the store that --store names. It waits for an engine that is starting.
func openStore(ctx context.Context, url string, o engine.Options) (stream.Store, error) {
	logged := "" // the last error that was logged: the same one is not repeated
	for end := time.Now().Add(storeWait); ; {
		begun := time.Now()
		try, stop := context.WithTimeout(ctx, min(storeTry, time.Until(end)))
		store, err := engine.Open(try, url, o)
		stop()
		switch {
		case err == nil:
			return store, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case strings.EqualFold(url, "file:"):
			return nil, usageError{err}
		case strings.HasPrefix(strings.ToLower(url), "file:"):
			return nil, err
		case !unreachable(err) && time.Since(begun) < storePause:
			return nil, usageError{err}
		case time.Until(end) < storePause:
			return nil, fmt.Errorf("%w: is the engine running, and is the address in --store right?", err)
		}
		if logged != err.Error() {
			slog.Warn("cannot reach the store, trying again", "for", time.Until(end).Round(time.Second), "error", err)
			logged = err.Error()
		}
		t := time.NewTimer(storePause)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// countFor is how long the line about the start waits for the number of sessions.
const countFor = time.Second

// A sessionCount is how many sessions a store had when it was opened. Nil: those of a store in memory.
type sessionCount struct {
	n    atomic.Int64
	err  error // of the count; only once done is closed
	done chan struct{}
	stop context.CancelFunc
	work sync.WaitGroup
}

// countSessions begins to count the sessions of a store, also those of other nodes. close must be called.
func countSessions(ctx context.Context, store stream.Store) *sessionCount {
	sharing, ok := store.(shared.Store)
	if !ok {
		return nil
	}
	c := &sessionCount{done: make(chan struct{})}
	ctx, c.stop = context.WithTimeout(ctx, countFor)
	c.work.Go(func() {
		defer close(c.done)
		c.err = sharing.Sessions(ctx, func(shared.Session) bool {
			c.n.Add(1)
			return ctx.Err() == nil
		})
		if c.err == nil {
			c.err = ctx.Err()
		}
	})
	return c
}

// tell calls log with what is known of the count, when all is known or the time for that is over. It does not wait, but
// for close.
func (c *sessionCount) tell(log func(found ...any)) {
	if c == nil {
		log()
		return
	}
	c.work.Go(func() {
		<-c.done
		var found any = c.n.Load()
		if c.err != nil { // there are so many, or the store is slow
			found = fmt.Sprintf("%d or more", found)
		}
		log("sessions", found)
	})
}

// close ends the count.
func (c *sessionCount) close() {
	if c != nil {
		c.stop()
		c.work.Wait()
	}
}

// unreachable reports whether an error means that an engine does not answer, and not that its
// address is wrong.
func unreachable(err error) bool {
	var file *fs.PathError // a file of credentials
	if errors.As(err, &file) {
		return false
	}
	var network net.Error
	return errors.Is(err, stream.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network)
}

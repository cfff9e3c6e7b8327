package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/engine"
	_ "holdfast/engine/file"
	_ "holdfast/engine/nats"
	_ "holdfast/engine/redis"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// An engine may start at the same time.
const (
	storeWait  = 10 * time.Second       // how long to wait for it
	storeTry   = 3 * time.Second        // how long one try takes at most
	storePause = 500 * time.Millisecond // between tries
)

// openStore opens the store that --store names. It waits for an engine that is starting. A store of files is in this
// process: it first reads its files, which takes as long as the disk does, and bounds the rest itself.
func openStore(ctx context.Context, url string, o engine.Options) (stream.Store, error) {
	files := strings.HasPrefix(strings.ToLower(url), "file:")
	waits := false // that is logged once
	for end := time.Now().Add(storeWait); ; {
		begun := time.Now()
		try, stop := ctx, context.CancelFunc(func() {})
		if !files {
			try, stop = context.WithTimeout(ctx, min(storeTry, time.Until(end)))
		}
		store, err := engine.Open(try, url, o)
		stop()
		switch {
		case err == nil:
			return store, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case files && !strings.Contains(err.Error(), ": want file:DIR"):
			return nil, wrongStore(err, url, false)
		case !unreachable(err) && time.Since(begun) < storePause:
			return nil, usageError{wrongStore(err, url, false)}
		case time.Until(end) < storePause:
			return nil, wrongStore(err, url, true)
		}
		if !waits {
			slog.Warn("cannot reach the store, trying again", "for", time.Until(end).Round(time.Second), "error", err)
			waits = true
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

// A sessionCount is how many sessions a store had when it was opened. It is nil for a store in memory.
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

// tell calls log with the count, as far as it is known, when the count has ended or its time is over. It does not wait
// for that; close does.
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

// remedies are advice for a store that cannot be opened, by a part of the error's text.
var remedies = []struct{ text, remedy string }{
	{"NOAUTH", "it wants a password: write :PASSWORD@ before the host in the URL"},
	{"WRONGPASS", "are the user and the password in the URL right?"},
	{"NOPERM", "give that user the rights that docs/stores.md lists"},
	{"do not take this user and password", "are the ones in the URL right?"},
	{"DB index is out of range", "choose a smaller number of a database, or none"},
	{"can't parse", "is that the address of Redis or Valkey?"},
	{"invalid reply", "is that the address of Redis or Valkey?"},
	{"is in use by another process", "stop that one, or choose another directory"},
	{"is not a directory", "choose a directory"},
	{"the disk is full", "make room, or choose a directory on another disk"},
	{"no such host", "is the name in the URL right?"},
	{"certificate", "name the file of its authority with ?ca=FILE in the URL"},
	{"unexpected option", "docs/stores.md lists what may follow the ? of the URL"},
}

// wrongStore returns the error for a store that cannot be opened, with advice. late says that holdfast has waited for it.
func wrongStore(err error, url string, late bool) error {
	return advised{err, "--" + strings.TrimSuffix(err.Error(), ".") + storeRemedy(err, url, late)}
}

// storeRemedy returns the advice that follows the error of a store.
func storeRemedy(err error, url string, late bool) string {
	scheme, _, ok := strings.Cut(url, ":")
	switch scheme = strings.ToLower(scheme); {
	case strings.HasPrefix(url, "/") || strings.HasPrefix(url, "."):
		return fmt.Sprintf(": did you mean file:%s?", url)
	case errors.Is(err, engine.ErrScheme):
		engines := []string{"memory", "file", "nats", "redis"}
		near := nearest(scheme, engines)
		if near == "" && strings.HasPrefix(scheme, "mem") {
			near = "memory"
		}
		if near == "" && !ok && len(scheme) > 1 {
			for _, e := range engines {
				if strings.HasPrefix(e, scheme) {
					near = e
				}
			}
		}
		if near != "" {
			return fmt.Sprintf(": did you mean %s:%s?", near, map[string]string{"file": "DIR", "nats": "//HOST", "redis": "//HOST"}[near])
		}
		return ""
	case scheme == "file" && errors.Is(err, engine.ErrPermission):
		return fmt.Sprintf(": let the user that holdfast runs as (uid %d) write there, or choose another directory", os.Getuid())
	}
	for _, r := range remedies {
		if strings.Contains(err.Error(), r.text) {
			return ": " + r.remedy
		}
	}
	switch {
	case scheme == "file" && errors.Is(err, fs.ErrNotExist):
		return ": choose another directory"
	case scheme != "file" && (late || unreachable(err)):
		secure := ""
		if scheme == "rediss" || scheme == "tls" {
			secure = ", does it speak TLS"
		}
		return fmt.Sprintf(": is the engine running%s, and is its address in the URL right?", secure)
	}
	return ""
}

// unreachable reports whether an error means that an engine does not answer, and not that its
// address is wrong.
func unreachable(err error) bool { return errors.Is(err, engine.ErrUnreachable) }

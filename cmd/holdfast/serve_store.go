package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"time"

	"holdfast/engine"
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

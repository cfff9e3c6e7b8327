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

// An engine that is not there yet is waited for so long, and asked so often.
const (
	storeWait  = 10 * time.Second
	storeTry   = 3 * time.Second
	storePause = 500 * time.Millisecond
)

// openStore opens the store that --store names. An engine that starts at the same
// time is waited for.
func openStore(ctx context.Context, url string, o engine.Options) (stream.Store, error) {
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
			return nil, fmt.Errorf("%w: is the engine running, and is its address the one in --store?", err)
		}
		slog.Warn("the store can't be reached, trying again", "error", err)
		t := time.NewTimer(storePause)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// unreachable says whether an error is that of an engine which does not answer, and
// not that of an address which nobody can mean.
func unreachable(err error) bool {
	var file *fs.PathError // of credentials, which is not the network's
	if errors.As(err, &file) {
		return false
	}
	var network net.Error
	return errors.Is(err, stream.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network)
}

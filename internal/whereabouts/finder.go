package whereabouts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/handover"
	"holdfast/stream"
)

// storeTimeout is as in package session.
const storeTimeout = 5 * time.Second

// Options are those of a [Finder], with the functions of its node.
type Options struct {
	Store    shared.Store // nil: there is nothing to be found
	Logger   *slog.Logger
	NotFound error // for sessions without a record
	Work     *handover.Work

	// IsHere reports whether a session is here, or about to end, and IsKnown whether it is here, or about to end or to come.
	IsHere, IsKnown func(key stream.SessionKey) bool
	// TakeOver takes over a session for a sweep.
	TakeOver func(ctx context.Context, at *Record)
}

// A Finder finds sessions that are not on this node. Its methods may be called concurrently, except Sweep.
type Finder struct {
	Options

	homes   func() Homes  // or nil
	looking chan struct{} // held by the goroutine that looks through all records
	pause   time.Time     // no goroutine looks again before; guarded by looking
	shed    atomic.Uint64 // see Shed
	last    atomic.Pointer[orphans]

	wanted atomic.Int32 // take-overs that clients wait for
	swept  time.Time    // when a sweep last looked at all sessions; only Sweep uses it
}

// NewFinder returns a finder.
func NewFinder(opts Options) *Finder {
	return &Finder{Options: opts, looking: make(chan struct{}, 1)}
}

// Want counts a take-over that a client waits for, until done is called: a sweep gives way to it.
func (f *Finder) Want() (done func()) {
	f.wanted.Add(1)
	return func() { f.wanted.Add(-1) }
}

// Lookup reads the record of a session. The error is [Options.NotFound], or that of the store.
func (f *Finder) Lookup(ctx context.Context, key stream.SessionKey) (*Record, error) {
	ctx, stop := context.WithTimeout(ctx, storeTimeout)
	defer stop()
	was, err := f.Store.Lookup(ctx, key)
	if errors.Is(err, stream.ErrNotFound) {
		return nil, f.NotFound
	}
	if err != nil {
		return nil, fmt.Errorf("session not looked up: %w", err)
	}
	at, err := Parse(was)
	if err != nil {
		f.Logger.Error("session not found", "error", err)
		return nil, f.NotFound
	}
	if at.Owner == f.Store.Node() {
		at.Owner = "" // it was lost here, when the store could not be reached
	}
	return at, nil
}

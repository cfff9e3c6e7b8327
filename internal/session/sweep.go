package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

const (
	// sweepers is how many sessions a sweep takes over at a time, and takers how many
	// are taken over in all: those that clients wait for need not wait for a sweep.
	// More at a time would not be faster, only all as late as the last.
	sweepers = 16
	takers   = 32

	// sweepAtOnce is how many a sweep takes over as fast as it can. Where there are
	// more, the engine has other work too: one each sweepOften then.
	sweepAtOnce = 2000
	sweepOften  = 5 * time.Millisecond

	// giveWayFor is how long a sweep waits at the most for take-overs that clients wait for:
	// on all nodes they begin at the same time, and a sweep would take sessions away from
	// those nodes to which their clients have come.
	giveWayFor = time.Second
)

// Sweep takes over those sessions, of those that mine says, that have calls which
// have not ended and nobody to look after them: their owner is gone, as gone says
// of its name, or gave them up. It begins while the store still lists sessions. The
// error is that of the store, ctx's, or [ErrClosing].
func (m *Manager) Sweep(ctx context.Context, gone func(node string) bool, mine func(stream.SessionKey) bool) error {
	if m.shared == nil {
		return nil
	}
	m.waitFor(giveWayFor, func() bool { return m.wanted.Load() == 0 || ctx.Err() != nil })
	sw := &sweep{m: m, more: make(chan struct{}, 1)}
	var work sync.WaitGroup
	var swept error
	work.Go(func() { swept = sw.adopt(ctx) })
	left := map[string]bool{"": true}
	err := m.shared.Sessions(ctx, func(was shared.Session) bool {
		if was.Owner == m.shared.Node() {
			if !m.isKnown(was.Key) {
				sw.add(was)
			}
			return true
		}
		if was.Owner == "" && !was.Open || !mine(was.Key) {
			return true
		}
		is, known := left[was.Owner]
		if !known {
			is = gone(was.Owner)
			left[was.Owner] = is
		}
		if is {
			sw.add(was)
		}
		return true
	})
	sw.end()
	work.Wait()
	if err != nil {
		return fmt.Errorf("sessions not swept: %w", err)
	}
	return swept
}

// Alone reports whether no other node can ever have had a session of the store since this
// one began: once it is swept nothing is left that nobody looks after, but for what
// this node has lost itself.
func (m *Manager) Alone() bool {
	store, ok := m.store.(interface{ Alone() bool })
	return ok && store.Alone()
}

// A sweep is sessions that were found, for those who take them over.
type sweep struct {
	m    *Manager
	more chan struct{} // told that there are more, or no more to come

	mu    sync.Mutex
	found []shared.Session
	ended bool
}

// add does not wait: whoever lists sessions holds the engine up.
func (sw *sweep) add(was shared.Session) {
	sw.mu.Lock()
	sw.found = append(sw.found, was)
	sw.mu.Unlock()
	Wake(sw.more)
}

func (sw *sweep) end() {
	sw.mu.Lock()
	sw.ended = true
	sw.mu.Unlock()
	Wake(sw.more)
}

// next returns what was found since, and whether that is all.
func (sw *sweep) next() (found []shared.Session, ended bool) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	found, sw.found = sw.found, nil
	return found, sw.ended
}

// adopt takes over what is found, until the end.
func (sw *sweep) adopt(ctx context.Context) error {
	m := sw.m
	pace := time.NewTicker(sweepOften)
	defer pace.Stop()
	var group sync.WaitGroup
	defer group.Wait()
	places := make(chan struct{}, sweepers)
	count := 0
	for {
		found, ended := sw.next()
		for _, was := range found {
			at, err := parseAbout(was)
			if err != nil {
				m.logger.Error("session not swept", "error", err)
				continue
			}
			var paced <-chan time.Time
			if count++; count > sweepAtOnce {
				paced = pace.C
			}
			if err := m.wait(ctx, places, paced); err != nil {
				return err
			}
			group.Go(func() {
				defer func() { <-places }()
				m.adopt(ctx, at)
			})
		}
		if ended {
			return nil
		}
		select {
		case <-sw.more:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.quit:
			return ErrClosing
		}
	}
}

// wait waits for a place, and for its time to come if paced is not nil.
func (m *Manager) wait(ctx context.Context, places chan<- struct{}, paced <-chan time.Time) error {
	if paced != nil {
		select {
		case <-paced:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.quit:
			return ErrClosing
		}
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-m.quit:
		return ErrClosing
	}
}

// adopt takes over a session for a sweep.
func (m *Manager) adopt(ctx context.Context, at *Remote) {
	_, err := m.takeOverOnce(ctx, at)
	switch {
	case err == nil, errors.Is(err, stream.ErrConflict), errors.Is(err, ErrNotFound), errors.Is(err, ErrClosing):
	default:
		m.logger.Warn("session not swept", "session", at.Key, "error", err)
	}
}

// isKnown reports whether a session is here, or about to be, or about to end.
func (m *Manager) isKnown(key stream.SessionKey) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, ending := m.ending[key]
	return m.sessions[key] != nil || m.taking[key] != nil || ending
}

package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/stream"
)

const (
	// sweepOften bounds how many sessions a sweep takes over: one each.
	sweepOften = 5 * time.Millisecond

	// sweepers is how many it takes over at a time.
	sweepers = 4
)

// Sweep takes over those sessions, of those that mine says, that have calls which
// have not ended and nobody to look after them: their owner is gone, as gone says
// of its name, or gave them up. It takes its time. The error is that of the store,
// ctx's, or [ErrClosing].
func (m *Manager) Sweep(ctx context.Context, gone func(node string) bool, mine func(stream.SessionKey) bool) error {
	if m.shared == nil {
		return nil
	}
	var all []stream.Session
	err := m.shared.Sessions(ctx, func(was stream.Session) bool {
		if was.Owner == m.shared.Node() || (was.Owner != "" || was.Open) && mine(was.Key) {
			all = append(all, was)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("sessions not swept: %w", err)
	}
	left := map[string]bool{"": true}
	pace := time.NewTicker(sweepOften)
	defer pace.Stop()
	var group sync.WaitGroup
	defer group.Wait()
	places := make(chan struct{}, sweepers)
	for _, was := range all {
		if was.Owner == m.shared.Node() {
			if m.has(was.Key) {
				continue
			}
		} else if _, known := left[was.Owner]; !known {
			left[was.Owner] = gone(was.Owner)
		}
		if was.Owner != m.shared.Node() && !left[was.Owner] {
			continue
		}
		at, err := away(was)
		if err != nil {
			m.logger.Error("session not swept", "error", err)
			continue
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.quit:
			return ErrClosing
		}
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			m.adopt(ctx, at)
		})
	}
	return nil
}

// adopt takes over a session for a sweep.
func (m *Manager) adopt(ctx context.Context, at *Away) {
	_, err := m.TakeOver(ctx, at)
	switch {
	case err == nil, errors.Is(err, stream.ErrConflict), errors.Is(err, ErrNotFound), errors.Is(err, ErrClosing):
	default:
		m.logger.Warn("session not swept", "session", at.Key, "error", err)
	}
}

// has says whether a session is here, or about to be, or about to end.
func (m *Manager) has(key stream.SessionKey) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, ending := m.ending[key]
	return m.sessions[key] != nil || m.taking[key] != nil || ending
}

package durable

import (
	"context"
	"sync"

	"holdfast/stream"
)

// This file has the engine drop the frames of deleted sessions. Engines drop them anyway after their retention, but most sessions
// that are deleted have fallen asleep: very many may do so within that time, and their frames must not pile up.

const (
	diggers    = 4       // goroutines that drop the frames of sessions
	mostGraves = 1 << 18 // most sessions that wait for them; the frames of others expire
)

// A grave has the frames of a deleted session.
type grave struct {
	key    stream.SessionKey
	before uint64 // a place after the last of them: a later session of the key may have frames by now
}

// graves are the sessions with frames that the engine has yet to drop.
type graves struct {
	mu    sync.Mutex
	all   []grave
	added chan struct{} // has an item while all may have graves
}

// add adds a grave. It does not wait.
func (g *graves) add(one grave) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.all) < mostGraves {
		g.all = append(g.all, one)
		g.wake()
	}
}

// take removes a grave and returns it, the newest first.
func (g *graves) take() (one grave, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := len(g.all) - 1
	if last < 0 {
		g.all = nil // there may have been many
		return grave{}, false
	}
	one, g.all = g.all[last], g.all[:last]
	if last > 0 {
		g.wake() // another digger
	}
	return one, true
}

// wake has a digger look for a grave. g.mu is held.
func (g *graves) wake() {
	select {
	case g.added <- struct{}{}:
	default:
	}
}

// dig has the engine drop the frames of deleted sessions.
func (st *Store) dig() {
	for {
		select {
		case <-st.ctx.Done():
			return
		case <-st.graves.added:
		}
		for one, ok := st.graves.take(); ok && st.ctx.Err() == nil; one, ok = st.graves.take() {
			err := st.ask(st.ctx, func(ctx context.Context) error { return st.log.Trim(ctx, framesKey(one.key), one.before) })
			if err != nil && st.ctx.Err() == nil {
				st.o.Logger.Log(st.ctx, levelOf(err), "frames of a deleted session are kept", "session", one.key, "error", err)
			}
		}
	}
}

package session

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"holdfast/stream"
)

// What follows logs which sessions came to this node from others, and which have left it: many at a time, as a node
// that ends has many. One line counts those of one kind; what becomes of each session is logged at level Debug.

const (
	// movesQuiet is how long no session of a kind has moved when its line is logged; movesMost is how long
	// that is waited for. movesOften is the time between two lines of a kind.
	movesQuiet = time.Second
	movesMost  = 10 * time.Second
	movesOften = time.Minute
)

// A moveKind is how sessions have moved. Node is the one that had them, or "".
type moveKind struct {
	how  moveHow
	node string
}

type moveHow uint8

const (
	cameReleased moveHow = iota // a node had given them up in good order
	cameLost                    // a node was lost
	cameBack                    // this node had them before, or its process before this one
	cameRevived                 // they had ended, and began again
	cameAwake                   // they were asleep
	wentAsleep                  // nothing happened in them, and nothing is lost
	wentTaken                   // another node took them, as this one seemed to be gone
	wentGone                    // the store has nothing of them any more
	wentAway                    // the store did not answer
	wentReleased                // this node ends, and has given them up in good order
)

// came notes that a session has come here whose record named an owner. While the store is away, and when it is back, all
// are taken over that their owners had to give up: the store's own lines count them.
func (m *Manager) came(owner string, found *restored) {
	n := moved{sessions: 1, again: len(found.retry), unknown: len(found.lost)}
	is := moveKind{how: cameLost, node: owner}
	switch {
	case m.opts.Outage.Covers():
		m.opts.Outage.TookOver(n.again, n.unknown)
		return
	case owner == "":
		is = moveKind{how: cameReleased}
	case owner == m.shared.Node():
		is = moveKind{how: cameBack}
	}
	m.moves.add(is, n)
}

// went notes that this node has lost the session, because of an error of the store; nil: another node has it. While the
// store is away, and when it is back without what it kept, the store's own lines count those.
func (s *Session) went(err error) {
	s.m.logger.Debug("session lost", "session", s.Name(), "error", err)
	if s.m.opts.Outage.Covers() {
		s.m.opts.Outage.LostSession()
		return
	}
	how := wentTaken
	switch {
	case errors.Is(err, stream.ErrNotFound):
		how = wentGone
	case err != nil && unavailable(err):
		how = wentAway
	}
	s.m.moves.add(moveKind{how: how}, moved{sessions: 1, calls: int(s.use.calls.Load())})
}

// A moved is how many sessions have moved, and what became of their calls in flight.
type moved struct{ sessions, again, unknown, calls int }

// A moveCount counts those of one kind.
type moveCount struct {
	moved
	first, last time.Time
	next        time.Time // before it no line is logged
	timer       *time.Timer
}

// moves are the counts of a node. Its methods may be called concurrently.
type moves struct {
	logger *slog.Logger

	mu    sync.Mutex
	kinds map[moveKind]*moveCount
	ended bool // each line is logged at once
}

// mostMoveKinds is how many kinds are remembered that have nothing to tell.
const mostMoveKinds = 100

// add counts sessions.
func (v *moves) add(is moveKind, n moved) {
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.kinds[is]
	if c == nil {
		if len(v.kinds) >= mostMoveKinds {
			for old, of := range v.kinds {
				if of.sessions == 0 {
					delete(v.kinds, old)
				}
			}
		}
		c = &moveCount{}
		if v.kinds == nil {
			v.kinds = make(map[moveKind]*moveCount)
		}
		v.kinds[is] = c
	}
	if c.sessions == 0 {
		c.first = now
	}
	c.last = now
	c.sessions, c.again, c.unknown, c.calls = c.sessions+n.sessions, c.again+n.again, c.unknown+n.unknown, c.calls+n.calls
	switch {
	case v.ended:
		v.tell(is, c, now)
	case c.timer == nil:
		c.timer = time.AfterFunc(movesQuiet, func() { v.due(is, c) })
	}
}

// due logs a line, or waits on.
func (v *moves) due(is moveKind, c *moveCount) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.timer == nil || v.ended {
		return
	}
	now := time.Now()
	at := c.last.Add(movesQuiet)
	if most := c.first.Add(movesMost); at.After(most) {
		at = most
	}
	if at.Before(c.next) {
		at = c.next
	}
	if wait := at.Sub(now); wait > 0 {
		c.timer.Reset(wait)
		return
	}
	v.tell(is, c, now)
}

// tell logs a line. v.mu is held.
func (v *moves) tell(is moveKind, c *moveCount, now time.Time) {
	n := c.moved
	c.moved, c.timer, c.next = moved{}, nil, now.Add(movesOften)
	if n.sessions == 0 {
		return
	}
	came := []any{"sessions", n.sessions, "calls_again", n.again, "outcome_unknown", n.unknown}
	went := []any{"sessions", n.sessions, "calls", n.calls}
	level := slog.LevelInfo
	if n.unknown > 0 {
		level = slog.LevelWarn
	}
	switch is.how {
	case cameReleased:
		v.logger.Log(context.Background(), level, "took over sessions that a node gave up as it ended", came...)
	case cameLost:
		v.logger.Warn("took over the sessions of a node that was lost", append([]any{"node", is.node}, came...)...)
	case cameBack:
		v.logger.Log(context.Background(), level, "sessions that this node had before go on here", came...)
	case cameRevived:
		v.logger.Info("revived sessions whose clients came back", "sessions", n.sessions)
	case cameAwake:
		v.logger.Info("sessions awake: their clients came back", "sessions", n.sessions)
	case wentAsleep:
		v.logger.Info("sessions asleep: nothing happened in them", "sessions", n.sessions)
	case wentTaken:
		v.logger.Warn("other nodes have taken sessions over, as this node did not answer", went...)
	case wentGone:
		v.logger.Warn("sessions are lost: the store has nothing of them any more", went...)
	case wentAway:
		v.logger.Warn("sessions are given up: the store did not answer in time", went...)
	case wentReleased:
		v.logger.Info("gave up sessions for other nodes, or the next process, to take over", "sessions", n.sessions)
	}
}

// end logs what has been counted, and from now on each line at once.
func (v *moves) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = true
	for is, c := range v.kinds {
		if c.timer != nil {
			c.timer.Stop()
		}
		v.tell(is, c, time.Now())
	}
}

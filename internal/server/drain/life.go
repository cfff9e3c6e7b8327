// Package drain has the stages in the life of a node: it takes sessions on, unless it is a door; it is drained; and it leaves.
package drain

import (
	"math/rand/v2"
	"sync"
	"time"

	"holdfast/internal/handover"
	"holdfast/internal/placement"
	"holdfast/internal/session"
)

// A Life is the life of one node. Its methods may be called concurrently.
type Life struct {
	Sessions *handover.Departure
	Nodes    *placement.Nodes // nil if this node is alone. Set before the first request
	Door     bool             // the node owns no sessions
	Retry    time.Duration    // how long clients are told to wait before they come back
	Spread   time.Duration    // the most over which a drain disconnects clients

	drainOnce sync.Once
	draining  chan struct{}
	leaveOnce sync.Once
	leaving   chan struct{}
	spread    time.Duration // over which a drain disconnects clients; set before draining is closed
}

// Begin begins the life, after its fields were set.
func (l *Life) Begin() { l.draining, l.leaving = make(chan struct{}), make(chan struct{}) }

// mostDelay bounds the extra retry time for a client after its session has left.
const mostDelay = 5 * time.Second

// Leaving returns a channel that is closed when the node takes no more requests, as it is about to end: if there are other
// nodes, shortly before the time of [Life.Drain] is over, or when no session is left; if there are none, when calls in flight
// have ended or that time is over. From then on requests are refused with 503, which some clients take for the end of their
// session, so the listener is better closed. Where the store is not shared, the channel stays open.
func (l *Life) Leaving() <-chan struct{} { return l.leaving }

func (l *Life) leave() { l.leaveOnce.Do(func() { close(l.leaving) }) }

// Draining returns a channel that is closed when the node takes on no new sessions.
func (l *Life) Draining() <-chan struct{} { return l.draining }

// IsAlone reports whether there is no other node to take sessions over.
func (l *Life) IsAlone() bool { return l.Nodes == nil || l.Nodes.Alone() }

// IsDraining reports whether the node takes on no new sessions.
func (l *Life) IsDraining() bool { return isClosed(l.draining) }

// IsLeaving reports whether the node takes no more requests, not even to forward them.
func (l *Life) IsLeaving() bool { return isClosed(l.leaving) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Departure returns the time to disconnect a client that waits for no call; zero: it may stay, until again is closed. While no other node is
// there to take its session over, it stays until requests in flight have ended: once it has left it might find no node. listens says that it has
// such a request itself, for messages alone.
func (l *Life) Departure(now time.Time, listens bool) (at time.Time, again <-chan struct{}) {
	switch {
	case !l.IsDraining():
		return at, l.draining
	case !listens && l.Sessions.Shared && l.IsAlone() && !l.IsLeaving():
		return at, l.leaving
	}
	return now.Add(rand.N(l.spread + 1)), nil
}

// Delay returns a random time that a client waits longer before it comes back for a session that has left a drained node, so
// that clients come one after the other.
func (l *Life) Delay() time.Duration { return rand.N(min(l.spread, mostDelay) + 1) }

// TakesNothing reports whether no session may begin on this node or come here.
func (l *Life) TakesNothing() bool { return l.Door || l.IsDraining() }

// NotHere returns the error for a request that would begin a session on this node, which takes none.
func (l *Life) NotHere() error {
	if l.Door {
		return placement.NoWorker{}
	}
	return session.ErrClosing
}

package placement

import (
	"time"

	"holdfast/internal/session"
)

// NoWorker says that a door knows of no node that owns sessions. [errors.Is] takes it for
// [session.ErrClosing]: the client is told to try again later, maybe at another node.
type NoWorker struct{}

func (NoWorker) Error() string { return "there is no worker node to serve this" }

// Is reports whether target is session.ErrClosing.
func (NoWorker) Is(target error) bool { return target == session.ErrClosing }

// Reason returns the reason for observers.
func (NoWorker) Reason() string { return "no_worker" }

// meetFor is how long a door that has just started waits to hear of a worker.
const meetFor = 2 * time.Second

// nobody returns the error of a placement when no other node takes on sessions: errAgain
// while a door may still hear of a worker.
func (n *Nodes) nobody() error {
	switch {
	case n.opts.Door && time.Since(n.since) < meetFor:
		return errAgain
	case n.opts.Door:
		return NoWorker{}
	}
	return session.ErrClosing
}

// isDraining reports whether this node takes on no new sessions.
func (n *Nodes) isDraining() bool { return isClosed(n.opts.Draining) }

// isLeaving reports whether this node takes no more requests, not even to forward them.
func (n *Nodes) isLeaving() bool { return isClosed(n.opts.Leaving) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// takesNothing reports whether no session may begin on this node or come here.
func (n *Nodes) takesNothing() bool { return n.opts.Door || n.isDraining() }

package placement

import (
	"time"

	"holdfast/internal/session"
)

// NoWorker says that a door knows of no node that owns sessions. It is a [session.ErrClosing] to
// those who branch: the client is to try again later, maybe at another node.
type NoWorker struct{}

func (NoWorker) Error() string { return "there is no worker node to serve this" }

// Is reports whether target is what NoWorker is an instance of.
func (NoWorker) Is(target error) bool { return target == session.ErrClosing }

// Reason is what observers are told.
func (NoWorker) Reason() string { return "no_worker" }

// meetFor is how long a door that has just begun waits to hear of a worker.
const meetFor = 2 * time.Second

// nobody returns the error of a placement for which no node is there.
func (n *Nodes) nobody() error {
	switch {
	case n.opts.Door && time.Since(n.since) < meetFor:
		return errAgain
	case n.opts.Door:
		return NoWorker{}
	}
	return session.ErrClosing
}

// isDraining reports whether nothing new is taken on.
func (n *Nodes) isDraining() bool { return isClosed(n.opts.Draining) }

// isLeaving reports whether this node takes no requests any more, not even to forward them.
func (n *Nodes) isLeaving() bool { return isClosed(n.opts.Leaving) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// takesNothing reports whether no session is to begin on this node, or to come here.
func (n *Nodes) takesNothing() bool { return n.opts.Door || n.isDraining() }

package placement

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// Drain tells the other nodes that this one takes on no new sessions.
func (n *Nodes) Drain() { n.node.Drain() }

// Disconnect disconnects the clients of forwarded requests, so that they come back to another
// node: over the time spread the clients that only listen, then WebSockets, and when ctx is done
// all others. A client that has no event id yet to resume its requests by keeps its connection
// for up to leaveGrace more. Disconnect returns when no such client is left, or after leaveGrace.
func (n *Nodes) Disconnect(ctx context.Context, spread time.Duration) {
	begun := time.Now()
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	left := make(map[any]time.Time) // when each client is to be disconnected
	var over time.Time              // when ctx was done
	for {
		if over.IsZero() && ctx.Err() != nil {
			over = time.Now()
		}
		gone := !over.IsZero() && time.Since(over) >= leaveGrace
		n.mu.Lock()
		busy := len(n.departs) + len(n.bridges)
		for d := range n.departs {
			at, known := left[d]
			if !known {
				at = begun.Add(rand.N(spread + 1))
				left[d] = at
			}
			if d.due(time.Now().After(at), !over.IsZero(), gone) {
				d.begin()
			}
		}
		var bridges []*bridge
		for b := range n.bridges {
			at, known := left[b]
			if !known {
				at = begun.Add(spread + rand.N(spread+1))
				left[b] = at
			}
			if time.Now().After(at) || !over.IsZero() {
				bridges = append(bridges, b)
			}
		}
		n.mu.Unlock()
		for _, b := range bridges {
			b.leave(websocket.StatusGoingAway, "going away; retry: 1000")
		}
		if busy == 0 || gone {
			return
		}
		if over.IsZero() {
			select {
			case <-t.C:
			case <-ctx.Done():
			}
		} else {
			<-t.C
		}
	}
}

// ErrLeaving says that a client is disconnected because its node is drained.
var ErrLeaving = errors.New("the node is drained")

// A departure disconnects the client of a placement when this node is drained.
//
//	state      | what it is                                               | next
//	-----------|----------------------------------------------------------|--------------------
//	canAsk     | the client can resume its request                        | listening, departing
//	mustWait   | it made requests, and has no event id to resume by       | canAsk, departing
//	listening  | it has no request in flight                              | departing
//	departing  | it is being disconnected                                 |
//
// Its methods may be called concurrently.
type departure struct {
	state  atomic.Int32
	cancel atomic.Pointer[context.CancelFunc] // of the forwarded request
}

const (
	canAsk int32 = iota
	mustWait
	listening
	departing
)

// A Wait is the kind of message that the client of an exchange waits for at first.
type Wait int32

// The waits.
const (
	ForEvents Wait = iota // events of a stream that the client can resume
	ForAnswer             // the answer to requests of which the client has no event id yet
	ForNews               // messages that belong to no request
)

// expect sets the state before any event came.
func (d *departure) expect(what Wait) {
	switch what {
	case ForAnswer:
		d.waits()
	case ForNews:
		d.listens()
	}
}

// waits, hasID and listens change the state, but not once the client is being disconnected.
func (d *departure) waits()   { d.state.CompareAndSwap(canAsk, mustWait) }
func (d *departure) hasID()   { d.state.CompareAndSwap(mustWait, canAsk) }
func (d *departure) listens() { d.state.CompareAndSwap(canAsk, listening) }

// awaitsID reports whether the client has made requests, and has no event id to resume them by.
func (d *departure) awaitsID() bool { return d.state.Load() == mustWait }

// due reports whether to disconnect the client now. turn: its time within the spread has
// come; over: the time of the drain is over; gone: so is leaveGrace after it.
func (d *departure) due(turn, over, gone bool) bool {
	switch d.state.Load() {
	case mustWait:
		return gone
	case listening:
		return turn || over || gone
	}
	return over || gone
}

// begin disconnects the client.
func (d *departure) begin() {
	d.state.Store(departing)
	if cancel := d.cancel.Load(); cancel != nil {
		(*cancel)()
	}
}

// begun reports whether the client is being disconnected.
func (d *departure) begun() bool { return d.state.Load() == departing }

// cancels sets the function that cancels the request that is forwarded from now on. It
// returns false if the client is being disconnected.
func (d *departure) cancels(cancel *context.CancelFunc) bool {
	d.cancel.Store(cancel)
	return !d.begun()
}

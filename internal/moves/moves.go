// Package moves logs which sessions came to a node from others, and which have left it: many at a time, as a node
// that ends has many. One line counts the sessions of one kind; lines about single sessions have level Debug.
package moves

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// quiet is how long no session of a kind must have moved before its line is logged, and most
	// how long the line waits for that. often is the time between two lines of a kind.
	quiet = time.Second
	most  = 10 * time.Second
	often = time.Minute
)

// A Kind is how sessions have moved. Node is the node that had them, or "".
type Kind struct {
	How  How
	Node string
}

// How sessions have moved.
type How uint8

// They come, or go.
const (
	CameReleased How = iota // a node had given them up in good order
	CameLost                // a node was lost
	CameBack                // this node had them before, or its process before this one
	CameRevived             // they had ended, and began again
	CameAwake               // they were asleep
	WentAsleep              // nothing happened in them, and nothing is lost
	WentTaken               // another node took them, as this one seemed to be gone
	WentGone                // the store has nothing of them any more
	WentAway                // the store did not answer
	WentReleased            // this node ends, and has given them up in good order
)

// A Count is how many sessions have moved, and how many of their calls were made again,
// have an unknown outcome, or were in flight.
type Count struct{ Sessions, Again, Unknown, Calls int }

// A tally counts the sessions of one kind.
type tally struct {
	Count
	first, last time.Time
	next        time.Time // until then no line is logged
	timer       *time.Timer
}

// A Log logs the moves of a node's sessions. Its methods may be called concurrently.
type Log struct {
	Logger *slog.Logger // for its lines

	mu    sync.Mutex
	kinds map[Kind]*tally
	ended bool // each line is logged at once
}

// mostKinds is how many kinds are remembered before those without sessions are forgotten.
const mostKinds = 100

// Add counts sessions.
func (v *Log) Add(is Kind, n Count) {
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.kinds[is]
	if c == nil {
		if len(v.kinds) >= mostKinds {
			for old, of := range v.kinds {
				if of.Sessions == 0 {
					delete(v.kinds, old)
				}
			}
		}
		c = &tally{}
		if v.kinds == nil {
			v.kinds = make(map[Kind]*tally)
		}
		v.kinds[is] = c
	}
	if c.Sessions == 0 {
		c.first = now
	}
	c.last = now
	c.Sessions, c.Again, c.Unknown, c.Calls = c.Sessions+n.Sessions, c.Again+n.Again, c.Unknown+n.Unknown, c.Calls+n.Calls
	switch {
	case v.ended:
		v.tell(is, c, now)
	case c.timer == nil:
		c.timer = time.AfterFunc(quiet, func() { v.due(is, c) })
	}
}

// due logs the line of a kind, or waits on.
func (v *Log) due(is Kind, c *tally) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c.timer == nil || v.ended {
		return
	}
	now := time.Now()
	at := c.last.Add(quiet)
	if most := c.first.Add(most); at.After(most) {
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

// tell logs the line of a kind. v.mu is held.
func (v *Log) tell(is Kind, c *tally, now time.Time) {
	n := c.Count
	c.Count, c.timer, c.next = Count{}, nil, now.Add(often)
	if n.Sessions == 0 {
		return
	}
	came := []any{"sessions", n.Sessions, "calls_again", n.Again, "outcome_unknown", n.Unknown}
	went := []any{"sessions", n.Sessions, "calls", n.Calls}
	level := slog.LevelInfo
	if n.Unknown > 0 {
		level = slog.LevelWarn
	}
	switch is.How {
	case CameReleased:
		v.Logger.Log(context.Background(), level, "took over sessions that a node gave up as it ended", came...)
	case CameLost:
		v.Logger.Warn("took over the sessions of a node that was lost", append([]any{"node", is.Node}, came...)...)
	case CameBack:
		v.Logger.Log(context.Background(), level, "sessions that this node had before go on here", came...)
	case CameRevived:
		v.Logger.Info("revived sessions whose clients came back", "sessions", n.Sessions)
	case CameAwake:
		v.Logger.Info("sessions awake: their clients came back", "sessions", n.Sessions)
	case WentAsleep:
		v.Logger.Info("sessions asleep: nothing happened in them", "sessions", n.Sessions)
	case WentTaken:
		v.Logger.Warn("other nodes have taken sessions over, as this node did not answer", went...)
	case WentGone:
		v.Logger.Warn("sessions are lost: the store has nothing of them any more", went...)
	case WentAway:
		v.Logger.Warn("sessions are given up: the store did not answer in time", went...)
	case WentReleased:
		v.Logger.Info("gave up sessions for other nodes, or the next process, to take over", "sessions", n.Sessions)
	}
}

// End logs the counts so far, and from now on each line at once.
func (v *Log) End() {
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

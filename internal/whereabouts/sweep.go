package whereabouts

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/handover"
	"holdfast/internal/reading"
	"holdfast/stream"
)

const (
	// Sweepers is how many sessions a sweep takes over at a time: take-overs that clients wait for need not wait for it.
	Sweepers = 16

	// sweepAtOnce is how many sessions a sweep takes over as fast as it can. If
	// there are more, the engine has other work, too: then one each sweepOften.
	sweepAtOnce = 2000
	sweepOften  = 5 * time.Millisecond

	// GiveWayFor is how long a sweep waits at the most for take-overs that clients wait for:
	// on all nodes they begin at the same time, and a sweep would take sessions away from
	// those nodes to which their clients have come.
	GiveWayFor = time.Second
)

// Sweep takes over sessions, of those that mine is true for, with calls that have not ended and no owner: it
// is gone, as gone reports by its name, or gave them up. Sweep begins while the store still lists sessions.
// If the store marks such sessions, Sweep looks at those alone, except now and then. It is not called
// concurrently. The error is that of the store, ctx's, or [handover.ErrClosing].
func (f *Finder) Sweep(ctx context.Context, gone func(node string) bool, mine func(stream.SessionKey) bool) error {
	if f.Store == nil {
		return nil
	}
	f.Work.WaitFor(GiveWayFor, func() bool { return f.wanted.Load() == 0 || ctx.Err() != nil })
	sw := &sweep{f: f, more: make(chan struct{}, 1)}
	var work sync.WaitGroup
	var swept error
	work.Go(func() { swept = sw.adopt(ctx) })
	err := sw.find(ctx, gone, mine)
	sw.end()
	work.Wait()
	if err != nil {
		return fmt.Errorf("sessions not swept: %w", err)
	}
	return swept
}

// A Marking store marks the sessions with calls that another node must go on with if their owner is lost.
type Marking interface {
	// Rests reports whether a session that this node owns has no mark.
	Rests(key stream.SessionKey) bool
	// Rest removes the mark of a session, until an entry of one of its calls is appended.
	Rest(ctx context.Context, lease stream.Lease) error
	// Marked calls yield with the marked sessions that want is true for. owner is the node that has marked it; "": it was released.
	Marked(ctx context.Context, want func(key stream.SessionKey, owner string) bool, yield func(shared.Session)) error
	// Marking returns the nodes that mark their sessions: those of earlier builds do not.
	Marking(ctx context.Context) (nodes map[string]bool, err error)
}

// lookAtAll is how often a sweep looks at all sessions if the store marks those that matter.
const lookAtAll = 10 * time.Minute

// isMixed reports whether a node was heard of lately that is not among those that mark their sessions. It may have come and gone since the
// last sweep, or have been there before this node heard of it.
func (f *Finder) isMixed(marking map[string]bool) bool {
	homes := f.now()
	heard := homes.Nodes
	if homes.Heard != nil {
		heard = homes.Heard()
	}
	return slices.ContainsFunc(heard, func(node string) bool { return !marking[node] })
}

// find finds the sessions that [Finder.Sweep] takes over.
func (sw *sweep) find(ctx context.Context, gone func(node string) bool, mine func(stream.SessionKey) bool) error {
	f := sw.f
	left := map[string]bool{"": true}
	isLeft := func(key stream.SessionKey, owner string) bool {
		if owner == f.Store.Node() {
			return !f.IsKnown(key)
		}
		if !mine(key) {
			return false
		}
		is, known := left[owner]
		if !known {
			is = gone(owner)
			left[owner] = is
		}
		return is
	}
	add := func(was shared.Session) {
		if (was.Owner != "" || was.Open) && isLeft(was.Key, was.Owner) {
			sw.add(was)
		}
	}
	store, ok := f.Store.(Marking)
	if !ok {
		return f.Store.Sessions(ctx, func(was shared.Session) bool {
			add(was)
			return true
		})
	}
	nodes, err := store.Marking(ctx)
	if err != nil {
		return err
	}
	all := f.swept.IsZero() || time.Since(f.swept) >= lookAtAll || f.isMixed(nodes)
	found := make(map[stream.SessionKey]bool)
	err = store.Marked(ctx, func(key stream.SessionKey, owner string) bool {
		is := isLeft(key, owner)
		found[key] = is // if not, it may have a new owner by now, which marks none
		return is
	}, add)
	if err != nil || !all {
		return err
	}
	err = f.Store.Sessions(ctx, func(was shared.Session) bool {
		if was.Owner == "" || !nodes[was.Owner] { // if its owner marks sessions, it matters only with a mark
			if !found[was.Key] {
				add(was)
			}
		}
		return true
	})
	if err == nil {
		f.swept = time.Now()
	}
	return err
}

// Alone reports whether no other node can ever have had a session of the store since this one began: after one
// sweep all sessions with calls that have not ended have an owner, except those that this node has lost itself.
func (f *Finder) Alone() bool {
	store, ok := f.Store.(interface{ Alone() bool })
	return ok && store.Alone()
}

// A sweep has the sessions that were found, for the goroutines that take them over.
type sweep struct {
	f    *Finder
	more chan struct{} // told that there are more sessions, or that no more will come

	mu    sync.Mutex
	found []shared.Session
	ended bool
}

// add adds a session that was found. It does not wait: a goroutine that lists sessions holds the engine up.
func (sw *sweep) add(was shared.Session) {
	sw.mu.Lock()
	sw.found = append(sw.found, was)
	sw.mu.Unlock()
	reading.Wake(sw.more)
}

func (sw *sweep) end() {
	sw.mu.Lock()
	sw.ended = true
	sw.mu.Unlock()
	reading.Wake(sw.more)
}

// next returns the sessions that were found since it was last called, and whether these are the last.
func (sw *sweep) next() (found []shared.Session, ended bool) {
	sw.mu.Lock()
	defer sw.mu.Unlock()
	found, sw.found = sw.found, nil
	return found, sw.ended
}

// adopt takes over the sessions as they are found, until the end.
func (sw *sweep) adopt(ctx context.Context) error {
	f := sw.f
	pace := time.NewTicker(sweepOften)
	defer pace.Stop()
	var group sync.WaitGroup
	defer group.Wait()
	places := make(chan struct{}, Sweepers)
	count := 0
	for {
		found, ended := sw.next()
		for _, was := range found {
			at, err := Parse(was)
			if err != nil {
				f.Logger.Error("session not swept", "error", err)
				continue
			}
			var paced <-chan time.Time
			if count++; count > sweepAtOnce {
				paced = pace.C
			}
			if err := f.wait(ctx, places, paced); err != nil {
				return err
			}
			group.Go(func() {
				defer func() { <-places }()
				f.TakeOver(ctx, at)
			})
		}
		if ended {
			return nil
		}
		select {
		case <-sw.more:
		case <-ctx.Done():
			return ctx.Err()
		case <-f.Work.Quit():
			return handover.ErrClosing
		}
	}
}

// wait waits for a place, and for its time to come if paced is not nil.
func (f *Finder) wait(ctx context.Context, places chan<- struct{}, paced <-chan time.Time) error {
	if paced != nil {
		select {
		case <-paced:
		case <-ctx.Done():
			return ctx.Err()
		case <-f.Work.Quit():
			return handover.ErrClosing
		}
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-f.Work.Quit():
		return handover.ErrClosing
	}
}

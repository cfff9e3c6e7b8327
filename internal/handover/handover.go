// Package handover is the end of a node: how far it has come, the work that it waits for, and how the node gives up its sessions. It does not know the contents of sessions.
package handover

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Tick is how often sessions are looked at while they are given up.
	Tick = 50 * time.Millisecond

	// ReadersGrace is how long the readers of a session that is cut have to read its streams to the end.
	ReadersGrace = 2 * time.Second

	// ClosePatience is how long the node waits for a store that does not answer.
	ClosePatience = 10 * time.Second

	// CutAtOnce is how many sessions are cut at a time. Most of them wait for their readers.
	CutAtOnce = 256

	// mostUnfinished is how many calls one line of the log names.
	mostUnfinished = 20
)

// A Session is a session that the node gives up. It is comparable.
type Session interface {
	// IsQuiet reports whether no request is in flight, and readers have read all messages.
	IsQuiet() bool
	// IsAwaited reports whether a client reads the session, or is likely to come back, within patience, for the end of a call that it has not read.
	IsAwaited(patience time.Duration) bool
	// HandOver gives up the session, if nothing is in flight in it.
	HandOver()
	// Cut ends the requests in flight in the session. release then gives the session up; nil: the session was closed before.
	Cut() (release func())
	// Unfinished returns how many calls have not ended, and the names of some, no more than most.
	Unfinished(most int) (calls int, names []string)
	// WithdrawWaiting ends calls that wait for their clients.
	WithdrawWaiting()
}

// Options are the settings of a [Departure], and functions of its node.
type Options struct {
	Shared bool // other nodes may take sessions over
	Logger *slog.Logger

	// Sessions returns the sessions of the node, and Calls how many requests are in flight.
	Sessions func() []Session
	Calls    func() int
	// AwaitArrivals waits for sessions that are being taken over.
	AwaitArrivals func(ctx context.Context)
}

// A Departure is the end of a node. Its methods may be called concurrently.
type Departure struct {
	Options
	work *Work
	late atomic.Bool // see RefuseUnsafe
}

// New returns the end of a node with its work.
func New(work *Work, opts Options) *Departure { return &Departure{Options: opts, work: work} }

// HandOver gives up all sessions for other nodes to take over, each as soon as nothing is in flight in it. When
// ctx is done it cuts the rest: calls that may be made again, or that no backend has got yet, are left to the
// next owner, others end with their outcome unknown. It returns when no session is left; the error is ctx's if
// it had to cut, which takes [ReadersGrace] and the time of the store, or [ClosePatience] if the store does not
// answer. If sessions are not shared it does nothing. From now on the node takes no session over.
func (d *Departure) HandOver(ctx context.Context) error {
	if !d.Shared {
		return nil
	}
	d.work.become(HandingOver)
	d.AwaitArrivals(ctx)
	err := every(ctx, Tick, func() (more bool) {
		all := d.Sessions()
		more = len(all) > 0
		Each(slices.DeleteFunc(all, isBusy), Parallel, Session.HandOver)
		return more
	})
	if err != nil {
		d.logUnfinished()
		late := time.AfterFunc(ClosePatience, d.work.stop)
		defer late.Stop()
		d.cut()
	}
	return err
}

func isBusy(s Session) bool { return !s.IsQuiet() }

// DrainAlone comes before [Departure.HandOver] as long as no other node is there to take sessions over: they
// stay, and clients may listen to them, but calls of tools, and of methods that the specification does not
// have, are refused with [ErrClosing]. It returns when nothing is in flight, alone returns false, as another
// node has come, or ctx is done. If sessions are not shared it does nothing.
func (d *Departure) DrainAlone(ctx context.Context, alone func() bool) {
	if !d.Shared {
		return
	}
	d.work.become(WaitingAlone)
	defer d.work.become(Serving)
	_ = every(ctx, Tick, func() bool { return alone() && slices.ContainsFunc(d.Sessions(), isBusy) })
}

// RefuseUnsafe begins the end of [Departure.HandOver]: from now on a call that may not be
// made again is refused before it begins, as it would probably be cut.
func (d *Departure) RefuseUnsafe() { d.late.Store(true) }

// RefusesUnsafe reports whether RefuseUnsafe was called.
func (d *Departure) RefusesUnsafe() bool { return d.late.Load() }

// cut gives up all sessions, also those with requests in flight: it first ends all here, and then releases
// each as soon as its readers have read all messages.
func (d *Departure) cut() {
	var mu sync.Mutex
	left := make(map[Session]func()) // by session, the function that releases it
	Each(d.Sessions(), CutAtOnce, func(s Session) {
		if release := s.Cut(); release != nil {
			mu.Lock()
			defer mu.Unlock()
			left[s] = release
		}
	})
	for end := time.Now().Add(ReadersGrace); len(left) > 0; {
		late := time.Now().After(end) || d.work.ctx.Err() != nil
		var told []func()
		for s, release := range left {
			if late || s.IsQuiet() {
				told = append(told, release)
				delete(left, s)
			}
		}
		Each(told, CutAtOnce, func(release func()) { release() })
		if len(left) > 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// logUnfinished logs the calls that have not ended in the time that they had at the end of this node.
func (d *Departure) logUnfinished() {
	var names []string
	calls := 0
	for _, s := range d.Sessions() {
		n, more := s.Unfinished(mostUnfinished - len(names))
		calls, names = calls+n, append(names, more...)
	}
	if calls > 0 {
		slices.Sort(names)
		d.Logger.Warn("calls did not end in time", "calls", calls, "which", names)
	}
}

// Stop refuses new sessions and calls from now on, and ends calls that wait for their clients.
func (d *Departure) Stop() {
	d.work.become(Stopped)
	for _, s := range d.Sessions() {
		s.WithdrawWaiting()
	}
}

// AwaitIdle returns when no request is in flight, and no session is awaited within patience: see [Session]. The error is ctx's.
func (d *Departure) AwaitIdle(ctx context.Context, patience time.Duration) error {
	const often = 10 * time.Millisecond
	last := time.Now()
	err := every(ctx, often, func() bool {
		// The time for which the process stood still does not count: clients that come back
		// are still waiting to be accepted.
		if late := time.Since(last) - often; late > time.Second {
			patience += late
		}
		last = time.Now()
		return d.Calls() > 0 || slices.ContainsFunc(d.Sessions(), func(s Session) bool { return s.IsAwaited(patience) })
	})
	if err != nil {
		d.logUnfinished()
	}
	return err
}

// Close leaves all sessions to other nodes, if they are shared, calls end to end the others, and waits for all work.
func (d *Departure) Close(end func()) {
	d.work.become(Stopped)
	d.work.once.Do(func() { close(d.work.quit) })
	late := time.AfterFunc(ClosePatience, d.work.stop)
	defer d.work.stop()
	defer late.Stop()
	if d.Shared {
		d.AwaitArrivals(d.work.ctx)
		d.cut()
	}
	end()
	d.work.become(Closed)
	d.work.begun.Wait()
}

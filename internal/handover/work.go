package handover

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosing refuses requests while the node is shutting down.
var ErrClosing = errors.New("the server is shutting down")

// A State says how much a node still takes on.
//
//	state         what it means
//	Serving       everything
//	WaitingAlone  no calls of tools: the node ends, and no other node is there
//	HandingOver   no sessions of other nodes: they take over those of this one
//	Stopped       nothing new: no session, and no call
//	Closed        nothing: Close waits for the work that is left
//
//	from                                to            when
//	Serving                             WaitingAlone  [Departure.DrainAlone] begins
//	WaitingAlone                        Serving       [Departure.DrainAlone] ends
//	Serving, WaitingAlone               HandingOver   [Departure.HandOver]
//	Serving, WaitingAlone, HandingOver  Stopped       [Departure.Stop], [Departure.Close]
//	Stopped                             Closed        [Departure.Close]
//
// [Work.become] makes all transitions.
type State uint32

// The states, in their order.
const (
	Serving State = iota
	WaitingAlone
	HandingOver
	Stopped
	Closed
)

// steps are the states that may follow each state.
var steps = [...][]State{
	Serving:      {WaitingAlone, HandingOver, Stopped},
	WaitingAlone: {Serving, HandingOver, Stopped},
	HandingOver:  {Stopped},
	Stopped:      {Closed},
	Closed:       {},
}

// A Work counts the work that a node does by itself, and knows how far the end of the node has come. Its methods may be called concurrently.
type Work struct {
	mu  sync.RWMutex  // held to change now, and to begin work that depends on it
	now atomic.Uint32 // a State

	begun sync.WaitGroup // work that ends by itself
	quit  chan struct{}
	once  sync.Once // closes quit

	ctx  context.Context // of appends; done when Close has waited for them long enough
	stop context.CancelFunc
}

// NewWork returns the work of a node that serves.
func NewWork() Work {
	ctx, stop := context.WithCancel(context.Background())
	return Work{quit: make(chan struct{}), ctx: ctx, stop: stop}
}

// State returns the state of the node.
func (w *Work) State() State { return State(w.now.Load()) }

// Reached reports whether the end of the node has come as far as a state.
func (w *Work) Reached(state State) bool { return w.State() >= state }

// become brings the node into a state, if its own allows that.
func (w *Work) become(to State) (ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ok = slices.Contains(steps[w.State()], to); ok {
		w.now.Store(uint32(to))
	}
	return ok
}

// Start counts work that [Departure.Close] waits for, until Done, unless Close has begun to wait.
func (w *Work) Start() bool { return w.StartBefore(Closed, nil) == nil }

// StartBefore counts work until Done, if the node has not reached a state, and err is nil. Else it returns [ErrClosing], or err.
func (w *Work) StartBefore(state State, err error) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.Reached(state) {
		return ErrClosing
	}
	if err == nil {
		w.begun.Add(1)
	}
	return err
}

// Done ends work that was started.
func (w *Work) Done() { w.begun.Done() }

// Go runs f on a goroutine of its own, as work that Close waits for, unless Close has begun to wait.
func (w *Work) Go(f func()) bool {
	if !w.Start() {
		return false
	}
	go func() {
		defer w.Done()
		f()
	}()
	return true
}

// After runs f as work after a time, unless Close has begun to wait by then.
func (w *Work) After(wait time.Duration, f func()) *time.Timer {
	return time.AfterFunc(wait, func() {
		if w.Start() {
			defer w.Done()
			f()
		}
	})
}

// Pause waits for a time, or until Close begins, and reports whether it has not begun.
func (w *Work) Pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.quit:
		return false
	}
}

// Context is done when Close has waited for long enough.
func (w *Work) Context() context.Context { return w.ctx }

// Quit is closed when Close begins.
func (w *Work) Quit() <-chan struct{} { return w.quit }

// WaitFor waits until so returns true, but no longer than wait.
func (w *Work) WaitFor(wait time.Duration, so func() bool) {
	if so() { // as a rule
		return
	}
	end := time.Now().Add(wait)
	_ = every(w.ctx, 20*time.Millisecond, func() bool { return !so() && time.Now().Before(end) })
}

// every calls look, and again after each period, until look returns false. The error is ctx's, if ctx was done before.
func every(ctx context.Context, period time.Duration, look func() bool) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for look() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Parallel is how many sessions the store is asked for at a time.
const Parallel = 16

// Each calls f for each of all, for no more than some at a time, and returns when all calls have returned.
func Each[T any](all []T, some int, f func(T)) {
	var group sync.WaitGroup
	places := make(chan struct{}, some)
	for _, x := range all {
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			f(x)
		})
	}
	group.Wait()
}

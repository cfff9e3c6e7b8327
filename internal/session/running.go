package session

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// running is what a manager does by itself, and how that ends.
type running struct {
	drain drain
	work  sync.WaitGroup // everything that ends by itself
	quit  chan struct{}
	once  sync.Once // closes quit

	waiters sync.Pool // see [Waiter]

	ctx  context.Context // of appends; done when Close has waited for them long enough
	stop context.CancelFunc
}

// A drain is how far the end of a manager has come: written under its lock, and read without it.
type drain struct {
	mu   sync.RWMutex
	now  atomic.Uint32 // a drainState
	late atomic.Bool   // the drain's time is nearly over: only what may be made again is begun
}

func (d *drain) state() drainState { return drainState(d.now.Load()) }

// is reports whether the end has come as far as a state.
func (d *drain) is(state drainState) bool { return d.state() >= state }

// become brings the manager into a state, if its own allows that.
func (d *drain) become(to drainState) (ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ok = slices.Contains(drainSteps[d.state()], to); ok {
		d.now.Store(uint32(to))
	}
	return ok
}

// startWork counts work that Close waits for, until work.Done, unless Close has begun
// to wait.
func (r *running) startWork() bool { return r.start(managerClosed, nil) == nil }

// start counts work until work.Done, if the end has not come as far as a state, and err is nil.
func (r *running) start(until drainState, err error) error {
	r.drain.mu.RLock()
	defer r.drain.mu.RUnlock()
	if r.drain.is(until) {
		return ErrClosing
	}
	if err == nil {
		r.work.Add(1)
	}
	return err
}

// inBackground runs f as work that Close waits for, unless Close has begun to wait.
func (r *running) inBackground(f func()) bool {
	if !r.startWork() {
		return false
	}
	go func() {
		defer r.work.Done()
		f()
	}()
	return true
}

// InBackground runs f as inBackground does. The context is done when Close has waited for long enough.
func (r *running) InBackground(f func(context.Context)) bool {
	return r.inBackground(func() { f(r.ctx) })
}

// waitFor waits until something is so, but not for long.
func (r *running) waitFor(wait time.Duration, so func() bool) {
	if so() {
		return
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(wait); !so() && time.Now().Before(end); {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			return
		}
	}
}

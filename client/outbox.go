package client

import (
	"context"
	"sync"
)

// outbox sends notifications in their order, one after the other.
type outbox struct {
	mu      sync.Mutex
	waiting []func()
	busy    bool
	idle    chan struct{} // closed when no work is left; nil: no caller waits
}

// put adds work. It reports whether the caller must start a goroutine that calls run.
func (o *outbox) put(f func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, f)
	start := !o.busy
	o.busy = true
	return start
}

// run does the work that was put, until there is none.
func (o *outbox) run() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) > 0 {
		f := o.waiting[0]
		o.waiting = o.waiting[1:]
		o.mu.Unlock()
		f()
		o.mu.Lock()
	}
	o.end()
}

// drop drops the work that was put, as no goroutine calls run.
func (o *outbox) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end()
}

// end notes that no work is left. o.mu is held.
func (o *outbox) end() {
	o.busy, o.waiting = false, nil
	if o.idle != nil {
		close(o.idle)
		o.idle = nil
	}
}

// wait waits until all work is done, or ctx is done.
func (o *outbox) wait(ctx context.Context) {
	o.mu.Lock()
	if !o.busy {
		o.mu.Unlock()
		return
	}
	if o.idle == nil {
		o.idle = make(chan struct{})
	}
	idle := o.idle
	o.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

package legacytask

import (
	"context"
	"sync"
	"time"

	"holdfast/internal/session"
)

// stepTimeout bounds one step of a waker.
const stepTimeout = 5 * time.Second

// A waker runs step in one goroutine at a time, which exists only while there is work.
type waker struct {
	sessions *session.Manager
	step     func(context.Context) (over bool)

	mu      sync.Mutex
	running bool
	again   bool
}

// wake runs step, once more if it is running.
func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.again = w.running; !w.again {
		w.running = w.sessions.InBackground(w.run)
	}
}

func (w *waker) run(ctx context.Context) {
	for {
		bound, stop := context.WithTimeout(ctx, stepTimeout)
		over := w.step(bound)
		stop()
		w.mu.Lock()
		if over || !w.again {
			w.running = over // over: wake does nothing any more
			w.mu.Unlock()
			return
		}
		w.again = false
		w.mu.Unlock()
	}
}

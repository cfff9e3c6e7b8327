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
	timer   *time.Timer // of wakeLater; nil: it was not called yet
}

// stepAgain is how long a waker waits before a step that the store has failed is run again.
const stepAgain = time.Second

// wake runs step, once more if it is running.
func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.again = w.running; !w.again {
		w.running = w.sessions.InBackground(w.run)
	}
}

// wakeLater wakes after a moment.
func (w *waker) wakeLater() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		w.timer = time.AfterFunc(stepAgain, w.wake)
		return
	}
	w.timer.Reset(stepAgain)
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

package session

import "sync"

// A waker has something done, by one goroutine at a time, which there is only while there is
// something to do.
type waker struct {
	m    *Manager
	step func() (over bool)

	mu      sync.Mutex
	running bool
	again   bool
}

// wake has it done, once more if it is being done.
func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.again = w.running; w.again || !w.m.startWork() {
		return
	}
	w.running = true
	go w.run()
}

func (w *waker) run() {
	defer w.m.work.Done()
	for {
		over := w.step()
		w.mu.Lock()
		if over || !w.again {
			w.running = over // it is not woken any more
			w.mu.Unlock()
			return
		}
		w.again = false
		w.mu.Unlock()
	}
}

package mux

import (
	"sync"
	"testing"
)

// The connection of a client that sends no more is not over while a waiting call begins.
func TestOverAtTurn(t *testing.T) {
	t.Parallel()
	m := &mux{traffic: traffic{open: make(map[*carried]struct{}), state: stateFinished, ready: make(chan struct{}, 1)}}
	m.queue.room.L = &m.queue.mu
	for range 200_000 {
		x := &carried{}
		m.waiting = 1
		var begins sync.WaitGroup
		begins.Go(func() {
			m.mu.Lock()
			m.open[x] = struct{}{}
			m.mu.Unlock()
			m.mu.Lock()
			m.waiting--
			m.mu.Unlock()
		})
		for range 5 {
			if m.isOver() {
				t.Fatal("over with a call in flight")
			}
		}
		begins.Wait()
		delete(m.open, x)
	}
}

package cluster

import "sync"

// A queue is work for one goroutine, in order.
type queue[T any] struct {
	mu     sync.Mutex
	cond   sync.Cond // signalled when a field below changes
	items  []T
	max    int
	closed bool
}

func newQueue[T any](most int) *queue[T] {
	l := &queue[T]{max: most}
	l.cond.L = &l.mu
	return l
}

// put adds an item, and reports whether there was room for it.
func (l *queue[T]) put(item T) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.items) >= l.max {
		return false
	}
	l.items = append(l.items, item)
	l.cond.Signal()
	return true
}

// work calls do with each item, until the queue is closed and empty.
func (l *queue[T]) work(do func(T)) {
	var batch []T
	for {
		l.mu.Lock()
		for !l.closed && len(l.items) == 0 {
			l.cond.Wait()
		}
		if len(l.items) == 0 {
			l.mu.Unlock()
			return
		}
		batch, l.items = l.items, batch[:0]
		l.mu.Unlock()
		for _, item := range batch {
			do(item)
		}
		clear(batch)
	}
}

func (l *queue[T]) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.cond.Signal()
}

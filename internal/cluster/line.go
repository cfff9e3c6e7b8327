package cluster

import "sync"

// A line is work for one goroutine, in order.
type line[T any] struct {
	mu     sync.Mutex
	cond   sync.Cond // signals what the fields below say
	items  []T
	max    int
	closed bool
}

func newLine[T any](most int) *line[T] {
	l := &line[T]{max: most}
	l.cond.L = &l.mu
	return l
}

// put adds work, unless there is too much.
func (l *line[T]) put(item T) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.items) >= l.max {
		return false
	}
	l.items = append(l.items, item)
	l.cond.Signal()
	return true
}

// work does what is put until the line is closed, and what was put before.
func (l *line[T]) work(do func(T)) {
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

func (l *line[T]) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.cond.Signal()
}

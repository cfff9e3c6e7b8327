package process

import (
	"fmt"
	"sync"
)

// A queue holds the messages that wait for a process to read its stdin. It is
// bounded in bytes. One goroutine takes them out; any may put them in.
type queue struct {
	mu      sync.Mutex
	changed sync.Cond
	max     int64
	size    int64    // bytes waiting, and of the message being written
	writing int64    // bytes of the message being written
	waiting [][]byte // the messages, from first on
	first   int
	closed  error // why no message is taken any more
}

func (q *queue) init(limit int64) {
	q.max = limit
	q.changed.L = &q.mu
}

// put adds a message, which must not change afterwards. It never waits. It fails
// if the queue is full or closed; a message larger than the queue fits an empty
// one.
func (q *queue) put(raw []byte) error {
	n := int64(len(raw)) + 1 // its line end
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return q.closed
	}
	if q.size > 0 && q.size+n > q.max {
		return fmt.Errorf("the server does not read its stdin: %d bytes are waiting", q.size)
	}
	if q.first > len(q.waiting)/2 { // reuse the room of messages that were taken
		kept := copy(q.waiting, q.waiting[q.first:])
		clear(q.waiting[kept:])
		q.waiting, q.first = q.waiting[:kept], 0
	}
	q.size += n
	q.waiting = append(q.waiting, raw)
	q.changed.Signal()
	return nil
}

// next waits for a message and takes it out; the message taken before has then been
// written. After close it returns false.
func (q *queue) next() ([]byte, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.size -= q.writing
	q.writing = 0
	for q.closed == nil && q.first == len(q.waiting) {
		q.waiting, q.first = q.waiting[:0], 0
		q.changed.Wait()
	}
	if q.closed != nil {
		return nil, false
	}
	raw := q.waiting[q.first]
	q.waiting[q.first] = nil
	q.first++
	q.writing = int64(len(raw)) + 1
	return raw, true
}

// close drops the waiting messages and refuses new ones, for the given reason. The first reason counts.
func (q *queue) close(why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed == nil {
		q.closed = why
	}
	q.waiting, q.first = nil, 0
	q.changed.Broadcast()
}

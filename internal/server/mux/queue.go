package mux

import (
	"sync"

	"holdfast/internal/reading"
)

// Bounds of the answers that wait to be written, in number and bytes. Above them no message is taken off the connection.
const (
	mostQueued      = 64
	mostQueuedBytes = 64 << 10
)

// A queue passes answers, and light calls that wait for theirs, from the goroutines
// that handle messages to [mux.run].
type queue struct {
	ready chan struct{} // signalled when something was queued

	mu     sync.Mutex
	room   sync.Cond // signalled when the queue was emptied, and at the end
	texts  [][]byte
	lights []*carried
	bytes  int // of texts
	state  queueState
}

// A queueState is the state of the goroutine that takes messages in:
//
//	waits     for a message                        → busy: one came
//	busy      with a message                       → waits: it was served
//	busy      with a message                       → awaited: isEmpty was called
//	awaited   busy, and [mux.run] waits for it     → waits: it was served, and wakes run
//	any       → closed: the connection has ended
type queueState uint8

const (
	queueWaits queueState = iota
	queueBusy
	queueAwaited
	queueClosed
)

// begin notes that a message came. It returns false if the connection has ended.
func (q *queue) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == queueClosed {
		return false
	}
	q.state = queueBusy
	return true
}

// done notes that a message was served.
func (q *queue) done() {
	q.mu.Lock()
	was := q.state
	if was != queueClosed {
		q.state = queueWaits
	}
	q.mu.Unlock()
	if was == queueAwaited {
		reading.Wake(q.ready)
	}
}

// isEmpty reports whether no answer is queued and no message is being served. If one is, q.ready is signalled when it was served.
func (q *queue) isEmpty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == queueBusy {
		q.state = queueAwaited
	}
	return q.state != queueAwaited && len(q.texts) == 0 && len(q.lights) == 0
}

// text queues an answer.
func (q *queue) text(text []byte) { q.put(text, nil) }

// light queues a light call. It returns false if the connection has ended.
func (q *queue) light(x *carried) bool { return q.put(nil, x) }

// put queues an answer, or the light call x, and waits while too much is queued. It returns false if the connection has ended.
func (q *queue) put(text []byte, x *carried) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.state != queueClosed && (len(q.texts)+len(q.lights) >= mostQueued || q.bytes > mostQueuedBytes) {
		q.room.Wait()
	}
	switch {
	case q.state == queueClosed:
		return false
	case x != nil:
		q.lights = append(q.lights, x)
	default:
		q.texts = append(q.texts, text)
		q.bytes += len(text)
	}
	reading.Wake(q.ready)
	return true
}

// take removes and returns all that is queued.
func (q *queue) take() (texts [][]byte, lights []*carried) {
	q.mu.Lock()
	defer q.mu.Unlock()
	texts, lights = q.texts, q.lights
	q.texts, q.lights, q.bytes = nil, nil, 0
	q.room.Broadcast()
	return texts, lights
}

// close ends the queue, and returns its light calls, which are not answered.
func (q *queue) close() []*carried {
	q.mu.Lock()
	q.state = queueClosed
	q.mu.Unlock()
	_, lights := q.take()
	return lights
}

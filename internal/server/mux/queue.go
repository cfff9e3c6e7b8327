package mux

import (
	"sync"

	"holdfast/internal/reading"
)

// Until they are written, so many answers, and so many bytes of them, may wait: then nothing more is taken off the connection.
const (
	mostQueued      = 64
	mostQueuedBytes = 64 << 10
)

// A queue is what goes from the goroutine that takes messages in to [mux.run]: answers,
// and light calls, whose answers are waited for.
type queue struct {
	ready chan struct{} // signalled when there is something

	mu     sync.Mutex
	room   sync.Cond // signalled when it was emptied, and at the end
	texts  [][]byte
	lights []*carried
	bytes  int // of texts
	state  queueState
}

// A queueState is what the goroutine that takes messages in does:
//
//	waits     for a message                        → busy: one came
//	busy      with a message                       → waits: it was served
//	busy      and it was looked whether it is      → awaited
//	awaited   is the same, and [mux.run] is woken when the message was served → waits
//	any       → closed: the connection has ended
type queueState uint8

const (
	queueWaits queueState = iota
	queueBusy
	queueAwaited
	queueClosed
)

// begin notes that a message came. It reports whether it is to be served.
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

// isEmpty reports whether nothing is queued, or on its way. If something is, q.ready is signalled when it comes.
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

// light queues a light call. It is false when the connection has ended.
func (q *queue) light(x *carried) bool { return q.put(nil, x) }

// put waits while too much is queued.
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

// take empties the queue.
func (q *queue) take() (texts [][]byte, lights []*carried) {
	q.mu.Lock()
	defer q.mu.Unlock()
	texts, lights = q.texts, q.lights
	q.texts, q.lights, q.bytes = nil, nil, 0
	q.room.Broadcast()
	return texts, lights
}

// close ends the queue, and returns the light calls that nobody will wait for.
func (q *queue) close() []*carried {
	q.mu.Lock()
	q.state = queueClosed
	q.mu.Unlock()
	_, lights := q.take()
	return lights
}

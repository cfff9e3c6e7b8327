package session

import (
	"context"
	"errors"
	"sync"

	"holdfast/jsonrpc"
	"holdfast/stream"
)

// appender puts what a session's calls say into the store: one append at a
// time, and what is queued meanwhile goes as the next one. Whoever finds nobody
// appending does it for all, so no goroutine waits for work.
//
// Order: what one call says is queued under its lock, and numbered when it is
// appended.
type appender struct {
	s *Session

	mu      sync.Mutex
	waiting []saying
	busy    bool

	// Used only by the one who is busy.
	spare []saying
	batch []stream.Record
}

// saying is a message on its way into the log.
type saying struct {
	c      *Call
	number uint64
	data   []byte
	last   bool
}

// roomKept is how many queued messages an idle session keeps room for.
const roomKept = 4

// queue adds to the next append. flush must follow, when no lock is held.
func (a *appender) queue(x saying) {
	a.mu.Lock()
	a.waiting = append(a.waiting, x)
	a.mu.Unlock()
}

// flush appends all that is queued, unless another goroutine is at it already.
func (a *appender) flush() {
	a.mu.Lock()
	if a.busy {
		a.mu.Unlock()
		return
	}
	a.busy = true
	for len(a.waiting) > 0 {
		turn := a.waiting
		a.waiting = a.spare[:0]
		a.mu.Unlock()
		a.append(turn)
		clear(turn)
		a.mu.Lock()
		a.spare = turn
	}
	if cap(a.spare)+cap(a.waiting) > 2*roomKept {
		a.spare, a.waiting = nil, nil
	}
	a.busy = false
	a.mu.Unlock()
}

// append puts one turn into the store.
func (a *appender) append(turn []saying) {
	ctx := context.Background()
	batch := a.batch[:0]
	for i := range turn {
		x := &turn[i]
		if x.c.sealed {
			continue
		}
		x.c.seq++
		batch = append(batch, stream.Record{
			Number: x.number,
			Entry:  stream.Entry{Seq: x.c.seq, Data: x.data, Last: x.last},
		})
	}
	err := a.s.m.store.Append(ctx, a.s.lease, batch)
	clear(batch)
	if a.batch = batch[:0]; cap(batch) > roomKept {
		a.batch = nil
	}
	if err != nil {
		a.apart(ctx, turn)
		return
	}
	for i := range turn {
		if turn[i].last {
			a.s.streams.remove(turn[i].number)
		}
	}
}

// apart puts the messages of a refused turn into the store one by one, so that
// only those suffer that can't be kept.
func (a *appender) apart(ctx context.Context, turn []saying) {
	for i := range turn {
		if !turn[i].c.sealed {
			turn[i].c.seq--
		}
	}
	for i := range turn {
		x := &turn[i]
		if x.c.sealed {
			continue
		}
		err := a.put(ctx, x.c, stream.Entry{Data: x.data, Last: x.last}, x.number)
		if err != nil {
			a.refused(ctx, x, err)
		}
		if x.last {
			a.s.streams.remove(x.number)
		}
	}
}

func (a *appender) put(ctx context.Context, c *Call, e stream.Entry, number uint64) error {
	e.Seq = c.seq + 1
	err := a.s.m.store.Append(ctx, a.s.lease, []stream.Record{{Number: number, Entry: e}})
	if err == nil {
		c.seq++
	}
	return err
}

// refused ends the stream of a message that the store did not take, in words
// small enough to be taken. On the standalone stream, which has no end, the
// message is lost.
func (a *appender) refused(ctx context.Context, x *saying, err error) {
	if errors.Is(err, stream.ErrNotFound) {
		x.c.sealed = true // the session is gone, and its readers know
		return
	}
	a.s.m.logger.Error("message not stored", "session", a.s.Name(), "stream", x.number, "error", err)
	if x.number == standalone {
		return
	}
	ids := x.c.seal()
	if id := jsonrpc.Field(x.data, "id"); x.last && id != nil {
		ids = append(ids, id)
	}
	for i, id := range ids {
		text := jsonrpc.AppendError(nil, id, jsonrpc.Errorf(jsonrpc.CodeServer,
			"outcome unknown: what the server said could not be kept: %v", err))
		e := stream.Entry{Data: text, Last: i == len(ids)-1}
		if err := a.put(ctx, x.c, e, x.number); err != nil {
			a.s.m.logger.Error("call ended unseen", "session", a.s.Name(), "stream", x.number, "error", err)
			break
		}
	}
	x.c.sealed = true
	if !x.last {
		a.s.streams.remove(x.number)
	}
}

// seal ends the call and returns the ids that had no response yet.
func (c *Call) seal() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := c.pending
	c.pending, c.ended = nil, true
	return ids
}

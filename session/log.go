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
			a.over(turn[i].number)
		}
	}
}

// over ends a stream that has its last entry.
func (a *appender) over(number uint64) { a.s.dispatch(number, a.s.streams.remove(number)) }

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
		err := a.put(ctx, x.c, x.number, stream.Entry{Data: x.data, Last: x.last})
		switch {
		case err != nil:
			a.refused(ctx, turn[i:], err)
		case x.last:
			a.over(x.number)
		}
	}
}

// put appends entries to a call's stream, all or none.
func (a *appender) put(ctx context.Context, c *Call, number uint64, entries ...stream.Entry) error {
	records := make([]stream.Record, len(entries))
	for i, e := range entries {
		e.Seq = c.seq + 1 + uint64(i)
		records[i] = stream.Record{Number: number, Entry: e}
	}
	err := a.s.m.store.Append(ctx, a.s.lease, records)
	if err == nil {
		c.seq += uint64(len(records))
	}
	return err
}

// refused ends the stream of the first message of turn, which the store did not
// take, in words small enough to be taken; if even they are not, who reads the
// stream is told from memory. On the standalone stream, which has no end, a
// response is replaced, and another message lost.
func (a *appender) refused(ctx context.Context, turn []saying, err error) {
	x := &turn[0]
	if errors.Is(err, stream.ErrNotFound) {
		x.c.sealed = true // the session is gone, and its readers know
		if x.number != standalone {
			a.over(x.number)
		}
		return
	}
	a.s.m.logger.Error("message not stored", "session", a.s.Name(), "stream", x.number, "error", err)
	var ids [][]byte
	if x.number == standalone {
		if ids = responseID(ids, x); ids == nil {
			return
		}
	} else {
		ids = a.unanswered(turn)
		x.c.mu.Lock()
		for _, id := range ids {
			x.c.settled(string(id), true)
		}
		x.c.mu.Unlock()
		x.c.mislay(x.c.seq)
	}
	end := []stream.Entry{{}} // a cancelled call ends in silence
	for i, id := range ids {
		end = append(end[:i], stream.Entry{Data: jsonrpc.AppendError(nil, id, jsonrpc.Errorf(jsonrpc.CodeServer,
			"outcome unknown: what the server said could not be kept: %v", err))})
	}
	if x.number != standalone {
		x.c.sealed = true
		end[len(end)-1].Last = true
	}
	err = a.put(ctx, x.c, x.number, end...)
	switch {
	case x.number == standalone:
	case err == nil:
		a.over(x.number)
		return
	default:
		x.c.tell(end)
		a.s.streams.poke(x.number)
		x.c.finish(x.number)
	}
	if err != nil {
		a.s.m.logger.Error("end of a call not stored", "session", a.s.Name(), "stream", x.number, "error", err)
	}
}

// unanswered ends the call of the first message of turn and returns the ids of
// its requests whose response is not in the store.
func (a *appender) unanswered(turn []saying) [][]byte {
	c := turn[0].c
	c.mu.Lock()
	var ids [][]byte
	for _, rq := range c.pending {
		ids = append(ids, []byte(rq.id))
	}
	c.pending, c.ended = nil, true
	c.mu.Unlock()
	for i := range turn {
		if turn[i].c == c {
			ids = responseID(ids, &turn[i])
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.waiting {
		if a.waiting[i].c == c {
			ids = responseID(ids, &a.waiting[i])
		}
	}
	return ids
}

// responseID appends the id of a response.
func responseID(ids [][]byte, x *saying) [][]byte {
	if id := jsonrpc.Field(x.data, "id"); id != nil && jsonrpc.Field(x.data, "method") == nil {
		return append(ids, id)
	}
	return ids
}

package session

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

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
	waiting []queuedEntry
	bytes   int           // that are queued, or being appended
	space   chan struct{} // closed when there is room again; nil if nobody waits for that
	busy    bool          // somebody appends
	holders int           // how many have yet to queue what goes as one: nothing is appended until then

	// Used only by the one who is busy.
	spare []queuedEntry
	batch []stream.Record
}

// queuedEntry is a message, or a note, on its way into the log.
type queuedEntry struct {
	c      *Call
	number uint64
	data   []byte
	last   bool
	note   bool
	joined bool          // what is queued after it goes into the same append
	done   chan struct{} // closed when it is stored, or will not be; nil if nobody waits
}

const (
	// roomKept is how many queued messages an idle session keeps room for.
	roomKept = 4

	// mostQueued bounds the bytes of a session's messages that wait to be appended, which
	// is an eighth of what may be on its way, if that is less: a backend that talks faster
	// than the store takes it waits.
	mostQueued = 32 << 20

	// mostTurn is how many bytes go into one append, if there is more than one message
	// of them.
	mostTurn = 512 << 10

	// mostTurns is how often one goroutine appends what others say before another
	// takes its place.
	mostTurns = 16

	// patience bounds an append whose outcome is not known.
	appendTimeout = 30 * time.Second
)

// queue adds to the next append. flush must follow, when no lock is held.
func (a *appender) queue(x queuedEntry) {
	a.mu.Lock()
	a.waiting = append(a.waiting, x)
	a.bytes += len(x.data)
	a.mu.Unlock()
	if a.s.m.shared != nil { // else it does not wait
		a.s.m.opts.Flight.Add(int64(len(x.data)))
	}
}

// flush appends all that is queued, unless another goroutine is at it already: then
// it waits only if too much is queued.
func (a *appender) flush() {
	a.mu.Lock()
	for a.busy || a.holders > 0 {
		if a.bytes <= a.s.m.mostQueued || a.holders > 0 || a.s.Moved() {
			a.mu.Unlock()
			return
		}
		if a.space == nil {
			a.space = make(chan struct{})
		}
		room := a.space
		a.mu.Unlock()
		<-room
		a.mu.Lock()
	}
	a.busy = true
	a.drain(mostTurns)
}

// inOneAppend has what f queues go as one append, as far as it fits into one, if nobody
// is appending. Several may do so at a time: the last of them appends for all.
func (a *appender) inOneAppend(f func()) {
	a.mu.Lock()
	a.holders++
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.holders--
		a.mu.Unlock()
		a.flush()
	}()
	f()
}

// drain appends what is queued, and after some turns leaves it to a goroutine of
// its own. a.mu is held, and is not when it returns.
func (a *appender) drain(turns int) {
	for len(a.waiting) > 0 {
		if turns--; turns == 0 && a.s.m.startWork() {
			a.mu.Unlock()
			go func() {
				defer a.s.m.work.Done()
				a.mu.Lock()
				a.drain(-1)
			}()
			return
		}
		turn := a.waiting
		a.waiting = a.spare[:0]
		a.mu.Unlock()
		for rest := turn; ; {
			n, size := portion(rest)
			a.append(rest, n)
			for i := range rest[:n] {
				if rest[i].done != nil {
					close(rest[i].done)
				}
			}
			clear(rest[:n])
			rest = rest[n:]
			if a.s.m.shared != nil {
				a.s.m.opts.Flight.Add(-int64(size))
			}
			a.mu.Lock()
			if a.bytes -= size; a.space != nil && a.bytes <= a.s.m.mostQueued {
				close(a.space)
				a.space = nil
			}
			if len(rest) == 0 {
				break
			}
			a.mu.Unlock()
		}
		a.spare = turn
	}
	if cap(a.spare)+cap(a.waiting) > 2*roomKept {
		a.spare, a.waiting = nil, nil
	}
	a.busy = false
	if a.space != nil { // who waits can do it
		close(a.space)
		a.space = nil
	}
	a.mu.Unlock()
}

// portion says how many messages go into the next append, and how many bytes they
// have.
func portion(turn []queuedEntry) (n, size int) {
	for n < len(turn) {
		if n > 0 && size+len(turn[n].data) > mostTurn && !turn[n-1].joined {
			break
		}
		size += len(turn[n].data)
		n++
	}
	return n, size
}

// context bounds one append.
func (a *appender) context() (context.Context, context.CancelFunc) {
	if a.s.m.shared == nil {
		return a.s.m.ctx, func() {}
	}
	return context.WithTimeout(a.s.m.ctx, appendTimeout)
}

// append puts the first n messages of rest into the store.
func (a *appender) append(rest []queuedEntry, n int) {
	turn := rest[:n]
	if a.s.Moved() {
		observeLeft(turn)
		return // whoever has the session now says how its calls end
	}
	ctx, stop := a.context()
	defer stop()
	batch := a.batch[:0]
	for i := range turn {
		if !turn[i].c.isSealed() {
			batch = append(batch, turn[i].record())
		}
	}
	err := a.s.m.store.Append(ctx, a.s.lease, batch)
	if err == nil && a.s.m.opts.Observers != nil {
		observeAppended(turn, batch)
	}
	clear(batch)
	if a.batch = batch[:0]; cap(batch) > roomKept {
		a.batch = nil
	}
	if err == nil {
		for i := range turn {
			if turn[i].last {
				a.streamEnded(&turn[i])
			}
			a.s.wakeWatchers(turn[i].number)
		}
		return
	}
	for i := range turn {
		if !turn[i].c.isSealed() && !turn[i].note {
			turn[i].c.seq--
		}
	}
	if a.losesSession(err) {
		a.giveUp(rest, err)
	} else {
		a.oneByOne(ctx, rest, n)
	}
}

// record numbers a message.
func (x *queuedEntry) record() stream.Record {
	r := stream.Record{Number: x.number, Note: x.note, Entry: stream.Entry{Data: x.data, Last: x.last}}
	if !x.note {
		x.c.seq++
		r.Seq = x.c.seq
	}
	return r
}

// streamEnded ends a stream that has its last entry.
func (a *appender) streamEnded(x *queuedEntry) {
	if x.c.hasJournal() {
		return // nobody reads it
	}
	a.s.dispatchWebhooks(x.number, a.s.streams.remove(x.number))
}

// oneByOne puts the first n messages of rest, which were refused together, into the
// store one by one, so that only those suffer that can't be kept.
func (a *appender) oneByOne(ctx context.Context, rest []queuedEntry, n int) {
	for i := range n {
		x := &rest[i]
		if x.c.isSealed() {
			continue
		}
		var err error
		if x.note {
			err = a.s.m.store.Append(ctx, a.s.lease, []stream.Record{x.record()})
		} else {
			err = a.put(ctx, x.c, x.number, stream.Entry{Data: x.data, Last: x.last})
		}
		switch {
		case a.losesSession(err):
			a.giveUp(rest[i:], err)
			return
		case err != nil:
			a.refused(ctx, rest[i:], err)
		case x.last:
			a.streamEnded(x)
			a.s.wakeWatchers(x.number)
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
		for i := range records {
			c.observeEntry(number, &records[i].Entry)
		}
	}
	return err
}

// refused ends the stream of the first message of turn, which the store did not
// take, in words small enough to be taken; if even they are not, who reads the
// stream is told from memory. On the standalone stream, which has no end, a
// response is replaced, and another message lost.
func (a *appender) refused(ctx context.Context, turn []queuedEntry, err error) {
	x := &turn[0]
	if errors.Is(err, stream.ErrNotFound) {
		x.c.seal() // the session is gone, and its readers know
		x.c.observeUnknown(x.number)
		if x.number != standalone {
			a.streamEnded(x)
		}
		return
	}
	if x.note && x.c.recovery != nil {
		x.c.recovery.failed = err
	}
	a.s.m.logger.Error("message not stored", "session", a.s.Name(), "stream", x.number, "error", err)
	var ids [][]byte
	switch {
	case x.c.hasJournal():
		return // if it is the note the call does not begin
	case x.number == standalone:
		if ids = responseID(ids, x); ids == nil {
			return
		}
	default:
		ids = a.unanswered(x.c, turn)
		x.c.mu.Lock()
		for f := range x.c.features {
			f.refused(x.c, ids, x.c.seq)
		}
		x.c.mu.Unlock()
		x.c.settleRefused(x.number, ids, x.note)
	}
	end := endings(ids, err)
	if x.number != standalone {
		x.c.seal()
		end[len(end)-1].Last = true
	}
	err = a.put(ctx, x.c, x.number, end...)
	switch {
	case a.losesSession(err):
		a.giveUp(turn, err)
		return
	case x.number == standalone:
	case err == nil:
		a.streamEnded(x)
		return
	default:
		x.c.endInMemory(end)
		x.c.observeUnknown(x.number)
		a.s.streams.wake(x.number)
		x.c.endUnstored(x.number)
		a.s.wakeWatchers(x.number)
	}
	if err != nil {
		a.s.m.logger.Error("end of a call not stored", "session", a.s.Name(), "stream", x.number, "error", err)
	}
}

// endings returns what a call is told of whose answers, to requests with the ids,
// could not be kept.
func endings(ids [][]byte, err error) []stream.Entry {
	end := []stream.Entry{{}} // a cancelled call ends in silence
	for i, id := range ids {
		end = append(end[:i], stream.Entry{Data: jsonrpc.AppendError(nil, id, outcomeUnknown("what the server said could not be kept: %s", cmp.Or(StoreErrorText(err), "the store refused it")))})
	}
	return end
}

// StoreErrorText says what clients are told of an error of the store, which may have the
// engine's address in it; "" if it is another error.
func StoreErrorText(err error) string {
	switch {
	case errors.Is(err, stream.ErrFull):
		return "the store is full (--memory, or the bound of the engine)"
	case errors.Is(err, stream.ErrTooLarge):
		return stream.ErrTooLarge.Error()
	case errors.Is(err, stream.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return "the store does not answer"
	}
	return ""
}

// unanswered ends a call and returns the ids of its requests whose response is not
// in the store: turn is what is about to be appended.
func (a *appender) unanswered(c *Call, turn []queuedEntry) [][]byte {
	c.mu.Lock()
	var ids [][]byte
	for _, rq := range c.pending {
		ids = append(ids, []byte(rq.id))
	}
	c.pending = nil
	c.end()
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
func responseID(ids [][]byte, x *queuedEntry) [][]byte {
	if x.note {
		return ids
	}
	if id := jsonrpc.Field(x.data, "id"); id != nil && jsonrpc.Field(x.data, "method") == nil {
		return append(ids, id)
	}
	return ids
}

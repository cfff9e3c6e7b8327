package journal

import (
	"context"
	"errors"
	"sync"

	"holdfast/stream"
)

const (
	// roomKept is how many queued entries an idle log keeps room for.
	roomKept = 4

	// mostTurn is how many bytes go into one append of more than one entry.
	mostTurn = 512 << 10

	// mostTurns is how often one goroutine appends the entries of others before another takes its place.
	mostTurns = 16
)

// A Log puts the entries of a session's writers into the store. Its methods may be called concurrently, after [Log.Init].
type Log[W Writer] struct {
	owner Owner[W]
	opts  *Options

	mu      sync.Mutex
	waiting []Entry[W]
	bytes   int           // that are queued, or being appended
	space   chan struct{} // closed when there is room again; nil if no goroutine waits for that
	busy    bool          // a goroutine appends
	holders int           // calls of InOneAppend that have yet to queue all: nothing is appended until then

	// Used only by the goroutine that appends.
	spare    []Entry[W]
	batch    []stream.Record
	unstored []Entry[W] // while the owner is told of a failure
}

// Init makes l the log of a session.
func (l *Log[W]) Init(owner Owner[W], opts *Options) { l.owner, l.opts = owner, opts }

// Queue adds an entry to the next append. Flush must follow, when no lock is held.
func (l *Log[W]) Queue(x Entry[W]) {
	l.mu.Lock()
	l.waiting = append(l.waiting, x)
	l.bytes += len(x.Data)
	l.mu.Unlock()
	if l.opts.Count != nil {
		l.opts.Count(int64(len(x.Data)))
	}
}

// Flush appends all queued entries, unless another goroutine is appending: then it
// waits only if too many bytes are queued.
func (l *Log[W]) Flush() {
	l.mu.Lock()
	for l.busy || l.holders > 0 {
		if l.bytes <= l.opts.MostQueued || l.holders > 0 || !l.isHere() {
			l.mu.Unlock()
			return
		}
		if l.space == nil {
			l.space = make(chan struct{})
		}
		room := l.space
		l.mu.Unlock()
		<-room
		l.mu.Lock()
	}
	l.busy = true
	l.drain(mostTurns)
}

// isHere reports whether the session is on this node.
func (l *Log[W]) isHere() bool {
	_, ok := l.owner.Lease()
	return ok
}

// InOneAppend makes one append of the entries that f queues, as far as they fit into one, if no goroutine is
// appending. Several calls may run at a time: the last of them appends for all.
func (l *Log[W]) InOneAppend(f func()) {
	l.mu.Lock()
	l.holders++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.holders--
		l.mu.Unlock()
		l.Flush()
	}()
	f()
}

// IsIdle reports whether nothing is queued, or being appended.
func (l *Log[W]) IsIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.busy && l.holders == 0 && len(l.waiting) == 0
}

// Queued is how many bytes are queued, or being appended.
func (l *Log[W]) Queued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// Slim gives back the memory for entries that wait.
func (l *Log[W]) Slim() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.busy && len(l.waiting) == 0 {
		l.waiting, l.spare, l.batch = nil, nil, nil
	}
}

// EachUnstored calls do with the entries of a writer that are not in the store. Only methods of the owner that
// are told of a failure may call it.
func (l *Log[W]) EachUnstored(by W, do func(x *Entry[W])) {
	each := func(all []Entry[W]) {
		for i := range all {
			if all[i].By == by {
				do(&all[i])
			}
		}
	}
	each(l.unstored)
	l.mu.Lock()
	defer l.mu.Unlock()
	each(l.waiting)
}

// drain appends the queued entries, and after some turns leaves that to a goroutine
// of its own. l.mu is held, and is not when it returns.
func (l *Log[W]) drain(turns int) {
	for len(l.waiting) > 0 {
		if turns--; turns == 0 && l.opts.Go(l.drainAll) {
			l.mu.Unlock()
			return
		}
		turn := l.waiting
		l.waiting = l.spare[:0]
		l.mu.Unlock()
		for rest := turn; ; {
			n, size := portion(rest)
			l.append(rest, n)
			l.release(rest[:n], size)
			l.mu.Lock()
			if l.bytes -= size; l.bytes <= l.opts.MostQueued {
				l.giveRoom()
			}
			if rest = rest[n:]; len(rest) == 0 {
				break
			}
			l.mu.Unlock()
		}
		l.spare = turn
	}
	if cap(l.spare)+cap(l.waiting) > 2*roomKept {
		l.spare, l.waiting = nil, nil
	}
	l.busy = false
	l.giveRoom() // a goroutine that waits for it can append
	l.mu.Unlock()
}

// drainAll goes on where another goroutine has stopped.
func (l *Log[W]) drainAll() {
	l.mu.Lock()
	l.drain(-1)
}

// portion says how many entries go into the next append, and how many bytes they
// have.
func portion[W Writer](turn []Entry[W]) (n, size int) {
	for n < len(turn) {
		if n > 0 && size+len(turn[n].Data) > mostTurn && !turn[n-1].Joined {
			break
		}
		size += len(turn[n].Data)
		n++
	}
	return n, size
}

// release drops entries that were appended, or will not be, and have size bytes.
func (l *Log[W]) release(turn []Entry[W], size int) {
	for i := range turn {
		if turn[i].Done != nil {
			close(turn[i].Done)
		}
	}
	clear(turn)
	if l.opts.Count != nil {
		l.opts.Count(-int64(size))
	}
}

// giveRoom wakes the goroutines that wait for room. l.mu is held.
func (l *Log[W]) giveRoom() {
	if l.space != nil {
		close(l.space)
		l.space = nil
	}
}

// bounded returns the context of one append.
func (l *Log[W]) bounded() (context.Context, context.CancelFunc) {
	if l.opts.Timeout == 0 {
		return l.opts.Context, noStop
	}
	return context.WithTimeout(l.opts.Context, l.opts.Timeout)
}

// noStop stops nothing. A function literal in a generic method is allocated each time.
func noStop() {}

// append puts the first n entries of rest into the store.
func (l *Log[W]) append(rest []Entry[W], n int) {
	lease, ok := l.owner.Lease()
	if !ok {
		l.lost(rest[:n], nil)
		return
	}
	ctx, stop := l.bounded()
	defer stop()
	turn, batch := rest[:n], l.batch[:0]
	for i := range turn {
		if t := turn[i].By.Track(); !t.sealed {
			batch = append(batch, turn[i].record(t))
		}
	}
	err := l.opts.Append(ctx, lease, batch)
	if err == nil {
		l.stored(turn, batch)
	} else {
		takeBack(turn)
	}
	clear(batch)
	if l.batch = batch[:0]; cap(batch) > roomKept {
		l.batch = nil
	}
	switch {
	case err == nil:
	case l.loses(err):
		l.lost(rest, err)
	default:
		l.oneByOne(ctx, lease, rest, n)
	}
}

// record numbers an entry of the track, and returns its record.
func (x *Entry[W]) record(t *Track) stream.Record {
	r := stream.Record{Number: x.Number, Note: x.Note, Entry: stream.Entry{Data: x.Data, Last: x.Last}}
	if !x.Note {
		t.seq++
		r.Seq = t.seq
	}
	return r
}

// stored tells the owner that the store has a turn, as batch.
func (l *Log[W]) stored(turn []Entry[W], batch []stream.Record) {
	for i := range turn {
		if !turn[i].By.Track().sealed {
			l.owner.Stored(turn[i].By, &batch[0])
			batch = batch[1:]
		}
	}
}

// takeBack takes back the numbers of entries that were refused.
func takeBack[W Writer](turn []Entry[W]) {
	for i := range turn {
		if t := turn[i].By.Track(); !t.sealed && !turn[i].Note {
			t.seq--
		}
	}
}

// oneByOne puts the first n entries of rest, which were refused together, into the
// store one by one, so that only the entries suffer that can't be kept.
func (l *Log[W]) oneByOne(ctx context.Context, lease stream.Lease, rest []Entry[W], n int) {
	for i := range n {
		x := &rest[i]
		t := x.By.Track()
		if t.sealed {
			continue
		}
		err := l.put(ctx, lease, x.By, x.record(t))
		if err == nil {
			continue
		}
		takeBack(rest[i : i+1])
		if !l.loses(err) {
			err = l.refused(ctx, lease, rest[i:], err)
		}
		if l.loses(err) {
			l.lost(rest[i:], err)
			return
		}
	}
}

// put appends records of a writer, all or none.
func (l *Log[W]) put(ctx context.Context, lease stream.Lease, by W, records ...stream.Record) error {
	err := l.opts.Append(ctx, lease, records)
	if err == nil {
		for i := range records {
			l.owner.Stored(by, &records[i])
		}
	}
	return err
}

// refused puts the entries of [Owner.Refused] into the place of the first entry of rest, which the store did
// not take. Its error says why the store did not take these either.
func (l *Log[W]) refused(ctx context.Context, lease stream.Lease, rest []Entry[W], err error) error {
	x := &rest[0]
	t := x.By.Track()
	t.sealed = errors.Is(err, stream.ErrNotFound)
	l.unstored = rest
	defer func() { l.unstored = nil }()
	instead := l.owner.Refused(x, err)
	if len(instead) == 0 {
		return nil
	}
	t.sealed = t.sealed || instead[len(instead)-1].Last
	records := make([]stream.Record, len(instead))
	for i := range instead {
		instead[i].Seq = t.seq + 1 + uint64(i)
		records[i] = stream.Record{Number: x.Number, Entry: instead[i]}
	}
	if err = l.put(ctx, lease, x.By, records...); err == nil {
		t.seq += uint64(len(records))
	} else if !l.loses(err) {
		l.owner.Unkept(x, instead, err)
	}
	return err
}

// loses reports whether nothing can be appended any more.
func (l *Log[W]) loses(err error) bool { return err != nil && l.opts.Loses != nil && l.opts.Loses(err) }

// lost tells the owner that entries will not be stored.
func (l *Log[W]) lost(rest []Entry[W], err error) {
	l.unstored = rest
	l.owner.Lost(rest, err)
	l.unstored = nil
}

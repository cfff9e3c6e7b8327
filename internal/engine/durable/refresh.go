package durable

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"holdfast/stream"
)

const (
	refreshers = 16        // sessions whose frames are appended again at a time
	chunk      = 256 << 10 // about the largest frame that repeats entries of several
)

// refreshAll keeps what has not ended from expiring, and frames that nobody needs
// from piling up.
func (st *Store) refreshAll() {
	tick := func() time.Duration { return max(st.log.Retention()/32, 10*time.Millisecond) }
	t := time.NewTimer(tick())
	defer t.Stop()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	w := watch{began: time.Now()}
	for {
		select {
		case <-st.ctx.Done():
			return
		case s := <-st.heavy:
			st.report(s, "trim", st.trim(s))
		case <-look.C:
			// An engine on this machine takes what it has for older by now, and drops it.
			if now := time.Now(); w.jumped(now.Round(0), now.Sub(w.began)) > st.log.Retention()/8 {
				st.o.Logger.Warn("the clock has jumped: what the engine keeps of sessions is written again")
				st.refreshOlder(time.Nanosecond)
			}
		case <-t.C:
			st.refreshOlder(st.log.Retention() / 2)
			t.Reset(tick())
		}
	}
}

// A watch is how far the wall clock was ahead of the one that nobody sets.
type watch struct {
	began time.Time
	ahead time.Duration
}

// jumped returns how far the wall clock has jumped ahead since the last time, when it
// is at wall, and the other has come as far as passed.
func (w *watch) jumped(wall time.Time, passed time.Duration) time.Duration {
	was := w.ahead
	w.ahead = wall.Sub(w.began.Round(0)) - passed
	return w.ahead - was
}

// refreshOlder appends again what is in frames older than that.
func (st *Store) refreshOlder(old time.Duration) {
	if old <= 0 {
		return // the engine does not know yet
	}
	before := st.clock() - old
	var due []*session
	st.mu.RLock()
	for _, s := range st.sessions {
		if at := s.stale.Load(); at != 0 && time.Duration(at) <= before && !s.lost.Load() {
			due = append(due, s)
		}
	}
	st.mu.RUnlock()
	var wg sync.WaitGroup
	next := make(chan *session)
	for range min(refreshers, len(due)) {
		wg.Go(func() {
			for s := range next {
				// What would be due soon goes with it.
				st.report(s, "refresh", st.refresh(s, before+old/4))
			}
		})
	}
	for _, s := range due {
		next <- s
	}
	close(next)
	wg.Wait()
}

// report says what has gone wrong, unless whoever appends next will notice.
func (st *Store) report(s *session, what string, err error) {
	if err != nil && !errors.Is(err, stream.ErrFenced) && st.ctx.Err() == nil {
		st.o.Logger.Log(st.ctx, levelOf(err), "what the engine keeps of a session: "+what, "session", s.lease.Session, "error", err)
	}
}

// levelOf is that of a line about an error. A store that is away has lines of its own, for all that it concerns.
func levelOf(err error) slog.Level {
	if errors.Is(err, stream.ErrUnavailable) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// refresh appends again what a session has in frames from before a time.
func (st *Store) refresh(s *session, before time.Duration) error {
	if err := s.wait(st.ctx); err != nil {
		return err
	}
	defer s.done()
	if s.lost.Load() {
		return nil
	}
	err := st.settle(st.ctx, s)
	if err == nil {
		err = st.rewrite(st.ctx, s, func(l *live) bool { return l.at <= before })
	}
	s.stale.Store(s.oldest())
	return err
}

// oldest returns when the oldest frame that is needed was written.
func (s *session) oldest() int64 {
	at := int64(0)
	for _, l := range s.live {
		if at == 0 || int64(l.at) < at {
			at = int64(l.at)
		}
	}
	return at
}

// lighten asks for a session's frames to be trimmed. It does not wait.
func (st *Store) lighten(s *session) {
	select {
	case st.heavy <- s:
	default: // the next append asks again
	}
}

// trim appends again what a session has that has not ended, and has the engine
// drop what is older and nobody needs.
func (st *Store) trim(s *session) error {
	if err := s.wait(st.ctx); err != nil {
		return err
	}
	defer s.done()
	if s.lost.Load() || s.written <= 2*st.o.SessionBytes {
		return nil
	}
	err := st.settle(st.ctx, s)
	if err == nil {
		err = st.rewrite(st.ctx, s, func(*live) bool { return true })
	}
	if err != nil {
		return err
	}
	s.stale.Store(s.oldest())
	before := s.ended.oldest(st.clock(), st.o.Keep, s.last)
	for _, l := range s.live {
		before = min(before, l.from)
	}
	s.written = 0
	return st.ask(st.ctx, func(ctx context.Context) error { return st.log.Trim(ctx, framesKey(s.lease.Session), before) })
}

// A rewriter appends entries again.
type rewriter struct {
	st    *Store
	s     *session
	ctx   context.Context
	body  []byte
	items uint64
	began map[uint64]live // the streams of which something was appended
	done  []uint64        // those of which all was, with this frame
}

// rewrite appends again what is kept of the streams that have not ended, and are
// to be.
func (st *Store) rewrite(ctx context.Context, s *session, which func(*live) bool) error {
	var numbers []uint64
	for number, l := range s.live {
		if which(l) {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	w := &rewriter{st: st, s: s, ctx: ctx, began: make(map[uint64]live)}
	for _, number := range numbers {
		if err := w.stream(number); err != nil {
			return err
		}
	}
	return w.flush()
}

// stream adds all of a stream.
func (w *rewriter) stream(number uint64) error {
	var records []stream.Record
	id := stream.ID{Session: w.s.lease.Session, Number: number}
	if oldest, next, err := w.st.front.Bounds(w.ctx, id); err == nil {
		after := stream.Cursor{Stream: id, Seq: oldest - 1}
		entries, err := w.st.front.Read(w.ctx, after, make([]stream.Entry, 0, next-oldest))
		if err != nil {
			return err
		}
		for _, e := range entries {
			records = append(records, stream.Record{Number: number, Entry: e})
		}
	}
	if note := w.s.live[number].note; note != nil {
		records = append(records, stream.Record{Number: number, Note: true, Entry: stream.Entry{Data: note}})
	}
	for i := range records {
		flags := byte(itemRepeated)
		if i == 0 {
			flags |= itemFirst
		}
		if i == len(records)-1 {
			flags |= itemWhole
		}
		if err := w.add(&records[i], flags); err != nil {
			return err
		}
	}
	w.done = append(w.done, number)
	return nil
}

// add adds one record, to a frame of its own if it must.
func (w *rewriter) add(r *stream.Record, flags byte) error {
	most := min(chunk, w.st.log.MaxFrame()-headRoom)
	if w.items > 0 && len(w.body)+itemRoom+len(r.Data) > most {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.body = appendItem(w.body, r, flags)
	w.items++
	if _, ok := w.began[r.Number]; !ok {
		w.began[r.Number] = live{}
	}
	return nil
}

// flush appends the frame.
func (w *rewriter) flush() error {
	if w.items == 0 {
		return nil
	}
	h := head{kind: frameItems, born: w.s.rec.born, epoch: w.s.lease.Epoch, items: w.items}
	frame := append(h.append(make([]byte, 0, headRoom+len(w.body))), w.body...)
	at := w.st.clock()
	if err := w.st.submit(w.ctx, w.s, frame, false); err != nil {
		if errors.Is(err, stream.ErrUnavailable) {
			w.s.unsettled = frame
		}
		return err
	}
	w.s.written += int64(len(frame))
	for number, l := range w.began {
		if l.from == 0 {
			w.began[number] = live{from: w.s.last, at: at}
		}
	}
	for _, number := range w.done {
		l := w.s.live[number]
		l.from, l.at = w.began[number].from, w.began[number].at
		delete(w.began, number)
	}
	w.body, w.items, w.done = w.body[:0], 0, w.done[:0]
	return nil
}

// places are where the streams of a session that have ended begin, until they are
// kept no longer: by when they ended, coarsely, for there may be many.
type places []ending

type ending struct {
	slot int64
	from uint64
}

// slot is a part of the time that finished streams are kept.
func slot(at, keep time.Duration) int64 { return int64(at / max(keep/8, 1)) }

// add adds a stream that ended at a time and begins at a place.
func (p *places) add(at, keep time.Duration, from uint64) {
	n := slot(at, keep)
	p.forget(n)
	if last := len(*p) - 1; last >= 0 && (*p)[last].slot >= n {
		(*p)[last].from = min((*p)[last].from, from)
		return
	}
	*p = append(*p, ending{n, from})
}

// forget forgets what was kept for long enough before a slot. What a node keeps of
// sessions that it took over it keeps for up to twice the time.
func (p *places) forget(n int64) {
	for len(*p) > 0 && (*p)[0].slot < n-17 {
		*p = (*p)[1:]
	}
}

// oldest returns the first place of those kept, or at least another place.
func (p *places) oldest(now, keep time.Duration, or uint64) uint64 {
	p.forget(slot(now, keep))
	for _, e := range *p {
		or = min(or, e.from)
	}
	return or
}

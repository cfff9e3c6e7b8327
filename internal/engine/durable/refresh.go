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
	refreshers = 16        // how many sessions are refreshed at a time
	chunk      = 256 << 10 // about the largest frame that repeats several entries
)

// refreshAll keeps streams that have not ended from expiring, and frames that are
// no longer needed from piling up.
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
			// To an engine on this machine its frames seem older by now, and it drops them.
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

// A watch remembers how far the wall clock was ahead of the monotonic clock.
type watch struct {
	began time.Time
	ahead time.Duration
}

// jumped returns how far the wall clock has jumped ahead since the last call: now it
// shows wall, and the monotonic clock has advanced by passed since began.
func (w *watch) jumped(wall time.Time, passed time.Duration) time.Duration {
	was := w.ahead
	w.ahead = wall.Sub(w.began.Round(0)) - passed
	return w.ahead - was
}

// refreshOlder appends live streams again that are in frames older than old.
func (st *Store) refreshOlder(old time.Duration) {
	if old <= 0 {
		return // the engine does not know its retention yet
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
				// Streams that would be due soon go with these.
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

// report logs an error, unless it is ErrFenced, which the next append returns.
func (st *Store) report(s *session, what string, err error) {
	if err != nil && !errors.Is(err, stream.ErrFenced) && st.ctx.Err() == nil {
		st.o.Logger.Log(st.ctx, levelOf(err), "what the engine keeps of a session: "+what, "session", s.lease.Session, "error", err)
	}
}

// levelOf returns the level of a log line about an error. Package outage logs a store that is away.
func levelOf(err error) slog.Level {
	if errors.Is(err, stream.ErrUnavailable) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// refresh appends a session's live streams again that are in frames from before a
// time.
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

// oldest returns when the oldest frame that live streams need was written, or 0.
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
	default: // the next append tries again
	}
}

// trim appends a session's live streams again, and has the engine drop older frames
// that are no longer needed.
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
	began map[uint64]live // where streams begin that are not in done yet; zero until their first frame is appended
	done  []uint64        // the streams that are whole with this frame
}

// rewrite appends each live stream again that which selects: its entries and its
// note.
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

// stream adds the entries of a stream that are kept, and its note.
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

// add adds one record; if the frame would get too large, it appends that first.
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

// places are where ended streams of a session begin, until they are kept no longer.
// There may be many, so they are kept by slots of the time when they ended.
type places []ending

type ending struct {
	slot int64
	from uint64
}

// slot returns the number of a slot, an eighth of the time that ended streams are
// kept.
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

// forget forgets the places of streams that ended long enough before slot n: a node
// keeps streams of sessions that it took over for up to twice the time.
func (p *places) forget(n int64) {
	for len(*p) > 0 && (*p)[0].slot < n-17 {
		*p = (*p)[1:]
	}
}

// oldest returns the lowest of the kept places and or.
func (p *places) oldest(now, keep time.Duration, or uint64) uint64 {
	p.forget(slot(now, keep))
	for _, e := range *p {
		or = min(or, e.from)
	}
	return or
}

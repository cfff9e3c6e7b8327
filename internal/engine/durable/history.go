package durable

import (
	"bytes"
	"context"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/stream"
)

// A history has the streams of a session, as its frames give them.
type history struct {
	st      *Store
	key     stream.SessionKey
	born    uint64
	began   bool
	last    uint64 // place of the last frame read
	epoch   uint64 // the newest epoch in the frames read
	taker   uint64 // stamp of the last frame, if that frame took the session over
	bytes   int64
	streams map[uint64]*streamHistory
}

// A streamHistory has the entries and the note of a stream.
type streamHistory struct {
	note    []byte
	entries []stream.Entry
	bytes   int64
	from    uint64         // the place of the oldest frame that the stream needs
	at      time.Time      // when that frame was put
	again   *streamHistory // the repetition of the stream that is being read; nil: none is
	ended   bool
	end     time.Time
}

func (st *Store) newHistory(key stream.SessionKey, born uint64) *history {
	return &history{st: st, key: key, born: born, streams: make(map[uint64]*streamHistory)}
}

// read reads the frames after h.last.
func (h *history) read(ctx context.Context) error {
	return h.st.log.Frames(ctx, framesKey(h.key), h.last, func(at uint64, age time.Duration, frame []byte) bool {
		h.frame(at, age, frame)
		return true
	})
}

// A recentReader is a Log that can read frames at a lower cost than Log.Frames. The frames
// appended just now may be missing at the end.
type recentReader interface {
	Recent(ctx context.Context, key string, after uint64, yield func(at uint64, age time.Duration, frame []byte) bool) error
}

// readRecent is read, but that the newest frames may be missing.
func (h *history) readRecent(ctx context.Context) error {
	log, ok := h.st.log.Log.(recentReader)
	if !ok {
		return h.read(ctx)
	}
	return log.Recent(ctx, framesKey(h.key), h.last, func(at uint64, age time.Duration, frame []byte) bool {
		h.frame(at, age, frame)
		return true
	})
}

// frame takes the next frame.
func (h *history) frame(at uint64, age time.Duration, frame []byte) {
	put := time.Now().Add(-max(age, 0))
	own := false
	parsed, err := h.parse(frame, func(x item) {
		own = true
		h.item(at, put, x)
	})
	switch {
	case err != nil:
		h.st.o.Logger.Error("frame of a session can't be read: what it held is missing",
			"session", h.key, "frame", at, "error", err)
	case h.began && parsed.prev != h.last:
		// Sequences tell which streams it concerns: those are cut where they have a gap.
		h.st.o.Logger.Error("frames of a session are missing",
			"session", h.key, "after", h.last, "frame", at, "follows", parsed.prev)
	}
	h.began, h.last, h.taker = true, at, 0
	if err != nil || parsed.born != h.born {
		return
	}
	h.epoch = max(h.epoch, parsed.epoch)
	h.taker = parsed.stamp
	if own {
		h.bytes += int64(len(frame))
	}
}

// parse decodes a frame, and yields its items if they are of this session.
func (h *history) parse(frame []byte, yield func(item)) (head, error) {
	parsed, err := parseFrame(frame, func(item) {})
	if err != nil || parsed.born != h.born {
		return parsed, err
	}
	if len(frame) > 64<<10 && parsed.items > 1 {
		// A small entry that is kept must not keep the whole frame in memory.
		return parseFrame(frame, func(x item) {
			x.Data = bytes.Clone(x.Data)
			yield(x)
		})
	}
	return parseFrame(frame, yield)
}

// item takes an item of the frame at a place.
func (h *history) item(at uint64, put time.Time, x item) {
	l := h.streams[x.Number]
	if l == nil {
		l = &streamHistory{from: at, at: put}
		h.streams[x.Number] = l
	}
	if l.ended {
		return // the frame repeats a stream that ended before the frame was appended
	}
	if x.flags&itemFirst != 0 {
		l.again = &streamHistory{from: at, at: put}
	}
	switch {
	case x.Note:
		l.note = x.Data
	case x.flags&itemRepeated != 0 && l.again != nil && l.again.precedes(&x):
		l.again.take(&x)
	default:
		l.again = nil
		h.entry(l, &x)
	}
	if x.flags&itemWhole != 0 && l.again != nil {
		l.renewed()
	}
	if x.Last {
		l.ended, l.end = true, put
		if time.Since(put) >= h.st.o.Keep {
			l.entries, l.note = nil, nil // the stream stays known, so that no later frame brings it back
		}
	}
}

// entry takes the next entry of a stream.
func (h *history) entry(l *streamHistory, x *item) {
	switch next := l.next(); {
	case l.precedes(x):
	case x.Seq < next:
		return // it is repeated
	default:
		h.st.o.Logger.Error("entries of a stream are missing: it is cut",
			"session", h.key, "stream", x.Number, "after", next-1, "next", x.Seq)
		l.entries, l.bytes = nil, 0
	}
	l.take(x)
	h.limit(l)
}

// precedes reports whether an entry is the next one of l, or the first.
func (l *streamHistory) precedes(x *item) bool { return l.next() == 0 || l.next() == x.Seq }

func (l *streamHistory) take(x *item) {
	l.entries = append(l.entries, x.Entry)
	l.bytes += int64(len(x.Data))
}

// renewed replaces a stream by its repetition, now that this is whole: the owner
// appends nothing else while it repeats a stream, so the repetition has all entries
// that are kept. Before that it is not used: the rest of it may never come.
func (l *streamHistory) renewed() {
	again := l.again
	if again.next() != 0 && again.next() < l.next() {
		l.again = nil // it does not have all entries that l has
		return
	}
	if len(again.entries) == 0 {
		again.entries, again.bytes = l.entries, l.bytes // only the note was repeated
	}
	again.note = l.note
	*l = *again
}

// limit drops a stream's oldest entries, as its writer did in memory.
func (h *history) limit(l *streamHistory) {
	most := h.st.o.StreamBytes
	if most <= 0 {
		most = 16 << 20
	}
	for l.bytes > most && len(l.entries) > 1 {
		l.bytes -= int64(len(l.entries[0].Data))
		l.entries = l.entries[1:]
	}
}

// next returns the sequence of the entry that follows; 0: any.
func (l *streamHistory) next() uint64 {
	if len(l.entries) == 0 {
		return 0
	}
	return l.entries[len(l.entries)-1].Seq + 1
}

// found returns the streams for memory, and adds live and ended ones to the session.
func (h *history) found(s *session) []memory.Loaded {
	var all []memory.Loaded
	now, clock := time.Now(), h.st.clock()
	for number, l := range h.streams {
		if len(l.entries) > 0 {
			all = append(all, memory.Loaded{Number: number, Entries: l.entries, Ended: l.end})
		}
		switch {
		case l.ended:
			s.ended.add(clock, h.st.o.Keep, l.from)
		case len(l.entries) > 0 || l.note != nil:
			if s.live == nil {
				s.live = make(map[uint64]*live)
			}
			s.live[number] = &live{note: l.note, from: l.from, at: clock - now.Sub(l.at)}
		}
	}
	s.stale.Store(s.oldest())
	return all
}

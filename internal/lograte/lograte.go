// Package lograte bounds the lines of a log: of lines with the same text, some are logged each minute, and
// the others are counted. So no client can fill a log, and no line is dropped without being counted.
package lograte

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// The bounds.
const (
	window    = time.Minute
	mostBad   = 30    // lines of one text, of level Warn or higher, in a window
	mostElse  = 1_000 // lines of level Info
	mostTexts = 1_000 // texts that are counted apart; all further texts share one count
)

// A Handler is a [slog.Handler] that passes lines on to another handler. Lines below Info are not bounded: an
// operator has asked for them.
type Handler struct {
	slog.Handler
	lines *lines
}

// lines are the counts of a log, which a handler shares with the handlers that were made from it.
type lines struct {
	out slog.Handler // for the counts of lines that were not logged

	mu   sync.Mutex
	last map[line]*count
	full time.Time // until then there is no room in last for more texts
}

// A line is the key of lines that count as the same.
type line struct {
	level slog.Level
	text  string // "": all texts beyond mostTexts
}

// A count counts the lines of one window.
type count struct {
	end   time.Time
	n     int // lines that were logged
	more  int // lines that were not
	timer *time.Timer
}

// New returns a handler that passes lines on to next, or next itself if it is a Handler.
func New(next slog.Handler) *Handler {
	if h, ok := next.(*Handler); ok {
		return h
	}
	return &Handler{Handler: next, lines: &lines{out: next, last: make(map[line]*count)}}
}

// WithAttrs implements [slog.Handler].
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{Handler: h.Handler.WithAttrs(attrs), lines: h.lines}
}

// WithGroup implements [slog.Handler].
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{Handler: h.Handler.WithGroup(name), lines: h.lines}
}

// Handle implements [slog.Handler].
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && !h.lines.pass(line{r.Level, r.Message}) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// pass counts a line, and reports whether to log it.
func (l *lines) pass(is line) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	c := l.last[is]
	if c == nil && !l.hasRoom(now) {
		is.text = ""
		c = l.last[is]
	}
	if c == nil {
		c = &count{}
		l.last[is] = c
	}
	if c.more == 0 && now.After(c.end) {
		c.end, c.n = now.Add(window), 0
	}
	most := mostElse
	if is.level >= slog.LevelWarn {
		most = mostBad
	}
	if c.n < most {
		c.n++
		return true
	}
	if c.more++; c.more == 1 {
		c.timer = time.AfterFunc(c.end.Sub(now), func() { l.tell(is) })
	}
	return false
}

// hasRoom reports whether there is room for another text. l.mu is held.
func (l *lines) hasRoom(now time.Time) bool {
	if len(l.last) < mostTexts {
		return true
	}
	if now.Before(l.full) {
		return false
	}
	l.full = now.Add(time.Second)
	for old, c := range l.last {
		if c.more == 0 && now.After(c.end) {
			delete(l.last, old)
		}
	}
	return len(l.last) < mostTexts
}

// tell logs how many lines were not logged, and begins a new window.
func (l *lines) tell(is line) {
	l.mu.Lock()
	c := l.last[is]
	if c == nil || c.more == 0 {
		l.mu.Unlock()
		return
	}
	more := c.more
	c.timer.Stop()
	delete(l.last, is)
	l.mu.Unlock()
	text := fmt.Sprintf("%s: and %d more in the last minute", is.text, more)
	if is.text == "" {
		text = fmt.Sprintf("and %d more lines of other texts in the last minute", more)
	}
	r := slog.NewRecord(time.Now(), is.level, text, 0)
	r.AddAttrs(slog.Int("lines", more))
	_ = l.out.Handle(context.Background(), r)
}

// Flush logs how many lines were not logged so far.
func (h *Handler) Flush() {
	h.lines.mu.Lock()
	var all []line
	for is, c := range h.lines.last {
		if c.more > 0 {
			all = append(all, is)
		}
	}
	h.lines.mu.Unlock()
	for _, is := range all {
		h.lines.tell(is)
	}
}

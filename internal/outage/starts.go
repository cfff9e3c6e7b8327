package outage

import (
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Starts is the [slog.Handler] of the log of a server that is started again and again, and knows whether its last start
// has failed: a start that fails as the one before is a line of level Debug, and so the log does not grow with the tries. All
// handlers that are made of one share that.
type Starts struct {
	slog.Handler
	s *starts
}

type starts struct {
	mu    sync.Mutex
	why   string // how the last start has failed; "": it has not
	since time.Time
	tries int // that have failed since then
}

// StartsOf returns the Starts of a logger: its handler if that is one, else a new one over it.
func StartsOf(log *slog.Logger) *Starts {
	if h, ok := log.Handler().(*Starts); ok {
		return h
	}
	return &Starts{log.Handler(), &starts{}}
}

// WithAttrs implements [slog.Handler].
func (h *Starts) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Starts{h.Handler.WithAttrs(attrs), h.s}
}

// WithGroup implements [slog.Handler].
func (h *Starts) WithGroup(name string) slog.Handler {
	return &Starts{h.Handler.WithGroup(name), h.s}
}

// Failed notes that a start has failed, and returns the level of the line about that: Error, or Debug if the one before
// has failed for the same reason. Words with a digit in them do not tell reasons apart: they may be times, addresses and numbers of
// processes. The status is such a reason by itself, whatever it is.
func (h *Starts) Failed(status, text string) slog.Level {
	words := strings.FieldsFunc(text, unicode.IsSpace)
	why := status
	for _, word := range words {
		if !strings.ContainsFunc(word, unicode.IsDigit) {
			why += " " + word
		}
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if h.s.why == "" {
		h.s.since, h.s.tries = time.Now(), 0
	}
	h.s.tries++
	if h.s.why == why {
		return slog.LevelDebug
	}
	h.s.why = why
	return slog.LevelError
}

// Failing reports whether the last start has failed.
func (h *Starts) Failing() bool {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.s.why != ""
}

// Worked notes that a start has succeeded. If the one before has failed it says so, and returns how many have, and since when.
func (h *Starts) Worked() (again bool, failed int, since time.Time) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	again = h.s.why != ""
	h.s.why = ""
	return again, h.s.tries, h.s.since
}

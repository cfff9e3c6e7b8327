package outagelog

import (
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Starts is the [slog.Handler] of the log of a server that is started again and again. It knows how the last start has
// failed: a start that fails as the one before gets a line of level Debug, so that the log does not grow with the tries.
// Handlers derived from one share that state.
type Starts struct {
	slog.Handler
	s *starts
}

type starts struct {
	mu    sync.Mutex
	why   string // status and words of the last failed start; "": the last start succeeded
	since time.Time
	tries int // starts that have failed since then
}

// StartsOf returns a logger's handler if that is a Starts, else a new Starts over it.
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

// Failed notes that a start has failed, and returns the level of the line about that: Error, or Debug if the start before has
// failed for the same reason. Words of text with a digit do not tell reasons apart: they may be times, addresses and process ids.
// The status always does.
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

// Worked notes that a start has succeeded. again says that the start before had failed; then failed is how many had, and since is
// when the first did.
func (h *Starts) Worked() (again bool, failed int, since time.Time) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	again = h.s.why != ""
	h.s.why = ""
	return again, h.s.tries, h.s.since
}

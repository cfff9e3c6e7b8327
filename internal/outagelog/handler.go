package outagelog

import (
	"context"
	"log/slog"
)

// A Handler is a [slog.Handler] that passes lines on to another one. While the dependency is away, lines with an error
// that says so become lines of level Debug: the Outage has logged that, and counts.
type Handler struct {
	slog.Handler
	of *Outage
	is func(error) bool
}

// Handler returns a handler over another one. is reports whether an error says that the dependency is away.
func (x *Outage) Handler(next slog.Handler, is func(error) bool) *Handler {
	return &Handler{Handler: next, of: x, is: is}
}

// WithAttrs implements [slog.Handler].
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{Handler: h.Handler.WithAttrs(attrs), of: h.of, is: h.is}
}

// WithGroup implements [slog.Handler].
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{Handler: h.Handler.WithGroup(name), of: h.of, is: h.is}
}

// Handle implements [slog.Handler].
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && h.says(&r) && h.of.Covers() {
		if !h.Enabled(ctx, slog.LevelDebug) {
			return nil
		}
		r.Level = slog.LevelDebug
	}
	return h.Handler.Handle(ctx, r)
}

// says reports whether a line has such an error.
func (h *Handler) says(r *slog.Record) (found bool) {
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		found = ok && h.is(err)
		return !found
	})
	return found
}

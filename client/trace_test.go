package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// trace keeps the log lines of the client, the server and the proxy, for a test that fails.
type trace struct {
	mu    sync.Mutex
	from  time.Time
	lines []string
}

func newTrace() *trace { return &trace{from: time.Now()} }

func (t *trace) addf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, fmt.Sprintf("%8.3f %s", time.Since(t.from).Seconds(), text))
}

// mostLines is how many lines of a trace a test prints.
const mostLines = 50

// print prints the end of the trace. All of it is an artifact of the test (-artifacts).
func (t *trace) print(tb testing.TB) {
	tb.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	tb.Log("trace ends:\n" + strings.Join(t.lines[max(0, len(t.lines)-mostLines):], "\n"))
	file := filepath.Join(tb.ArtifactDir(), "trace.txt")
	if err := os.WriteFile(file, []byte(strings.Join(t.lines, "\n")+"\n"), 0o600); err != nil {
		tb.Log(err)
	}
}

// logger returns a logger that writes to the trace.
func (t *trace) logger(who string) *slog.Logger { return slog.New(&tracing{t: t, who: who}) }

type tracing struct {
	t     *trace
	who   string
	attrs []slog.Attr
}

func (h *tracing) Enabled(context.Context, slog.Level) bool { return true }

func (h *tracing) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %s", h.who, r.Level, r.Message)
	for _, a := range h.attrs {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
	}
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	h.t.addf("%s", b.String())
	return nil
}

func (h *tracing) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &tracing{h.t, h.who, append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)}
}

func (h *tracing) WithGroup(string) slog.Handler { return h }

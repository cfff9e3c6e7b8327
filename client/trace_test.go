package client_test

import (
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
func (t *trace) logger(who string) *slog.Logger {
	return slog.New(slog.NewTextHandler(logTo(func(line string) { t.addf("%s: %s", who, line) }), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A logTo is the writer of a text log: it gets each line without the time.
type logTo func(line string)

func (f logTo) Write(p []byte) (int, error) {
	_, line, _ := strings.Cut(string(p), " ")
	f(strings.TrimSpace(line))
	return len(p), nil
}

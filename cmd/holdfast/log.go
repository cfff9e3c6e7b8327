package main

import (
	"log"
	"log/slog"
	"strings"

	"holdfast/internal/lograte"
)

// httpLog is the log of an HTTP server. Lines of one kind get one text, so that they are bounded together
// (internal/lograte).
type httpLog struct{}

// newHTTPLog returns the ErrorLog of an [net/http.Server].
func newHTTPLog() *log.Logger { return log.New(httpLog{}, "", 0) }

// Write implements [io.Writer].
func (httpLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if rest, ok := strings.CutPrefix(text, "http: TLS handshake error from "); ok {
		from, why, _ := strings.Cut(rest, ": ")
		slog.Warn("a TLS connection failed", "from", from, "error", why)
	} else {
		slog.Warn("the HTTP server reports an error", "error", text)
	}
	return len(line), nil
}

// flushLog logs how many lines were not logged.
func flushLog() {
	if h, ok := slog.Default().Handler().(*lograte.Handler); ok {
		h.Flush()
	}
}

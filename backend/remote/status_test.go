package remote_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/remote"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// atLeast returns the lines about the server at a level or above.
func atLeast(level slog.Level, log *mcptest.Log) (all []string) {
	for _, line := range log.Lines("upstream") {
		for _, is := range []slog.Level{slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			if is >= level && strings.Contains(line, "level="+is.String()) {
				all = append(all, line)
			}
		}
	}
	return all
}

// TestErrorStatus has a server answer with an error status for a moment: to all requests, or to calls alone while it answers
// other requests, such as initialize and pings. There is one WARN with the status and the number of requests, one INFO, and no
// line about lost sessions.
func TestErrorStatus(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 500, 502, 503, 504, 520} {
		for _, calls := range []bool{false, true} {
			t.Run(fmt.Sprint(status, " to calls only: ", calls), func(t *testing.T) {
				t.Parallel()
				if status != http.StatusInternalServerError {
					testlong.Only(t, "each takes a few seconds")
				}
				var log mcptest.Log
				var bad atomic.Bool
				w := begin(t, nil, func(s *mcp.Server) http.Handler {
					h := streamable(s)
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						body, err := io.ReadAll(r.Body)
						if err != nil {
							return
						}
						if bad.Load() && (!calls || strings.Contains(string(body), `"tools/call"`)) {
							w.WriteHeader(status)
							return
						}
						r.Body = io.NopCloser(strings.NewReader(string(body)))
						h.ServeHTTP(w, r)
					})
				})
				w.url = front(t, w.upstream, &remote.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, &holdfast.Options{Logger: slog.New(slog.DiscardHandler)})
				c := open(t, w.url)
				response(c.Post(t, tool("1", "count", `{"To":0}`)))
				bad.Store(true)
				const n = 3
				for i := range n {
					if status == http.StatusTooManyRequests {
						break // a call waits
					}
					id := fmt.Sprint(2 + i)
					if m := response(c.Post(t, tool(id, "count", `{"To":0}`))); m.Error == nil || !strings.Contains(string(m.Error), fmt.Sprintf("HTTP %d", status)) {
						t.Errorf("a call is answered with %s", m.Raw)
					}
				}
				if status == http.StatusTooManyRequests {
					time.AfterFunc(2500*time.Millisecond, func() { bad.Store(false) })
				} else {
					bad.Store(false)
				}
				response(c.Post(t, tool("9", "count", `{"To":0}`)))
				lines := 1
				if testlong.All() {
					lines = 2 // the second comes when the server has answered again for some seconds
				}
				deadline := time.Now().Add(patience)
				for len(atLeast(slog.LevelInfo, &log)) < lines && time.Now().Before(deadline) {
					time.Sleep(10 * time.Millisecond)
				}
				all := atLeast(slog.LevelInfo, &log)
				i := slices.IndexFunc(all, func(l string) bool {
					return strings.Contains(l, "level=WARN") && strings.Contains(l, fmt.Sprint(status)) && strings.Contains(l, "requests_refused=")
				})
				j := slices.IndexFunc(all, func(l string) bool { return strings.Contains(l, "level=INFO") && strings.Contains(l, "again") })
				if len(all) < lines {
					t.Fatalf("the log has\n%s", strings.Join(all, ""))
				}
				if i != 0 || lines == 2 && (len(all) != 2 || j != 1 || status != http.StatusTooManyRequests && !strings.Contains(all[1], fmt.Sprint("outcome_unknown=", n))) {
					t.Errorf("the log has\n%s", strings.Join(all, ""))
				}
			})
		}
	}
}

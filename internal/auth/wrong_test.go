package auth

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
)

// A request with a wrong token has a line in the log at once. While more come, there is one line a minute with their number. A
// request without a token has no line, and no line contains a token.
func TestWrongTokensLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log mcptest.Log
		var keys Keys
		keys.all.Store(&[]key{})
		p := &Policy{Keys: &keys, Log: slog.New(slog.NewTextHandler(&log, nil))}
		h := Require(func(*http.Request) *Policy { return p }, nil)(http.NotFoundHandler())
		ask := func(authorization string) {
			r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
			r.RemoteAddr = "192.0.2.7:1234"
			if authorization != "" {
				r.Header.Set("Authorization", authorization)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusUnauthorized {
				t.Errorf("%q: %d", authorization, w.Code)
			}
		}
		want := func(want ...string) {
			t.Helper()
			synctest.Wait()
			got := log.TakeLines()
			if len(got) != len(want) {
				t.Fatalf("%d lines, want %d: %q", len(got), len(want), got)
			}
			for i, line := range got {
				if !strings.Contains(line, "level=INFO") || !strings.Contains(line, want[i]) || !strings.Contains(line, "192.0.2.7") || strings.Contains(line, "secret") {
					t.Errorf("%s, want %s", line, want[i])
				}
			}
		}
		ask("")
		ask("Basic secret")
		want()
		ask("Bearer secret")
		want("tokens=1 ")
		for range 50 {
			ask("Bearer " + keyPrefix + "secret")
		}
		want()
		time.Sleep(wrongEvery + time.Second)
		want("tokens=50 ")
		time.Sleep(3 * wrongEvery)
		want()
		ask("Bearer secret")
		want("tokens=1 ")
		time.Sleep(2 * wrongEvery) // all timers have fired
	})
}

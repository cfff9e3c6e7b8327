package client_test

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A fickle server is out of reach for a time.
type fickle struct {
	from, to time.Time
}

func (f *fickle) RoundTrip(r *http.Request) (*http.Response, error) {
	if now := time.Now(); !now.Before(f.from) && now.Before(f.to) {
		return nil, errors.New("connection refused")
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	mcptest.Methods{}.ServeHTTP(w, r)
	answer := w.Result()
	answer.Request = r
	return answer, nil
}

// TestOutageIsLogged has a server out of reach while calls wait for it. The log has one line when it goes, with the number of waiting calls, and
// one when it is back.
func TestOutageIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log mcptest.Log
		now := time.Now()
		r := newRaw(t, "http://user:s3cret@server/mcp", client.Options{
			HTTPClient: &http.Client{Transport: &fickle{from: now.Add(time.Second), to: now.Add(11 * time.Second)}}, Transport: client.HTTP,
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		r.open()
		time.Sleep(2 * time.Second)
		for id := range 3 {
			r.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`, 1+id)
		}
		for range 3 {
			if m := r.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Response }); m.Result == nil {
				t.Errorf("received %s", m.Raw)
			}
		}
		time.Sleep(10 * time.Second)
		all := log.Lines("")
		if len(all) != 2 || !strings.Contains(all[0], `level=WARN msg="the server is out of reach: calls wait for it for up to `) || !strings.Contains(all[0], "url=http://server/mcp calls_waiting=3 ") ||
			!strings.Contains(all[1], `level=INFO msg="the server is reached again" url=http://server/mcp for=`) {
			t.Errorf("the log is\n%s", strings.Join(all, "\n"))
		}
		mcptest.Check(t, r.Close())
	})
}

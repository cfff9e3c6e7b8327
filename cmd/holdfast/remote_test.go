package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
)

// TestOutOfReach has no server at a URL, or one that is not ready: the error comes after the client has tried one
// request for some time. A server that answers, and does not know initialize, is asked whether it is a modern one.
func TestOutOfReach(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		status  int
		asked   bool
		timeout time.Duration
	}{
		"not ready": {http.StatusServiceUnavailable, false, time.Minute},
		"silent":    {0, false, 600 * time.Millisecond},
		"refuses":   {http.StatusBadRequest, true, time.Minute},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Bool
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if bytes.Contains(body, []byte(`"server/discover"`)) {
					asked.Store(true)
				}
				if tc.status == 0 {
					<-r.Context().Done()
					return
				}
				w.WriteHeader(tc.status)
			}))
			defer s.Close()
			conn := mcptest.Must(dial(s.URL, &client.Options{NoListen: true, Transport: client.HTTP, ConnectTimeout: tc.timeout, BeginWithin: 2 * time.Second}))(t)
			defer conn.Close()
			f := newRemoteFlags()
			if _, err := f.begin(t.Context(), conn, s.URL, nil); err == nil || outOfReach(err) == tc.asked {
				t.Errorf("it begins: %v", err)
			}
			if asked.Load() != tc.asked {
				t.Errorf("asked for its revisions: %v", asked.Load())
			}
		})
	}
}

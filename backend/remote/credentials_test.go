package remote_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/remote"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
)

// TestOwnCredentials has a server that refuses credentials which no client can change: each client gets 502
// without the server's challenge, and the log has one line. A client that sends its own credentials gets
// the server's status and challenge.
func TestOwnCredentials(t *testing.T) {
	t.Parallel()
	const challenge = `Bearer resource_metadata="https://upstream.example.com/.well-known/oauth-protected-resource"`
	discover := strings.Replace(tool("1", "count", `{"To":0}`), `"_meta":{`, `"_meta":{"`+protocol.MetaProtocolVersion+`":"2026-07-28","`+protocol.MetaClientCapabilities+`":{},`, 1)
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		for name, c := range map[string]struct {
			opts   remote.Options
			front  *holdfast.Options
			body   string
			socket bool
			theirs bool
			says   string // the text of the log; "": --upstream-header
		}{
			"Authorization":     {opts: remote.Options{Header: http.Header{"Authorization": {"Bearer s3cret"}}}, body: hello},
			"another header":    {opts: remote.Options{Header: http.Header{"X-Api-Key": {"s3cret"}}}, body: hello},
			"stateless":         {opts: remote.Options{Header: http.Header{"X-Api-Key": {"s3cret"}}}, front: &holdfast.Options{Stateless: true}, body: hello},
			"modern":            {opts: remote.Options{Header: http.Header{"Authorization": {"Bearer s3cret"}}}, body: discover},
			"over a WebSocket":  {opts: remote.Options{Header: http.Header{"Authorization": {"Bearer s3cret"}}}, body: hello, socket: true},
			"of a transport":    {opts: remote.Options{HTTPClient: &http.Client{Transport: tokens{}}}, body: hello, says: "--upstream-client-id"},
			"the client's":      {opts: remote.Options{PassAuthorization: true}, body: hello, theirs: true},
			"the client's, too": {opts: remote.Options{PassAuthorization: true, Header: http.Header{"X-Api-Key": {"s3cret"}}}, body: discover, theirs: true},
		} {
			t.Run(fmt.Sprint(name, status), func(t *testing.T) {
				t.Parallel()
				var log mcptest.Log
				var lets atomic.Bool
				c.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
				w := begin(t, nil, func(s *mcp.Server) http.Handler {
					h := streamable(s)
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if lets.Load() {
							h.ServeHTTP(w, r)
							return
						}
						w.Header().Set("WWW-Authenticate", challenge)
						w.WriteHeader(status)
					})
				})
				at := w.upstream
				if c.socket {
					at = "ws" + strings.TrimPrefix(at, "http")
				}
				w.url = front(t, at, &c.opts, c.front)
				ask := func(want int) {
					t.Helper()
					r := clientOf(w.url).Post(t, c.body)
					if got := r.Header.Get("WWW-Authenticate"); r.Status != want || (got == challenge) != c.theirs && want != http.StatusOK ||
						strings.Contains(r.Body, "s3cret") || strings.Contains(r.Body, strings.TrimPrefix(w.upstream, "http://")) {
						t.Errorf("status %d, want %d: %v %s", r.Status, want, r.Header, r.Body)
					}
				}
				want, logged := http.StatusBadGateway, 1
				if c.theirs {
					want, logged = status, 0
				}
				ask(want)
				ask(want)
				all := log.Lines("level=ERROR")
				if len(all) != logged || logged > 0 && (!strings.Contains(all[0], fmt.Sprint("status=", status)) || strings.Contains(all[0], "s3cret")) {
					t.Fatalf("the log has %q", all)
				}
				if says := cmp.Or(c.says, "--upstream-header"); logged > 0 && !strings.Contains(all[0], says) {
					t.Errorf("the log does not say what to do: %q", all)
				}
				if c.socket || c.theirs {
					return
				}
				lets.Store(true)
				ask(http.StatusOK)
				lets.Store(false)
				if c.front == nil && c.body == hello {
					ask(want)
					if n := len(log.Lines("level=ERROR")); n != 2 {
						t.Errorf("refused again, the log has %d lines", n)
					}
				}
			})
		}
	}
}

// tokens adds a token to requests, like client credentials.
type tokens struct{}

func (tokens) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer s3cret")
	return http.DefaultTransport.RoundTrip(r)
}

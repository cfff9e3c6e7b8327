package remote_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/remote"
	"holdfast/internal/mcptest"
)

// A gate is a network where messages with "narrow" do not reach the server until one with "broad" was
// sent. It keeps the Authorization of each message.
type gate struct {
	inner *http.Transport

	mu   sync.Mutex
	came map[string][]string
}

// RoundTrip implements [http.RoundTripper].
func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return g.inner.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	g.mu.Lock()
	for _, who := range []string{"narrow", "broad"} {
		if bytes.Contains(body, []byte(`"`+who+`"`)) {
			g.came[who] = append(g.came[who], r.Header.Get("Authorization"))
		}
	}
	away := len(g.came["broad"]) == 0 && bytes.Contains(body, []byte(`"narrow"`))
	g.mu.Unlock()
	if away {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	return g.inner.RoundTrip(r)
}

// Two clients of one principal share a session at the server, and in the legacy era also at Holdfast.
// When a call of one client is sent again after a call of the other, it has its own Authorization.
func TestAuthorizationOfEach(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"HTTP+SSE 2024-11-05", "no event store", "no sessions"} {
		for _, modern := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, modern %v", server, modern), func(t *testing.T) {
				t.Parallel()
				g := &gate{inner: http.DefaultTransport.(*http.Transport).Clone(), came: make(map[string][]string)}
				t.Cleanup(g.inner.CloseIdleConnections)
				w := begin(t, nil, servers[server])
				url := front(t, w.upstream, &remote.Options{PassAuthorization: true, HTTPClient: &http.Client{Transport: g}},
					&holdfast.Options{Principal: func(*http.Request) string { return "ada" }})
				narrow := clientOf(url, "Authorization", "Bearer of-narrow")
				meta := `"test/who":"%s"`
				if modern {
					meta += `,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`
				} else {
					narrow = open(t, url, narrow.Header...)
				}
				broad := clientOf(url, "Authorization", "Bearer of-broad")
				broad.Session = narrow.Session
				call := func(who string) string {
					return fmt.Sprintf(`{"jsonrpc":"2.0","id":"%s-1","method":"tools/call","params":{"name":"count","arguments":{"To":1},"_meta":{`+meta+`}}}`, who, who)
				}
				var both sync.WaitGroup
				both.Go(func() { response(narrow.Post(t, call("narrow"))) })
				for until := time.Now().Add(patience); g.times("narrow") == 0 && time.Now().Before(until); {
					time.Sleep(time.Millisecond)
				}
				both.Go(func() { response(broad.Post(t, call("broad"))) })
				both.Wait()
				for _, who := range []string{"narrow", "broad"} {
					for i, token := range g.came[who] {
						if token != "Bearer of-"+who {
							t.Errorf("the call of %s came with %q, the time %d of %d", who, token, i+1, len(g.came[who]))
						}
					}
				}
				if n := len(g.came["narrow"]); n < 2 {
					t.Errorf("the call of narrow was sent once: %q", g.came["narrow"])
				}
			})
		}
	}
}

// times returns how many messages that contain who have come.
func (g *gate) times(who string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.came[who])
}

// Over a WebSocket to the server, messages carry no Authorization: modern clients of one principal share
// a conversation only if they send the same Authorization.
func TestAuthorizationOfWebSocket(t *testing.T) {
	t.Parallel()
	var inner *holdfast.Handler
	w := begin(t, nil, func(s *mcp.Server) http.Handler {
		inner = holdfast.NewHandler(func(*http.Request) *mcp.Server { return s }, &holdfast.Options{Eras: holdfast.ErasBoth})
		return inner
	})
	mcptest.ShutDownAtEnd(t, inner, 2*time.Second)
	url := front(t, "ws"+strings.TrimPrefix(w.upstream, "http"), &remote.Options{PassAuthorization: true},
		&holdfast.Options{Principal: func(*http.Request) string { return "ada" }})
	for _, who := range []string{"narrow", "broad", "narrow"} {
		m := response(clientOf(url, "Authorization", "Bearer of-"+who).Post(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"To":1},"_meta":{`+
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`))
		if m.Result == nil {
			t.Errorf("%s: %s", who, m.Raw)
		}
	}
	if got := w.headers("Authorization"); len(got) != 2 || !got["Bearer of-narrow"] || !got["Bearer of-broad"] {
		t.Errorf("conversations began with %v", got)
	}
}

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

// A refusing is a server that can be told to refuse all requests with a status.
type refusing struct {
	URL    string
	status atomic.Int32 // 0: it refuses no request
}

// newRefusing starts a refusing in front of a server of both eras.
func newRefusing(t *testing.T) *refusing {
	t.Helper()
	s, pass := &refusing{}, passing(t, serve(t, "--demo", "--eras", "both").URL)
	s.URL = mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := s.status.Load(); status != 0 {
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="https://upstream.example.com"`)
			http.Error(w, "no", int(status))
			return
		}
		pass.ServeHTTP(w, r)
	}))
	return s
}

// TestOwnCredentialsRefused has a server refuse the credentials of Holdfast itself, at the beginning of a session and in the middle: in
// both eras, every request is answered with an error that says so, with status 502 unless a stream has begun. The log names the flag.
func TestOwnCredentialsRefused(t *testing.T) {
	t.Parallel()
	const token = "Authorization: Bearer s3cret"
	asked := map[string]string{
		"tools/list":     `{}`,
		"prompts/list":   `{}`,
		"resources/list": `{}`,
		"ping":           `{}`,
		"prompts/get":    `{"name":"none"}`,
		"resources/read": `{"uri":"file:///none"}`,
		"tools/call":     `{"name":"echo","arguments":{"text":"hello"}}`,
		"x/unknown":      `{}`,
	} // the params of a request of each kind
	for name, args := range map[string]func(t *testing.T, up string) []string{
		"upstream": func(_ *testing.T, up string) []string { return []string{"--upstream", up, "--upstream-header", token} },
		"stateless": func(_ *testing.T, up string) []string {
			return []string{"--upstream", up, "--upstream-header", token, "--stateless"}
		},
		"JSON": func(_ *testing.T, up string) []string {
			return []string{"--upstream", up, "--upstream-header", token, "--response", "json"}
		},
		"a file": func(t *testing.T, up string) []string {
			return []string{"--config", fileOf(t, fmt.Sprintf(`{"mcpServers": {"a": {"url": %q, "headers": {"Authorization": "Bearer s3cret"}, "holdfast": {"path": "/mcp"}}}}`, up))}
		},
		"merged": func(t *testing.T, up string) []string {
			return []string{"--config", fileOf(t, fmt.Sprintf(`{"mcpServers": {"a": {"url": %q, "headers": {"Authorization": "Bearer s3cret"}, "holdfast": {"prefix": ""}}}, "holdfast": {"merge": true}}`, up))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newRefusing(t)
			p := serve(t, append(args(t, up.URL+"/mcp"), "--eras", "both", "--upgrade-after", "1m")...) // no upgrade even on a slow machine
			at := strings.TrimSuffix(p.URL, "/a/mcp")
			if name == "merged" {
				at = "http://" + p.Addr + "/mcp"
			}
			for _, status := range []int32{0, http.StatusUnauthorized, http.StatusForbidden} {
				up.status.Store(0)
				session := ""
				if status != 0 { // else the server refuses from the beginning
					r := post(t, at, "x", "", begins)
					if session = r.Header.Get("Mcp-Session-Id"); r.Status != http.StatusOK {
						t.Fatalf("initialize: %d %s", r.Status, r.Body)
					}
				}
				up.status.Store(max(status, http.StatusUnauthorized))
				expectRefused(t, fmt.Sprint("initialize ", status), post(t, at, "x", "", begins), false)
				for method, params := range asked {
					if name == "merged" && (method == "ping" || strings.HasSuffix(method, "s/list") && method != "tools/list" || method == "resources/read") {
						continue // Holdfast answers these by itself, as the server has no such capability
					}
					what := fmt.Sprint(method, " ", status)
					if status != 0 {
						streams := !strings.HasPrefix(method, "tools/l") && (strings.HasPrefix(method, "tools/") || strings.HasPrefix(method, "x/")) &&
							name != "stateless" && name != "JSON"
						expectRefused(t, what, post(t, at, "x", session, fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":%q,"params":%s}`, method, params)), streams)
					}
					if method == "ping" {
						continue // 2026-07-28 has no ping
					}
					more := strings.TrimSuffix(params, "}")
					if more != "{" {
						more += ","
					}
					expectRefused(t, what+", modern", post(t, at, "x", "", fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":%q,"params":%s"_meta":{`+
						`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, method, more)), false)
				}
			}
			up.status.Store(0)
			if r := post(t, at, "x", "", begins); r.Status != http.StatusOK {
				t.Errorf("initialize, when nothing is refused: %d %s", r.Status, r.Body)
			}
			if log := p.log.String(); !strings.Contains(log, "--upstream-header") || strings.Contains(log, "s3cret") {
				t.Error("the log does not say what to do, or has a secret")
			}
		})
	}
}

// expectRefused checks the answer to a client that has no part in the refusal. streams says that the answer is a stream that has begun before.
func expectRefused(t *testing.T, what string, r mcptest.Reply, streams bool) {
	t.Helper()
	want := http.StatusBadGateway
	if streams {
		want = http.StatusOK
	}
	if r.Status != want || !strings.Contains(r.Body, "refuses the credentials that Holdfast has for it") || !strings.Contains(r.Body, `"error":{"code":-32000`) ||
		r.Header.Get("WWW-Authenticate") != "" || strings.Contains(r.Body, "s3cret") {
		t.Errorf("%s: %d %v %s, want %d", what, r.Status, r.Header, r.Body, want)
	}
}

// fileOf writes a file, and returns its name.
func fileOf(t *testing.T, text string) string {
	t.Helper()
	return authtest.Files(t, []byte(text))[0]
}

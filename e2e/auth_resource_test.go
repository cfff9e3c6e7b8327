package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/auth/authtest"
)

// TestAuthResource is --auth-resource with and without the path of an endpoint, a prefix, a port and slashes: what clients
// are told is the same URL, and a token for it is taken.
func TestAuthResource(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	for given, want := range map[string]struct{ resource, metadata string }{
		"https://mcp.example":                 {"https://mcp.example/mcp", "https://mcp.example/.well-known/oauth-protected-resource/mcp"},
		"https://mcp.example/":                {"https://mcp.example/mcp", "https://mcp.example/.well-known/oauth-protected-resource/mcp"},
		"https://mcp.example/mcp":             {"https://mcp.example/mcp", "https://mcp.example/.well-known/oauth-protected-resource/mcp"},
		"https://mcp.example/mcp/":            {"https://mcp.example/mcp", "https://mcp.example/.well-known/oauth-protected-resource/mcp"},
		"https://mcp.example/sse":             {"https://mcp.example/mcp", "https://mcp.example/.well-known/oauth-protected-resource/mcp"},
		"https://mcp.example:8443/mcp":        {"https://mcp.example:8443/mcp", "https://mcp.example:8443/.well-known/oauth-protected-resource/mcp"},
		"https://mcp.example/tools":           {"https://mcp.example/tools/mcp", "https://mcp.example/.well-known/oauth-protected-resource/tools/mcp"},
		"https://mcp.example/tools/mcp":       {"https://mcp.example/tools/mcp", "https://mcp.example/.well-known/oauth-protected-resource/tools/mcp"},
		"https://mcp.example/my%20tools/mcp/": {"https://mcp.example/my%20tools/mcp", "https://mcp.example/.well-known/oauth-protected-resource/my%20tools/mcp"},
		"https://mcp.example/mcp/mcp":         {"https://mcp.example/mcp/mcp", "https://mcp.example/.well-known/oauth-protected-resource/mcp/mcp"},
		"https://mcp.example/mcpx":            {"https://mcp.example/mcpx/mcp", "https://mcp.example/.well-known/oauth-protected-resource/mcpx/mcp"},
	} {
		t.Run(strings.TrimPrefix(given, "https://"), func(t *testing.T) {
			t.Parallel()
			p := serve(t, "--demo", "--auth-issuer", as.URL, "--auth-resource", given, "--auth-scopes", "mcp")
			initialize := func(at, token string) http.Response {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, at, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`))
				req.Header.Set("Content-Type", "application/json")
				if token != "" {
					req.Header.Set("Authorization", "Bearer "+token)
				}
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				return *res
			}
			for _, at := range []string{p.URL, p.URL + "/"} {
				if res := initialize(at, ""); res.StatusCode != http.StatusUnauthorized || !strings.Contains(res.Header.Get("WWW-Authenticate"), `resource_metadata="`+want.metadata+`"`) {
					t.Errorf("%s: %s %v", at, res.Status, res.Header)
				}
				if res := initialize(at, as.Token(authtest.Claims{"aud": want.resource, "scope": "mcp"})); res.StatusCode != http.StatusOK {
					t.Errorf("%s with a token: %s", at, res.Status)
				}
				if res := initialize(at, as.Token(authtest.Claims{"aud": "https://other.example/mcp", "scope": "mcp"})); res.StatusCode != http.StatusUnauthorized {
					t.Errorf("%s with a token of another: %s", at, res.Status)
				}
			}
			base := strings.TrimSuffix(p.URL, "/mcp")
			for _, at := range []string{"/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource/mcp/", strings.TrimPrefix(want.metadata, "https://"+strings.Split(want.metadata, "/")[2])} {
				res, err := http.Get(base + at)
				if err != nil {
					t.Fatal(err)
				}
				var said struct{ Resource string }
				if err := json.NewDecoder(res.Body).Decode(&said); err != nil || said.Resource != want.resource {
					t.Errorf("%s: %s %q %v", at, res.Status, said.Resource, err)
				}
				res.Body.Close()
			}
		})
	}
}

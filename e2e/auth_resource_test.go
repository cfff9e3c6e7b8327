package e2e

import (
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

// TestAuthResource gives --auth-resource with and without the path of an endpoint, a prefix, a port and slashes: the metadata has
// the URL of the endpoint, and a token for that URL is accepted.
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
			for _, at := range []string{p.URL, p.URL + "/"} {
				if r := post(t, at, "", "", begins); r.Status != http.StatusUnauthorized || !strings.Contains(r.Header.Get("WWW-Authenticate"), `resource_metadata="`+want.metadata+`"`) {
					t.Errorf("%s: %d %v", at, r.Status, r.Header)
				}
				if r := post(t, at, as.Token(authtest.Claims{"aud": want.resource, "scope": "mcp"}), "", begins); r.Status != http.StatusOK {
					t.Errorf("%s with a token: %d", at, r.Status)
				}
				if r := post(t, at, as.Token(authtest.Claims{"aud": "https://other.example/mcp", "scope": "mcp"}), "", begins); r.Status != http.StatusUnauthorized {
					t.Errorf("%s with a token of another: %d", at, r.Status)
				}
			}
			base := strings.TrimSuffix(p.URL, "/mcp")
			for _, at := range []string{"/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource/mcp/", strings.TrimPrefix(want.metadata, "https://"+strings.Split(want.metadata, "/")[2])} {
				r := mcptest.Must(mcptest.Exchange(t.Context(), http.MethodGet, base+at, ""))(t)
				var said struct{ Resource string }
				if err := r.Decode(&said); err != nil || said.Resource != want.resource {
					t.Errorf("%s: %d %q %v", at, r.Status, said.Resource, err)
				}
			}
		})
	}
}

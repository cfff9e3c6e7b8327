package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

// serveGuarded serves the demo for clients with a token for its URL.
func serveGuarded(t *testing.T, as *authtest.Server, args ...string) *program {
	t.Helper()
	at := testport.Addr(t)
	return serve(t, append([]string{"--demo", "--listen", at, "--auth-issuer", as.URL, "--auth-resource", "http://" + at, "--auth-scopes", "mcp"}, args...)...)
}

// TestAuthFlow has official clients come without a token: they follow the challenge to the
// metadata and the authorization server, get a token, and call a tool.
func TestAuthFlow(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	p := serveGuarded(t, as)
	for _, revision := range []string{"2025-11-25", ""} {
		if got := echoAuthorized(t, p.URL, revision); got != "hello" {
			t.Errorf("go-sdk, revision %q: %s", revision, got)
		}
	}
	t.Run("TypeScript", func(t *testing.T) {
		testlong.Only(t, "it starts node")
		npm(t, sdk1, sdk2)
		for _, c := range []struct {
			sdk  int
			mode string
		}{{1, ""}, {2, "auto"}, {2, "legacy"}} {
			config := mcptest.Must(json.Marshal(map[string]any{
				"url": p.URL, "sdk": c.sdk, "mode": c.mode, "tool": "echo", "arguments": map[string]any{"text": "hello"},
			}))(t)
			var got struct{ Refused, Authorize, Said string }
			unmarshal(t, run(t, "node", "clients/authorize.mjs", string(config)), &got)
			if !strings.HasPrefix(got.Authorize, as.URL+"/authorize?") || got.Said != "hello" {
				t.Errorf("sdk %d %s: %+v", c.sdk, c.mode, got)
			}
		}
	})
}

// echoAuthorized has the go-sdk's client get a token and call the tool echo. It returns the
// tool's text, or the error's.
func echoAuthorized(t *testing.T, at, revision string) string {
	t.Helper()
	const back = "http://127.0.0.1:1/callback"
	web := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	flow, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
		RedirectURL:                     back,
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{RedirectURIs: []string{back}}},
		AuthorizationCodeFetcher: func(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			r, err := (&mcptest.Client{URL: args.URL, HTTP: web}).Exchange(ctx, http.MethodGet, "")
			if err != nil {
				return nil, err
			}
			to, err := url.Parse(r.Header.Get("Location"))
			if err != nil {
				return nil, err
			}
			q := to.Query()
			return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := connectOfficial(t.Context(), &mcp.StreamableClientTransport{Endpoint: at, OAuthHandler: flow}, revision, nil)
	if err != nil {
		return fmt.Sprintf("connect: %v", err)
	}
	defer s.Close()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "hello"}})
	if err != nil {
		return err.Error()
	}
	return textOf(r)
}

// TestAuthPrincipal has a principal try another one's session, and the owner of the session use
// it with refreshed tokens.
func TestAuthPrincipal(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	p := serveGuarded(t, as)
	token := func(subject string) string {
		return as.Token(authtest.Claims{"sub": subject, "aud": p.URL, "scope": "mcp"})
	}
	send := func(method, token, session, last, body string) mcptest.Reply {
		t.Helper()
		return mcptest.Must(mcptest.Exchange(t.Context(), method, p.URL, body, "Mcp-Session-Id", session, "Last-Event-Id", last, "Authorization", token))(t)
	}
	const call = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"count","arguments":{"to":3},"_meta":{"progressToken":1}}}`
	begun := send(http.MethodPost, "Bearer "+token("ada"), "", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}`)
	session := begun.Header.Get("Mcp-Session-Id")
	if begun.Status != http.StatusOK || session == "" {
		t.Fatalf("initialize: %d", begun.Status)
	}
	first := send(http.MethodPost, "Bearer "+token("ada"), session, "", call)
	_, id, _ := strings.Cut(first.Body, "id: ")
	id, _, _ = strings.Cut(id, "\n")
	if id == "" {
		t.Fatal("the call's stream has no event id")
	}
	for _, c := range []struct {
		what, method, token, last string
		want                      int
	}{
		{"resume with a refreshed token", http.MethodGet, "Bearer " + token("ada"), id, http.StatusOK},
		{"call with a refreshed token", http.MethodPost, "Bearer " + token("ada"), "", http.StatusOK},
		{"another's call", http.MethodPost, "Bearer " + token("bob"), "", http.StatusNotFound},
		{"another's cursor", http.MethodGet, "Bearer " + token("bob"), id, http.StatusNotFound},
		{"another's end", http.MethodDelete, "Bearer " + token("bob"), "", http.StatusNotFound},
		{"no token", http.MethodPost, "", "", http.StatusUnauthorized},
		{"no token, cursor", http.MethodGet, "", id, http.StatusUnauthorized},
		{"basic", http.MethodPost, "Basic YTpi", "", http.StatusUnauthorized},
		{"end", http.MethodDelete, "Bearer " + token("ada"), "", http.StatusNoContent},
	} {
		body := ""
		if c.method == http.MethodPost {
			body = call
		}
		if resp := send(c.method, c.token, session, c.last, body); resp.Status != c.want {
			t.Errorf("%s: %d, want %d", c.what, resp.Status, c.want)
		}
	}
	// The same subject of another issuer is another principal. The issuer is not known, so its token is refused.
	if resp := send(http.MethodPost, "Bearer "+authtest.New(t).Token(authtest.Claims{"sub": "ada", "aud": p.URL, "scope": "mcp"}), session, "", call); resp.Status != http.StatusUnauthorized {
		t.Errorf("another issuer: %d", resp.Status)
	}
}

// TestAuthBrowser checks that Host and Origin of a web page's request are judged before its token.
func TestAuthBrowser(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	p := serveGuarded(t, as, "--allow-origin", "https://app.example.com")
	for _, c := range []struct {
		method, origin string
		want           int
	}{
		{http.MethodOptions, "https://app.example.com", http.StatusNoContent},
		{http.MethodPost, "https://app.example.com", http.StatusUnauthorized},
		{http.MethodPost, "https://evil.example.com", http.StatusForbidden},
	} {
		resp := mcptest.Must(mcptest.Exchange(t.Context(), c.method, p.URL, "", "Origin", c.origin))(t)
		allowed := resp.Header.Get("Access-Control-Allow-Origin") == c.origin && strings.Contains(resp.Header.Get("Access-Control-Expose-Headers"), "WWW-Authenticate")
		if resp.Status != c.want || allowed != (c.want != http.StatusForbidden) {
			t.Errorf("%s from %s: %d %v", c.method, c.origin, resp.Status, resp.Header)
		}
	}
	// A page whose own name leads to this address (DNS rebinding) makes requests without an Origin.
	if resp := mcptest.Post(t, p.URL, begins, "Host", "evil.example.com"); resp.Status != http.StatusForbidden || !strings.Contains(resp.Body, "Host") {
		t.Errorf("from another host: %d %s", resp.Status, resp.Body)
	}
}

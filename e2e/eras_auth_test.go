package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

// A guarded is a server of the go-sdk that demands a token of an authorization server.
type guarded struct {
	url     string
	as      *authtest.Server
	asked   atomic.Int32 // how often the metadata was requested
	expired sync.Map     // tokens that are not valid any more
}

// newGuarded starts a guarded, with or without sessions. resource is its URL for clients.
func newGuarded(t *testing.T, resource string, o *mcp.StreamableHTTPOptions) *guarded {
	t.Helper()
	g := &guarded{as: authtest.New(t)}
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		is := g.as.Verify(token)
		if _, expired := g.expired.Load(token); is == nil || expired {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: is["sub"].(string), Scopes: []string{"mcp"}, Expiration: time.Now().Add(time.Hour)}, nil
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "guarded", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "who"}, func(_ context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		return said(r.Extra.TokenInfo.UserID), nil, nil
	})
	metadata := auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{
		Resource: resource, AuthorizationServers: []string{g.as.URL}, ScopesSupported: []string{"mcp"},
	})
	mux := http.NewServeMux()
	web := mcptest.Serve(t, mux)
	g.url = web + "/mcp"
	mux.Handle("/mcp", auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{ResourceMetadataURL: web + "/resource", Scopes: []string{"mcp"}})(
		mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, o)))
	mux.HandleFunc("/resource", func(w http.ResponseWriter, r *http.Request) {
		g.asked.Add(1)
		metadata.ServeHTTP(w, r)
	})
	return g
}

// TestErasAuthorization has a server behind Holdfast that demands a token: clients get the
// server's challenge, follow it, and the server sees each as its own user.
func TestErasAuthorization(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*mcp.StreamableHTTPOptions{"legacy": nil, "modern": {Stateless: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := testport.Addr(t)
			g := newGuarded(t, "http://"+at+"/mcp", o)
			p := serve(t, "--listen", at, "--eras", "both", "--upstream", g.url, "--upstream-auth", "passthrough")
			_, challenge := challenged(t, g.url, "", false)
			if !strings.Contains(challenge, "resource_metadata=") {
				t.Fatalf("the server's challenge is %q", challenge)
			}
			for _, modern := range []bool{false, true} {
				for _, token := range []string{"", "Bearer bad"} {
					status, got := challenged(t, p.URL, token, modern)
					if _, want := challenged(t, g.url, token, modern); status != http.StatusUnauthorized || got != want {
						t.Errorf("modern %v, token %q: %d %q, want %q", modern, token, status, got, want)
					}
				}
			}
			for _, revision := range []string{"2025-11-25", ""} {
				for _, user := range []string{"ada", "bob"} { // their clients differ by their tokens only
					if got := g.whoAmI(t, p.URL, revision, user); got != user {
						t.Errorf("%s is %q at revision %q", user, got, revision)
					}
				}
			}
			for token, want := range map[string]int{"Bearer " + g.as.Token(nil): http.StatusOK, "": http.StatusUnauthorized, "Bearer bad": http.StatusUnauthorized} {
				for range 2 {
					if status, _ := challenged(t, p.URL, token, true); status != want {
						t.Errorf("token %q, after others were served: %d, want %d", token, status, want)
					}
				}
			}
			if g.asked.Load() != 0 {
				t.Error("somebody has asked for metadata")
			}
			t.Run("TypeScript", func(t *testing.T) {
				testlong.Only(t, "it starts node")
				npm(t, sdk1, sdk2)
				for _, c := range []struct {
					sdk  int
					mode string
				}{{1, ""}, {2, "auto"}, {2, "legacy"}} {
					config := mcptest.Must(json.Marshal(map[string]any{"url": p.URL, "sdk": c.sdk, "mode": c.mode, "tool": "who", "arguments": map[string]any{}}))(t)
					var got struct{ Refused, Authorize, Said string }
					unmarshal(t, run(t, "node", "clients/authorize.mjs", string(config)), &got)
					if !strings.Contains(got.Authorize, "/authorize?") || got.Said != g.as.Subject {
						t.Errorf("sdk %d %s: %+v", c.sdk, c.mode, got)
					}
				}
				if g.asked.Load() == 0 {
					t.Error("nobody has followed the challenge")
				}
			})
		})
	}
}

// challenged makes a client's first request, and returns the status and the challenge.
func challenged(t *testing.T, url, token string, modern bool) (status int, challenge string) {
	t.Helper()
	body := mcptest.Initialize("2025-11-25", "{}")
	if modern {
		body = mcptest.ModernRequest(1, "tools/list", "{}")
	}
	r := mcptest.Post(t, url, body, "Authorization", token)
	return r.Status, r.Header.Get("WWW-Authenticate")
}

// A tokens is an authorization flow that ends as soon as the server has challenged. Each time it gives
// another token of its user.
type tokens struct {
	as               *authtest.Server
	user             string
	challenge, token atomic.Pointer[string]
}

// TokenSource implements [auth.OAuthHandler].
func (o *tokens) TokenSource(context.Context) (oauth2.TokenSource, error) {
	if o.token.Load() == nil {
		return nil, nil //nolint:nilnil // the interface has it: no token yet
	}
	return oauth2.StaticTokenSource(&oauth2.Token{AccessToken: *o.token.Load()}), nil
}

// Authorize implements [auth.OAuthHandler].
func (o *tokens) Authorize(_ context.Context, _ *http.Request, resp *http.Response) error {
	challenge, token := resp.Header.Get("WWW-Authenticate"), o.as.Token(authtest.Claims{"sub": o.user})
	o.challenge.Store(&challenge)
	o.token.Store(&token)
	return resp.Body.Close()
}

// whoAmI has the go-sdk's client follow the challenge as a user, and returns the user that the
// server sees. The client's token expires between its two calls.
func (g *guarded) whoAmI(t *testing.T, url, revision, user string) string {
	t.Helper()
	flow := &tokens{as: g.as, user: user}
	s, err := connectOfficial(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, OAuthHandler: flow}, revision, nil)
	if err != nil {
		return fmt.Sprintf("connect: %v", err)
	}
	defer s.Close()
	if c := flow.challenge.Load(); c == nil || !strings.Contains(*c, "resource_metadata=") {
		t.Errorf("%s was not challenged: %v", user, c)
	}
	first, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "who"})
	if err != nil {
		return err.Error()
	}
	g.expired.Store(*flow.token.Load(), true)
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "who"})
	if err != nil {
		return "after its token has expired: " + err.Error()
	}
	if was := textOf(first); was != textOf(r) {
		return was + ", and then " + textOf(r)
	}
	return textOf(r)
}

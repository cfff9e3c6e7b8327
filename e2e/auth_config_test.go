package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testport"
)

// A recording is a server over HTTP that records the Authorization headers of its requests.
type recording struct {
	URL string

	mu   sync.Mutex
	seen []string // each value once
}

func recordTokens(t *testing.T) *recording {
	t.Helper()
	s := mcp.NewServer(&mcp.Implementation{Name: "recording", Version: "1"}, nil)
	for _, name := range []string{"read_it", "write_it"} {
		mcp.AddTool(s, &mcp.Tool{Name: name}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done " + name}}}, nil, nil
		})
	}
	r := &recording{}
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	r.URL = mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		if v := req.Header.Get("Authorization"); !slices.Contains(r.seen, v) {
			r.seen = append(r.seen, v)
		}
		r.mu.Unlock()
		h.ServeHTTP(w, req)
	}))
	return r
}

// got fails the test unless the server got these Authorization headers.
func (r *recording) got(t *testing.T, what string, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.seen)
	if !slices.Equal(r.seen, want) {
		t.Errorf("%s got %q, want %q", what, r.seen, want)
	}
}

// bearer returns the Authorization header of a token, or "" without a token.
func bearer(token string) string {
	if token == "" {
		return ""
	}
	return "Bearer " + token
}

// post posts a message with a token, of either era.
func post(t *testing.T, at, token, session, body string) mcptest.Reply {
	t.Helper()
	return mcptest.Post(t, at, body, "Authorization", bearer(token), "Mcp-Session-Id", session)
}

// openSession begins a session with a token, or without one.
func openSession(t *testing.T, at, token, capabilities string) string {
	t.Helper()
	c := &mcptest.Client{URL: at, Header: []string{"Authorization", bearer(token)}}
	mcptest.Check(t, c.Begin(t.Context(), mcptest.Initialize("2025-11-25", capabilities)))
	return c.Session
}

const begins = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}`

func calls(name string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"c-%s","method":"tools/call","params":{"name":%q,"arguments":{}}}`, name, name)
}

func callsModern(name string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"m-%s","method":"tools/call","params":{"name":"%s","arguments":{},"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, name, name)
}

// serveFile serves a configuration file at a free port. In arguments, $ADDR stands for the address.
func serveFile(t *testing.T, text string, args ...string) (base string) {
	t.Helper()
	at := testport.Addr(t)
	all := []string{"--config", fileOf(t, text), "--listen", at}
	for _, a := range args {
		all = append(all, strings.ReplaceAll(a, "$ADDR", at))
	}
	serve(t, all...)
	return "http://" + at
}

// newTokenEndpoint starts the token endpoint of an authorization server, for a client h. Its tokens
// repeat the parameters of the request; a token from an exchange also has the subject and the claim
// "level" of the exchanged token.
func newTokenEndpoint(t *testing.T, as *authtest.Server) (url string) {
	t.Helper()
	return mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		said := ""
		switch r.FormValue("grant_type") {
		case "client_credentials":
			said = "own " + r.FormValue("scope") + " " + r.FormValue("resource")
		case "urn:ietf:params:oauth:grant-type:token-exchange":
			if is := as.Verify(r.FormValue("subject_token")); is != nil {
				level, _ := is["level"].(string)
				said = strings.TrimSpace(fmt.Sprint("exchanged ", r.FormValue("audience"), " ", is["sub"], " ", level))
			}
		}
		w.Header().Set("Content-Type", "application/json")
		if id != "h" || secret != "s3cret" || said == "" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client"}`)
			return
		}
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"bearer","expires_in":600}`, strings.ReplaceAll(said, " ", "-"))
	}))
}

// TestAuthConfig has servers of a configuration file that demand scopes, for single tools too,
// and upstream servers for which Holdfast gets tokens of its own.
func TestAuthConfig(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	a, b, c := recordTokens(t), recordTokens(t), recordTokens(t)
	tokens := newTokenEndpoint(t, as)
	base := serveFile(t, fmt.Sprintf(`{
		"mcpServers": {
			"a": {"url": %q, "holdfast": {"auth": {"scopes": ["a"], "tools": {"write_*": ["w"]}}}},
			"b": {"url": %q, "holdfast": {"auth": {"upstream": {"clientCredentials": {"tokenUrl": %q, "clientId": "h", "clientSecret": "s3cret", "scopes": ["x"], "resource": "r"}}}}},
			"c": {"url": %q, "holdfast": {"auth": {"upstream": {"tokenExchange": {"tokenUrl": %q, "clientId": "h", "clientSecret": "s3cret", "audience": "c"}}}}},
		},
		"holdfast": {"merge": true},
	}`, a.URL, b.URL, tokens, c.URL, tokens),
		"--auth-issuer", as.URL, "--auth-resource", "http://$ADDR", "--auth-scopes", "mcp")
	token := func(subject, path, scope string) string {
		return as.Token(authtest.Claims{"sub": subject, "aud": base + path, "scope": scope})
	}
	begin := func(path, token string) string {
		t.Helper()
		r := post(t, base+path, token, "", begins)
		if r.Status != http.StatusOK {
			t.Fatalf("initialize at %s: %d %s", path, r.Status, r.Body)
		}
		return r.Header.Get("Mcp-Session-Id")
	}
	expect := func(what string, r mcptest.Reply, status int, says string) {
		t.Helper()
		challenge := r.Header.Get("WWW-Authenticate")
		if r.Status != status || !strings.Contains(r.Body+challenge, says) {
			t.Errorf("%s: %d %q %s; want %d and %q", what, r.Status, challenge, r.Body, status, says)
		}
	}
	expect("without the server's scope", post(t, base+"/a/mcp", token("ada", "/a/mcp", "mcp"), "", begins), http.StatusForbidden, `scope="a mcp"`)

	some, all := token("ada", "/a/mcp", "mcp a"), token("ada", "/a/mcp", "mcp a w")
	s := begin("/a/mcp", some)
	expect("a tool", post(t, base+"/a/mcp", some, s, calls("read_it")), http.StatusOK, "done read_it")
	needs := fmt.Sprintf(`Bearer resource_metadata="%s/.well-known/oauth-protected-resource/a/mcp", error="insufficient_scope", error_description="the token lacks a scope that is required", scope="a mcp w"`, base)
	expect("a tool with scopes", post(t, base+"/a/mcp", some, s, calls("write_it")), http.StatusForbidden, needs)
	expect("the same, modern", post(t, base+"/a/mcp", some, "", callsModern("write_it")), http.StatusForbidden, needs)
	expect("with the scope", post(t, base+"/a/mcp", all, s, calls("write_it")), http.StatusOK, "done write_it")
	expect("the same, modern", post(t, base+"/a/mcp", all, "", callsModern("write_it")), http.StatusOK, "done write_it")
	for body, says := range map[string]string{
		`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"write_it","name":"read_it"}}`:                  "stands twice",
		`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"read_it","Name":"write_it"}}`:                  `write \"name\"`,
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"NAME":"write_it"}}`:                                   `write \"name\"`,
		`{"jsonrpc":"2.0","id":8,"method":"tools/call","Params":{"name":"write_it"}}`:                                   "case of letters",
		`{"jsonrpc":"2.0","id":9,"method":"tools/list","params":{},"Method":"tools/call"}`:                              "case of letters",
		`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"write_it"}}`:                                          `tools/call has no \"id\"`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"name":"write_it"},"Method":"tools/call","ID":1}`: "case of letters",
	} {
		expect(body, post(t, base+"/a/mcp", some, s, body), http.StatusBadRequest, says)
	}
	expect("a session at another server", post(t, base+"/b/mcp", token("ada", "/b/mcp", "mcp a w"), s, calls("read_it")), http.StatusNotFound, "not found")
	expect("another's session", post(t, base+"/a/mcp", token("bob", "/a/mcp", "mcp a w"), s, calls("read_it")), http.StatusNotFound, "not found")

	some, all = token("ada", "/mcp", "mcp a"), token("ada", "/mcp", "mcp a w")
	expect("merged, without a server's scope", post(t, base+"/mcp", token("ada", "/mcp", "mcp"), "", begins), http.StatusForbidden, `scope="a mcp"`)
	s = begin("/mcp", some)
	expect("merged, a tool with scopes", post(t, base+"/mcp", some, s, calls("a_write_it")), http.StatusForbidden, `scope="a mcp w"`)
	expect("merged, with the scope", post(t, base+"/mcp", all, s, calls("a_write_it")), http.StatusOK, "done write_it")
	for _, server := range []string{"b", "c"} {
		expect("merged, "+server, post(t, base+"/mcp", some, s, calls(server+"_write_it")), http.StatusOK, "done write_it")
		own := token("ada", "/"+server+"/mcp", "mcp")
		expect("modern, "+server, post(t, base+"/"+server+"/mcp", own, "", callsModern("write_it")), http.StatusOK, "done write_it")
	}
	a.got(t, "a server without a token", "")
	b.got(t, "a server with client credentials", "Bearer own-x-r")
	c.got(t, "a server with token exchange", "Bearer exchanged-c-ada")
}

// TestAuthConfigPair has clients of revision 2024-11-05 at servers of a configuration file. A
// token for the URL of a server's stream is also good at the URL for that server's messages.
func TestAuthConfigPair(t *testing.T) {
	t.Parallel()
	as := authtest.New(t)
	behind := recordTokens(t)
	// c has the path that b's stream would have, so b has no stream.
	base := serveFile(t, fmt.Sprintf(`{"mcpServers": {
		"a": {"url": %q}, "b": {"url": %[1]q}, "c": {"url": %[1]q, "holdfast": {"path": "/b/sse"}},
	}}`, behind.URL), "--auth-issuer", as.URL, "--auth-resource", "http://$ADDR")
	for _, c := range []struct {
		to, audience string
		want         int
	}{
		{"/a/messages", "/a/sse", http.StatusNotFound}, // there is no such session
		{"/a/messages", "/a/messages", http.StatusUnauthorized},
		{"/a/messages", "/a/mcp", http.StatusUnauthorized},
		{"/a/messages", "/b/sse", http.StatusUnauthorized},
		{"/b/messages", "/b/sse", http.StatusUnauthorized}, // a token for c
	} {
		r := post(t, base+c.to+"?sessionId=none", as.Token(authtest.Claims{"aud": base + c.audience}), "", begins)
		if r.Status != c.want {
			t.Errorf("POST %s with a token for %s: %d %s, want %d", c.to, c.audience, r.Status, r.Body, c.want)
		}
	}
}

// TestAuthPassthrough has a client's token reach a server only where the file says so.
func TestAuthPassthrough(t *testing.T) {
	t.Parallel()
	passes, keeps := recordTokens(t), recordTokens(t)
	base := serveFile(t, fmt.Sprintf(`{"mcpServers": {"p": {"url": %q, "holdfast": {"auth": "passthrough"}}, "k": {"url": %q}}}`, passes.URL, keeps.URL))
	for _, server := range []string{"p", "k"} {
		at := base + "/" + server + "/mcp"
		s := post(t, at, "mine", "", begins).Header.Get("Mcp-Session-Id")
		for _, r := range []mcptest.Reply{post(t, at, "mine", s, calls("read_it")), post(t, at, "mine", "", callsModern("read_it"))} {
			if r.Status != http.StatusOK || !strings.Contains(r.Body, "done read_it") {
				t.Errorf("%s: %d %s", server, r.Status, r.Body)
			}
		}
	}
	passes.got(t, "a server with passthrough", "Bearer mine")
	keeps.got(t, "a server without", "")
}

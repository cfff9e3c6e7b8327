package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
)

// upstreamTokens returns the flags for an upstream server that gets tokens of a kind.
func upstreamTokens(t *testing.T, as *authtest.Server, server, kind string, more ...string) []string {
	t.Helper()
	return append([]string{
		"--upstream", server, "--upstream-auth", kind, "--upstream-token-url", newTokenEndpoint(t, as),
		"--upstream-client-id", "h", "--upstream-client-secret-file", fileOf(t, "s3cret\n"),
	}, more...)
}

// TestUpstreamClientCredentials has an upstream server that gets a token of Holdfast's own.
func TestUpstreamClientCredentials(t *testing.T) {
	t.Parallel()
	behind := recordTokens(t)
	p := serve(t, upstreamTokens(t, authtest.New(t), behind.URL, "client-credentials", "--upstream-scopes", "x", "--upstream-resource", "r")...)
	s := post(t, p.URL, "mine", "", begins).Header.Get("Mcp-Session-Id")
	for _, r := range []mcptest.Reply{post(t, p.URL, "mine", s, calls("read_it")), post(t, p.URL, "mine", "", callsModern("read_it"))} {
		if r.Status != http.StatusOK || !strings.Contains(r.Body, "done read_it") {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	}
	behind.got(t, "the server", "Bearer own-x-r")
}

// TestUpstreamTokenExchange has two nodes with an upstream server that gets tokens in exchange
// for those of clients. The session is at one node, and the client at the other.
func TestUpstreamTokenExchange(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		as, behind := authtest.New(t), recordTokens(t)
		g := newGuardedNodes(t, e, as, upstreamTokens(t, as, behind.URL, "token-exchange", "--upstream-audience", "u")...)
		token := func(subject, level string) string {
			return as.Token(authtest.Claims{"sub": subject, "aud": guardedAs + "/mcp", "scope": "mcp", "level": level})
		}
		for _, subject := range []string{"ada", "bob"} {
			s := post(t, g.one.URL, token(subject, "first"), "", begins).Header.Get("Mcp-Session-Id")
			for _, r := range []mcptest.Reply{
				post(t, g.two.URL, token(subject, "second"), s, calls("read_it")),
				post(t, g.two.URL, token(subject, "modern"), "", callsModern("read_it")),
			} {
				if r.Status != http.StatusOK || !strings.Contains(r.Body, "done read_it") {
					t.Errorf("%s: %d %s", subject, r.Status, r.Body)
				}
			}
		}
		var want []string
		for _, subject := range []string{"ada", "bob"} {
			for _, level := range []string{"first", "modern", "second"} {
				want = append(want, fmt.Sprintf("Bearer exchanged-u-%s-%s", subject, level))
			}
		}
		behind.got(t, "the server", want...)
		if r := post(t, g.one.URL, "none", "", begins); r.Status != http.StatusUnauthorized {
			t.Errorf("a client without a token: %d %s", r.Status, r.Body)
		}
	})
}

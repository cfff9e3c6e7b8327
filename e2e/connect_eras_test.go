package e2e

import (
	"maps"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	mcpclient "holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// connectCommand returns the command line that reaches a URL of the matrix through holdfast connect, or nil if the URL is another kind.
func connectCommand(t *testing.T, url string) []string {
	t.Helper()
	url, ok := strings.CutPrefix(url, "connect:")
	if !ok {
		return nil
	}
	mcptest.Check(t, build())
	return []string{built, "connect", "--state", t.TempDir(), "--log-level", "error", url}
}

// eraTransport returns the transport by which the go-sdk's client reaches a URL of the matrix.
func eraTransport(t *testing.T, url, revision string) mcp.Transport {
	t.Helper()
	if command := connectCommand(t, url); command != nil {
		return &mcp.CommandTransport{Command: exec.Command(command[0], command[1:]...)}
	}
	if url, ok := strings.CutPrefix(url, "library:"); ok {
		o := &holdfast.ClientOptions{Options: mcpclient.Options{Era: mcpclient.Modern}}
		if revision != "" {
			o.Era = mcpclient.Legacy
		}
		return holdfast.NewClientTransport(url, o)
	}
	return &mcp.StreamableClientTransport{Endpoint: url}
}

// reachedServers returns the servers that clients reach through holdfast connect, and through NewClientTransport.
func reachedServers() []eraPeer {
	over := func(eras holdfast.Era) func(t *testing.T) string {
		return func(t *testing.T) string { return servePeer(t, &eraPeer{}, &holdfast.Options{Eras: eras}) }
	}
	return []eraPeer{
		{name: "holdfast", checks: fixture(), url: over(holdfast.ErasBoth)},
		{name: "holdfast, legacy only", only: "legacy", checks: fixture(), url: over(holdfast.ErasLegacy)},
		{name: "go-sdk", only: "legacy", checks: fixture(), url: legacyLibrary},
		{name: "go-sdk, modern only", only: "modern", checks: fixture(), url: func(t *testing.T) string { return modernOnly(t, modernLibrary(t)) }},
		{name: "server-everything", only: "legacy", checks: everythingChecks(), needs: []string{everything}, url: everythingURL},
		{name: "TypeScript 2.x, modern only", only: "modern", checks: fixture(), needs: []string{tsServer}, missing: noParams, url: eraTypeScriptURL("modern")},
	}
}

// modernOnly starts a proxy to a server that refuses requests which are not of revision 2026-07-28.
func modernOnly(t *testing.T, url string) string {
	t.Helper()
	pass := passing(t, url)
	return mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("MCP-Protocol-Version") == "2026-07-28" {
			pass.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"unsupported protocol version","data":{"supported":["2026-07-28"]}}}`))
	}))
}

// TestConnectEras has the official clients of both eras use servers of one era or both, through
// holdfast connect.
func TestConnectEras(t *testing.T) {
	t.Parallel()
	for _, server := range reachedServers() {
		t.Run(server.name, func(t *testing.T) {
			testlong.Only(t, "many processes")
			npm(t, append(server.needs, sdk1, sdk2)...)
			t.Parallel()
			url := server.url(t)
			for who, client := range eraClients() {
				peer := server
				if server.name == "server-everything" && !isLegacy(who) {
					// The server also asks for the roots by itself, and that request may belong to no call.
					peer.checks = maps.Clone(peer.checks)
					delete(peer.checks, "roots")
				}
				if strings.Contains(who, "TypeScript") {
					// On stdio these clients may lose a progress notification that comes together with the result.
					peer.checks = maps.Clone(peer.checks)
					delete(peer.checks, "progress")
				}
				peer.meets(t, who, client, "connect:"+url)
			}
		})
	}
}

// TestLibraryEras has the go-sdk's client use the same servers through NewClientTransport, in
// the eras that each server speaks.
func TestLibraryEras(t *testing.T) {
	t.Parallel()
	for _, server := range reachedServers() {
		t.Run(server.name, func(t *testing.T) {
			testlong.Only(t, "many processes")
			npm(t, server.needs...)
			t.Parallel()
			url := server.url(t)
			if server.only != "legacy" {
				server.meets(t, "go-sdk", officialEraClient(""), "library:"+url)
			}
			if server.only != "modern" {
				server.meets(t, "go-sdk, 2025-11-25", officialEraClient("2025-11-25"), "library:"+url)
			}
		})
	}
}

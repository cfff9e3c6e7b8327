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

// A reachedServer is a server that clients reach through holdfast connect, and through NewClientTransport.
type reachedServer struct {
	url    func(t *testing.T) string
	legacy bool // it speaks no modern revision
	modern bool // it speaks no legacy revision
	peer   eraPeer
}

func reachedServers() map[string]reachedServer {
	return map[string]reachedServer{
		"holdfast": {peer: eraPeer{checks: fixture()}, url: func(t *testing.T) string {
			return servePeer(t, &eraPeer{}, &holdfast.Options{Eras: holdfast.ErasBoth})
		}},
		"holdfast, legacy only": {legacy: true, peer: eraPeer{checks: fixture()}, url: func(t *testing.T) string {
			return servePeer(t, &eraPeer{}, &holdfast.Options{Eras: holdfast.ErasLegacy})
		}},
		"go-sdk": {legacy: true, peer: eraPeer{checks: fixture()}, url: func(t *testing.T) string { return upstream(t, eraServer(false), nil) }},
		"go-sdk, modern only": {modern: true, peer: eraPeer{checks: fixture()}, url: func(t *testing.T) string {
			return modernOnly(t, modernLibrary(t))
		}},
		"server-everything": {legacy: true, peer: eraPeer{checks: everythingChecks(), needs: []string{everything}}, url: func(t *testing.T) string {
			return everythingOver(t, "streamableHttp", "/mcp").url
		}},
		"TypeScript 2.x, modern only": {modern: true, peer: eraPeer{checks: fixture(), needs: []string{tsServer}, missing: noParams}, url: func(t *testing.T) string {
			return eraTypeScriptURL(t, "modern")
		}},
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
	for name, server := range reachedServers() {
		t.Run(name, func(t *testing.T) {
			testlong.Only(t, "many processes")
			npm(t, append(server.peer.needs, sdk1, sdk2)...)
			t.Parallel()
			url := server.url(t)
			for who, client := range eraClients() {
				peer := server.peer
				if name == "server-everything" && !isLegacy(who) {
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
	for name, server := range reachedServers() {
		t.Run(name, func(t *testing.T) {
			testlong.Only(t, "many processes")
			npm(t, server.peer.needs...)
			t.Parallel()
			url := server.url(t)
			if !server.legacy {
				server.peer.meets(t, "go-sdk", officialEraClient(""), "library:"+url)
			}
			if !server.modern {
				server.peer.meets(t, "go-sdk, 2025-11-25", officialEraClient("2025-11-25"), "library:"+url)
			}
		})
	}
}

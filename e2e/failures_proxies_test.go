package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
)

// prefixed starts a proxy that serves a program under a path prefix, and strips the prefix. With h2, clients speak HTTP/2 over
// TLS to the proxy, and the proxy HTTP/1.1 to the program.
func prefixed(t *testing.T, p *program, prefix string, h2 bool) *httptest.Server {
	t.Helper()
	proxy := httptest.NewUnstartedServer(http.StripPrefix(prefix, passing(t, p.URL)))
	if proxy.EnableHTTP2 = h2; h2 {
		proxy.StartTLS()
	} else {
		proxy.Start()
	}
	t.Cleanup(func() {
		proxy.CloseClientConnections()
		proxy.Close()
	})
	return proxy
}

// FAILURES 29: behind a proxy that strips a path prefix, clients of all transports are served, with HTTP/1.1 and with HTTP/2 at
// the proxy. Clients find the endpoint of HTTP+SSE by the rules for URLs.
func TestFailure29Prefix(t *testing.T) {
	t.Parallel()
	p := serve(t, "--demo")
	for _, prefix := range []string{"", "/a", "/a/b/c"} {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%q, HTTP/2 %v", prefix, h2), func(t *testing.T) {
				t.Parallel()
				proxy := prefixed(t, p, prefix, h2)
				for _, path := range []string{"/mcp", "/mcp/"} {
					client := mcp.NewClient(&mcp.Implementation{Name: "prefix", Version: "1"}, nil)
					s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: proxy.URL + prefix + path, HTTPClient: proxy.Client()}, nil)
					if err != nil {
						t.Fatalf("%s: %v", path, err)
					}
					r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "count", Arguments: map[string]any{"to": 3, "delay_ms": 1}})
					if err != nil || r.IsError {
						t.Errorf("%s: %+v, %v", path, r, err)
					}
					if err := s.Close(); err != nil {
						t.Errorf("%s: %v", path, err)
					}
				}
				// The client of the go-sdk resolves the endpoint by RFC 3986, and asks for the modern era first.
				client := mcp.NewClient(&mcp.Implementation{Name: "prefix", Version: "1"}, nil)
				s, err := client.Connect(t.Context(), &mcp.SSEClientTransport{Endpoint: proxy.URL + prefix + "/sse", HTTPClient: proxy.Client()}, nil)
				if err != nil {
					t.Fatalf("HTTP+SSE: %v", err)
				}
				defer s.Close()
				if r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "hello"}}); err != nil || r.IsError {
					t.Errorf("HTTP+SSE: %+v, %v", r, err)
				}
				// The TypeScript and the Python client want a URL with the same origin.
				c := &mcptest.Client{URL: proxy.URL + prefix + "/sse", HTTP: proxy.Client()}
				event := mcptest.Must(c.Stream(t, http.MethodGet, "").Next())(t)
				from := mcptest.Must(neturl.Parse(c.URL))(t)
				to, err := from.Parse(string(event.Data))
				if event.Name != "endpoint" || err != nil || to.Host != from.Host || to.Scheme != from.Scheme || !strings.HasPrefix(to.Path, prefix+"/") {
					t.Errorf("the event %q has the endpoint %q, which is %v, %v", event.Name, event.Data, to, err)
				}
			})
		}
	}
}

// FAILURES 29: a client that speaks HTTP/2 without TLS from its first byte on is served, or refused with a text; it does not wait.
func TestFailure29PriorKnowledge(t *testing.T) {
	t.Parallel()
	p := serve(t, "--demo")
	var h2c http.Protocols
	h2c.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &h2c}
	t.Cleanup(transport.CloseIdleConnections)
	web := &http.Client{Transport: transport, Timeout: time.Minute}
	began := time.Now()
	resp, err := web.Post(p.URL, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`))
	if time.Since(began) > 30*time.Second {
		t.Errorf("it took %v", time.Since(began))
	}
	if err == nil {
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.ProtoMajor != 2 || len(body) == 0 {
			t.Errorf("%s %d %s", resp.Proto, resp.StatusCode, body)
		}
		return
	}
	// The client is refused: the text that the server writes to the connection says why.
	c := mcptest.Must(net.Dial("tcp", p.Addr))(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	mcptest.Must(io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))(t)
	text, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 ") || !strings.Contains(string(text), "HTTP/2") {
		t.Errorf("it reads %q, %v", text, err)
	}
}

// FAILURES 29: if a proxy adds a slash to the path, or removes it, the request is served without a redirect.
func TestFailure29Slash(t *testing.T) {
	t.Parallel()
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	file := serveFile(t, `{"mcpServers":{"a":{"command":"cat"}}}`)
	demo := serve(t, "--demo")
	for _, url := range []string{demo.URL, demo.URL + "/"} {
		if r := post(t, url, "", "", initialize); r.Status != http.StatusOK {
			t.Errorf("%s: %d %s", url, r.Status, r.Body)
		}
	}
	for _, path := range []string{"/a/mcp", "/a/mcp/"} {
		if r := post(t, file+path, "", "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`); r.Status == http.StatusNotFound && !strings.Contains(r.Body, "jsonrpc") || r.Status/100 == 3 {
			t.Errorf("%s: %d %s", path, r.Status, r.Body)
		}
	}
}

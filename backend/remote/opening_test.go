package remote_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/backend/remote"
	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// dormant returns a server that hangs at one point until it wakes up, or the test is over. at is "header": before any response
// header; "answer"; or "connection".
func dormant(at string, awake, over <-chan struct{}) http.Handler {
	waits := func(point string) {
		if at == point {
			select {
			case <-awake:
			case <-over:
			}
		}
	}
	server := &mcptest.Server{Open: true, Script: func(m jsonrpc.Message, say func(string)) string {
		if m.Kind == jsonrpc.Request {
			waits("header")
			say("") // the header of the response
			waits("answer")
		}
		return mcptest.Answers{}.Script(m, say)
	}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			waits("connection")
		}
		server.ServeHTTP(w, r)
	})
}

// Holdfast waits 60 s for a server over HTTP that hangs before it has begun, at whichever point and in each of the client's eras. Then the
// client gets an error. A server that comes after 59 s serves. When its conversation has ended, no goroutine or connection of it is left.
func TestOpeningBounded(t *testing.T) {
	t.Parallel()
	ways := []struct {
		name, url, at string
		transport     client.Transport
	}{
		{"Streamable HTTP, header", "http://127.0.0.1/mcp", "header", client.Auto},
		{"Streamable HTTP, answer", "http://127.0.0.1/mcp", "answer", client.Auto},
		{"HTTP+SSE, stream", "http://127.0.0.1/sse", "connection", client.SSE},
		{"HTTP+SSE, answer", "http://127.0.0.1/sse", "answer", client.SSE},
		{"WebSocket, handshake", "ws://127.0.0.1/ws", "connection", client.Auto},
		{"WebSocket, answer", "ws://127.0.0.1/ws", "answer", client.Auto},
	}
	for _, way := range ways {
		for _, method := range []string{"initialize", "server/discover", "tools/list"} {
			for _, wakes := range []bool{false, true} {
				t.Run(fmt.Sprint(way.name, ", ", method, ", wakes: ", wakes), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						awake, over := make(chan struct{}), make(chan struct{})
						if wakes {
							time.AfterFunc(59*time.Second, func() { close(awake) })
						}
						l := mcptest.NewPipes()
						server := &http.Server{Handler: dormant(way.at, awake, over), ReadHeaderTimeout: time.Hour}
						var work sync.WaitGroup
						work.Go(func() { _ = server.Serve(l) })
						network := &http.Transport{DialContext: l.DialContext}
						b := remote.New(way.url, &remote.Options{HTTPClient: &http.Client{Transport: network}, Transport: way.transport, Logger: slog.New(slog.DiscardHandler)})
						h := holdfast.NewBackendHandler(b, &holdfast.Options{Eras: holdfast.ErasBoth, Logger: slog.New(slog.DiscardHandler)})
						params := `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`
						if method != "initialize" {
							params = `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}`
						}
						r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/", strings.NewReader(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)))
						r.Header.Set("Content-Type", "application/json")
						r.Header.Set("Accept", "application/json, text/event-stream")
						if method != "initialize" {
							r.Header.Set("MCP-Protocol-Version", "2026-07-28")
							r.Header.Set("Mcp-Method", method)
						}
						began := time.Now()
						w := httptest.NewRecorder()
						h.ServeHTTP(w, r)
						took, text := time.Since(began), w.Body.String()
						switch {
						case wakes && (took < 59*time.Second || took > 60*time.Second || strings.Contains(text, "has not answered")):
							t.Errorf("after %v: %s", took, text)
						case !wakes && (took != 60*time.Second || !strings.Contains(text, "within 1m0s") || !strings.Contains(text, "tell the operator")):
							t.Errorf("after %v: %s", took, text)
						}
						_ = h.Shutdown(t.Context())
						close(over)
						network.CloseIdleConnections()
						_ = server.Close()
						work.Wait()
					})
				})
			}
		}
	}
}

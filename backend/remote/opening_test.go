package remote_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/backend/remote"
	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// A dormant server hangs at one point until it wakes up.
type dormant struct {
	at    string          // "header": before any response header; "answer"; "connection"
	awake <-chan struct{} // closed when the server wakes up; nil: never
	over  chan struct{}   // closed at the end of the test
	said  chan string     // answers, over the stream of HTTP+SSE
}

// waits hangs if at is the server's point. It returns false at the end of the test.
func (d *dormant) waits(at string) bool {
	if at != d.at {
		return true
	}
	select {
	case <-d.awake:
		return true
	case <-d.over:
		return false
	}
}

// answer returns the answer to a message, or "".
func (d *dormant) answer(text []byte) string {
	msgs, err := rpc.Parse(text)
	if err != nil || len(msgs) != 1 || msgs[0].Kind != jsonrpc.Request {
		return ""
	}
	if msgs[0].Method == "initialize" {
		return string(jsonrpc.AppendResult(nil, msgs[0].ID, []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`)))
	}
	return string(jsonrpc.AppendError(nil, msgs[0].ID, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "no %s", msgs[0].Method)))
}

// ServeHTTP implements [http.Handler], for all transports.
func (d *dormant) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") != "":
		d.socket(w, r)
	case r.Method == http.MethodGet && r.URL.Path == "/sse":
		if !d.waits("connection") {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "event: endpoint\ndata: /post\n\n")
		w.(http.Flusher).Flush()
		for {
			select {
			case m := <-d.said:
				_, _ = fmt.Fprintf(w, "data: %s\n\n", m)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			case <-d.over:
				return
			}
		}
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
	default:
		text := make([]byte, 1<<16)
		n := 0
		for {
			more, err := r.Body.Read(text[n:])
			if n += more; err != nil {
				break
			}
		}
		answer := d.answer(text[:n])
		switch {
		case r.URL.Path == "/post":
			go func() {
				if d.waits("answer") && answer != "" {
					select {
					case d.said <- answer:
					case <-d.over:
					}
				}
			}()
			w.WriteHeader(http.StatusAccepted)
		case answer == "":
			w.WriteHeader(http.StatusAccepted)
		case d.waits("header"):
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			if d.waits("answer") {
				_, _ = fmt.Fprintf(w, "data: %s\n\n", answer)
			}
		}
	}
}

func (d *dormant) socket(w http.ResponseWriter, r *http.Request) {
	if !d.waits("connection") {
		return
	}
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	var work sync.WaitGroup
	defer work.Wait()
	for {
		_, text, err := c.Read(context.Background())
		if err != nil {
			return
		}
		work.Go(func() {
			if answer := d.answer(text); answer != "" && d.waits("answer") {
				_ = c.Write(context.Background(), websocket.MessageText, []byte(answer))
			}
		})
	}
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
		{"WebSocket, handshake", "ws://127.0.0.1/mcp", "connection", client.Auto},
		{"WebSocket, answer", "ws://127.0.0.1/mcp", "answer", client.Auto},
	}
	for _, way := range ways {
		for _, method := range []string{"initialize", "server/discover", "tools/list"} {
			for _, wakes := range []bool{false, true} {
				t.Run(fmt.Sprint(way.name, ", ", method, ", wakes: ", wakes), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						d := &dormant{at: way.at, over: make(chan struct{}), said: make(chan string)}
						if wakes {
							awake := make(chan struct{})
							d.awake = awake
							time.AfterFunc(59*time.Second, func() { close(awake) })
						}
						l := mcptest.NewPipes()
						server := &http.Server{Handler: d, ReadHeaderTimeout: time.Hour}
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
						close(d.over)
						network.CloseIdleConnections()
						_ = server.Close()
						work.Wait()
					})
				})
			}
		}
	}
}

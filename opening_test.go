package holdfast_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/backend"
	"holdfast/backend/message"
	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A sleeper is a backend that reads no messages before it has woken up.
type sleeper struct {
	eras   backend.Eras
	modern bool          // it knows server/discover
	wakes  time.Duration // the time from its opening; 0: never
	opens  bool          // Open, too, waits until then

	opened, closed atomic.Int32
}

func (s *sleeper) Eras() backend.Eras { return s.eras }

func (s *sleeper) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	c := &sleeping{s: s, awake: make(chan struct{}), over: make(chan struct{}), last: make(chan struct{})}
	close(c.last)
	if s.wakes > 0 {
		t := time.AfterFunc(s.wakes, func() { close(c.awake) })
		context.AfterFunc(context.WithoutCancel(ctx), func() { t.Stop() })
	}
	if s.opens {
		select {
		case <-c.awake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.opened.Add(1)
	return message.New(c).Open(ctx, start, sink)
}

// sleeping is a conversation of a sleeper.
type sleeping struct {
	s           *sleeper
	awake, over chan struct{}

	mu   sync.Mutex
	last chan struct{} // closed: the last request is answered
	work sync.WaitGroup
}

// Serve implements [message.Handler]. It answers the requests in their order.
func (c *sleeping) Serve(x *message.Exchange) {
	if x.Kind != jsonrpc.Request {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.over:
		return
	default:
	}
	before, done := c.last, make(chan struct{})
	c.last = done
	c.work.Go(func() {
		defer close(done)
		<-before
		select {
		case <-c.awake:
			c.answer(x)
		case <-c.over:
		}
	})
}

func (c *sleeping) answer(x *message.Exchange) {
	switch {
	case x.Method == "initialize" && (!c.s.modern || c.s.eras == backend.Both):
		x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`))
	case x.Method == "server/discover" && c.s.modern:
		x.Result([]byte(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}`))
	case x.Method == "tools/list":
		x.Result([]byte(`{"resultType":"complete","tools":[]}`))
	default:
		x.Error(jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "no %s", x.Method))
	}
}

// Closed implements [message.Closer].
func (c *sleeping) Closed(backend.Sink) {
	c.s.closed.Add(1)
	c.mu.Lock()
	close(c.over)
	c.mu.Unlock()
	c.work.Wait()
}

// A patientClient waits for longer than Holdfast does.
type patientClient struct{}

func (patientClient) Authorization(context.Context) (string, error) { return "", nil }
func (patientClient) Authorize(context.Context, *http.Request, *http.Response) error {
	return http.ErrNotSupported
}
func (patientClient) OpensWithin() time.Duration { return time.Hour }

// begins are requests that begin a conversation, and one of a client that knows the server.
var begins = map[string]string{
	"initialize":      `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`,
	"server/discover": `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
	"tools/list":      `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
}

// dialed returns a client of a handler, over a WebSocket or HTTP+SSE ("pair").
func dialed(t *testing.T, h *holdfast.Handler, transport string, auth client.Authorizer) *client.Conn {
	t.Helper()
	url, over := "http://127.0.0.1/mcp", client.WebSocket
	if transport == "pair" {
		url, over = "http://127.0.0.1/sse", client.SSE
	}
	c, err := client.New(url, &client.Options{HTTPClient: mcptest.ServePipes(t, mcptest.Endpoints(h)), Transport: over, Auth: auth, Logger: slog.New(slog.DiscardHandler), NoListen: true,
		Silence: time.Hour}) // simultaneous pings of both ends would wait for each other, as pipes have no buffer
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// beginOver begins a conversation with a request over a transport, and returns the response.
func beginOver(t *testing.T, h *holdfast.Handler, transport, request string) string {
	m := mcptest.Must(jsonrpc.Parse([]byte(request)))(t)
	if transport == "pipes" {
		say, said := mcptest.Duplex(t, conn(t, h))
		_, _ = io.WriteString(say, request+"\n")
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if m, err := jsonrpc.Parse(bytes.Clone(lines.Bytes())); err == nil && m.Kind == jsonrpc.Response {
				_ = say.Close()
				_, _ = io.Copy(io.Discard, said) // until the connection is served to its end
				return string(m.Raw)
			}
		}
		return ""
	}
	if transport != "websocket" && transport != "pair" {
		var header []string
		if m.Method != "initialize" {
			header = []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", m.Method}
		}
		return (&mcptest.Client{URL: "http://127.0.0.1/mcp", HTTP: mcptest.ServePipes(t, h)}).Post(t, request, header...).Body
	}
	c := dialed(t, h, transport, patientClient{})
	defer func() { _ = c.Close() }()
	mcptest.Check(t, c.Send(t.Context(), m))
	for {
		said := mcptest.Must(c.Receive(t.Context()))(t)
		if said.Kind == jsonrpc.Response {
			return string(said.Raw)
		}
	}
}

// A backend that hangs before it has begun is waited for 60 s, whatever revisions it supports and over whatever transport its
// client came. Then the client gets the reason, and the backend is closed. A backend that is ready at 59 s serves.
func TestOpeningBounded(t *testing.T) {
	t.Parallel()
	servers := map[string]*sleeper{
		"legacy": {eras: backend.Legacy}, "both": {eras: backend.Both, modern: true},
		"found to be legacy": {eras: backend.Unknown}, "found to be modern": {eras: backend.Unknown, modern: true},
		"slow to open": {eras: backend.Legacy, opens: true},
	}
	for name, server := range servers {
		for method, request := range begins {
			transports := []string{"http", "json", "stateless", "pipes"}
			if method == "initialize" && !server.opens { // a connection is not read while a backend is opened for it
				transports = append(transports, "websocket", "pair")
			}
			for _, transport := range transports {
				for _, wakes := range []time.Duration{0, 59 * time.Second} {
					if method == "tools/list" && server.eras == backend.Both {
						continue // this backend has begun already
					}
					t.Run(fmt.Sprint(name, ", ", method, " over ", transport, ", wakes: ", wakes), func(t *testing.T) {
						t.Parallel()
						synctest.Test(t, func(t *testing.T) {
							s := &sleeper{eras: server.eras, modern: server.modern, wakes: wakes, opens: server.opens}
							var log mcptest.Log
							o := &holdfast.Options{Eras: holdfast.ErasBoth, Logger: slog.New(slog.NewTextHandler(&log, nil)), Stateless: transport == "stateless"}
							if transport == "json" {
								o.Response = holdfast.ResponseJSON
							}
							h := holdfast.NewBackendHandler(s, o)
							began := time.Now()
							answer := beginOver(t, h, transport, request)
							took := time.Since(began)
							synctest.Wait()
							switch {
							case wakes > 0 && (!strings.Contains(answer, `"result"`) || took != wakes):
								t.Errorf("after %v: %s", took, answer)
							case wakes > 0:
							case took != time.Minute || !strings.Contains(answer, "within 1m0s") || !strings.Contains(answer, "tell the operator") || strings.Contains(answer, "unknown"):
								t.Errorf("after %v: %s", took, answer)
							case s.opened.Load() != s.closed.Load():
								t.Errorf("%d conversations were opened, and %d closed", s.opened.Load(), s.closed.Load())
							}
							if n := strings.Count(log.String(), "run its command by hand"); wakes == 0 && n != 1 {
								t.Errorf("%d lines in the log say what to do: %s", n, log.String())
							}
							ctx, stop := context.WithTimeout(t.Context(), time.Second)
							defer stop()
							_ = h.Shutdown(ctx)
							if n, closed := s.opened.Load(), s.closed.Load(); n != closed {
								t.Errorf("%d conversations were opened, and %d closed at the end", n, closed)
							}
						})
					})
				}
			}
		}
	}
}

package mcptest

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// A Socket is a client over a WebSocket. Say may be called concurrently.
type Socket struct {
	*websocket.Conn
	Session string // the id from the server's header

	ctx context.Context
}

// Dial opens a WebSocket at the URL of an endpoint, http or ws. header has names and values of fields in pairs. If the server
// refuses it, the Socket is nil, and the Reply has the server's answer. A field Sec-WebSocket-Protocol replaces the
// subprotocol mcp.
func Dial(ctx context.Context, url string, header ...string) (*Socket, Reply, error) {
	fields := http.Header{"Sec-Websocket-Protocol": {"mcp"}}
	set(fields, header)
	o := &websocket.DialOptions{HTTPHeader: fields, Subprotocols: strings.Split(fields.Get("Sec-WebSocket-Protocol"), ", ")}
	ws, resp, err := websocket.Dial(ctx, strings.Replace(url, "http", "ws", 1), o)
	if resp == nil {
		return nil, Reply{}, err
	}
	if err != nil {
		r, err := Read(resp, nil)
		return nil, r, err
	}
	s := &Socket{Conn: ws, ctx: ctx, Session: resp.Header.Get("Mcp-Session-Id")}
	return s, Reply{Status: resp.StatusCode, Header: resp.Header}, nil
}

// MustDial is like Dial, but ends the test if the server refuses. The end of the test closes the connection.
func MustDial(t testing.TB, ctx context.Context, url string, header ...string) *Socket {
	t.Helper()
	s, r, err := Dial(ctx, url, header...)
	if s == nil {
		t.Fatalf("WebSocket: %d %s, %v", r.Status, r.Body, err)
	}
	t.Cleanup(func() { _ = s.CloseNow() })
	return s
}

// Say sends a message.
func (s *Socket) Say(t testing.TB, message string) {
	t.Helper()
	if err := s.Write(s.ctx, websocket.MessageText, []byte(message)); err != nil {
		t.Fatal(err)
	}
}

// Hear reads messages until one contains all texts, and returns that message.
func (s *Socket) Hear(t testing.TB, texts ...string) string {
	t.Helper()
	for {
		_, message, err := s.Read(s.ctx)
		if err != nil {
			t.Fatalf("no message with %q: %v", texts, err)
		}
		if hasAll(string(message), texts) {
			return string(message)
		}
	}
}

func hasAll(message string, texts []string) bool {
	for _, text := range texts {
		if !strings.Contains(message, text) {
			return false
		}
	}
	return true
}

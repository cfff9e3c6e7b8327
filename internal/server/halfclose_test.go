package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"holdfast/backend"
	"holdfast/e2e"
)

// slowStart is a backend that does not start before its context is done.
type slowStart struct{}

func (slowStart) Open(ctx context.Context, _ backend.Start, _ backend.Sink) (backend.Conn, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("start the server: %w", context.Cause(ctx))
}

// A client that half-closes its connection after an initialize, and reads, gets a 503 with Retry-After (without it, Answers
// returns an error) if its session was not opened: the server has not failed.
func TestHalfClosedInitialize(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{backend: slowStart{}})
	body := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`
	s := e2e.Strange{Bytes: fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s", n.addr, len(body), body)}
	heard, err := s.Send(n.addr)
	if err != nil {
		t.Fatal(err)
	}
	if statuses, err := e2e.Answers(heard); err != nil || len(statuses) != 1 || statuses[0] != http.StatusServiceUnavailable {
		t.Errorf("%v %v: %q", statuses, err, heard)
	}
}

// A client that speaks another version of HTTP, or an unknown transfer coding, gets a 400.
func TestOtherHTTP(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	for _, raw := range []string{
		"GET /mcp HTTP/3.0\r\n\r\n", "GET /mcp HTTP/2.0\r\nHost: x\r\n\r\n",
		"POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: nonsense\r\n\r\n{}", "POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
	} {
		s := e2e.Strange{Bytes: raw}
		heard, err := s.Send(n.addr)
		if err != nil {
			t.Fatal(err)
		}
		if statuses, err := e2e.Answers(heard); err != nil || len(statuses) != 1 || statuses[0] != http.StatusBadRequest {
			t.Errorf("%q: %v %v: %q", strings.TrimSpace(raw), statuses, err, heard)
		}
	}
}

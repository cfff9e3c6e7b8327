package holdfast_test

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/engine"
	"holdfast/internal/mcptest"
)

// A handler with impossible values in its options serves with the defaults, and so does a store.
func TestImpossibleOptions(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	store := engine.Memory(engine.Options{Keep: -1, SessionTTL: -1, Memory: -1, MaxShare: 7, Logger: quiet})
	h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(func(x *message.Exchange) {
		if x.Method == "initialize" {
			x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}`))
			return
		}
		x.Result([]byte(`{}`))
	})), &holdfast.Options{
		Store: store, Logger: quiet, Response: 9, Role: "boss", Eras: "newest",
		UpgradeAfter: -1, Retry: -1, SessionTTL: -1, Keep: -1, MaxBody: -1, MaxSessions: -1, MaxCalls: -1, Memory: -1, MaxShare: math.NaN(),
		Limits: holdfast.Limits{Rate: math.Inf(1), Burst: -1, AddressRate: -1, AddressBurst: -1, Calls: -1, ToolCalls: -1, Queue: -1, QueueWait: -1},
	})
	s := httptest.NewServer(h)
	defer s.Close()
	do := func(method, session, body string) (status int, id string) {
		w := (&mcptest.Client{URL: s.URL, Session: session, HTTP: s.Client()}).Open(t, method, body) //nolint:bodyclose // Open sees to it
		return w.StatusCode, w.Header.Get("Mcp-Session-Id")
	}
	status, session := do("POST", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	if status != http.StatusOK || session == "" {
		t.Fatalf("no session: status %d", status)
	}
	if status, _ := do("GET", session, ""); status != http.StatusOK { // a stream, which is open when the handler ends
		t.Errorf("listening: status %d", status)
	}
	if status, _ := do("POST", session, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"any"}}`); status != http.StatusOK {
		t.Errorf("calling: status %d", status)
	}
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	if err := h.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

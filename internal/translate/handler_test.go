package translate_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// legacy is a server of revision 2025-11-25 that selects its answer by the name of the tool.
type legacy struct {
	mu     sync.Mutex
	asking *message.Exchange
}

func (s *legacy) Serve(x *message.Exchange) {
	switch {
	case x.Kind == jsonrpc.Response:
		s.mu.Lock()
		call := s.asking
		s.mu.Unlock()
		call.Result(fmt.Appendf(nil, `{"content":[],"structuredContent":%s}`, x.Message.Result))
	case x.Method == "initialize":
		x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}`))
	case x.Method == "tools/list":
		x.Result([]byte(`{"tools":[]}`))
	case x.Method != "tools/call":
		if x.Kind == jsonrpc.Request {
			x.Error(jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "no %s", x.Method))
		}
	case jsonrpc.String(jsonrpc.Field(x.Params, "name")) == "ask":
		s.mu.Lock()
		s.asking = x
		s.mu.Unlock()
		x.Request([]byte("1"), "elicitation/create", []byte(`{"message":"?","requestedSchema":{"type":"object"}}`))
	case jsonrpc.String(jsonrpc.Field(x.Params, "name")) == "change":
		raw := []byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		x.Sink.EmitUnrelated(jsonrpc.Message{Kind: jsonrpc.Notification, Method: "notifications/tools/list_changed", Raw: raw})
		x.Result([]byte(`{"content":[]}`))
	default:
		x.Notify("notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":1}`, jsonrpc.Field(x.Params, "_meta", "progressToken")))
		x.Result([]byte(`{"content":[]}`))
	}
}

// request returns a modern request.
func request(method, params string) string {
	if params != "" {
		params += ","
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"mine","method":%q,"params":{%s"_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`, method, params)
}

// result makes a modern request, and returns its result and the number of messages before it.
func result(t *testing.T, url, method, params string) (result []byte, before int) {
	t.Helper()
	resp := (&mcptest.Client{URL: url}).Open(t, http.MethodPost, request(method, params)) //nolint:bodyclose // Hear closes it
	mcptest.Hear(resp, func(text []byte) {
		switch m := mcptest.Parse(string(text)); {
		case m.Kind != jsonrpc.Response:
			before++
		case m.Error != nil || string(m.ID) != `"mine"`:
			t.Errorf("%s: %s", method, m.Raw)
		default:
			result = m.Result
		}
	})
	return result, before
}

// A modern client can use a legacy server, through all layers of Holdfast.
func TestModernClient(t *testing.T) {
	t.Parallel()
	handler := holdfast.NewBackendHandler(message.New(&legacy{}), &holdfast.Options{Logger: slog.New(slog.DiscardHandler), Retry: time.Millisecond, Eras: holdfast.ErasBoth})
	ts := httptest.NewServer(handler)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := handler.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		ts.Close()
	})
	if got, _ := result(t, ts.URL, "server/discover", ""); !strings.Contains(string(got), `"2026-07-28"`) {
		t.Errorf("discovered %s", got)
	}
	if got, before := result(t, ts.URL, "tools/call", `"name":"plain"`); before != 1 || jsonrpc.String(jsonrpc.Field(got, "resultType")) != "complete" {
		t.Errorf("plain: %s after %d messages", got, before)
	}
	asked, _ := result(t, ts.URL, "tools/call", `"name":"ask"`)
	answers := []byte("{}")
	jsonrpc.Each(jsonrpc.Field(asked, "inputRequests"), func(name, _ []byte) {
		answers, _ = jsonrpc.Set(answers, []byte(`{"action":"accept"}`), string(name))
	})
	got, _ := result(t, ts.URL, "tools/call", fmt.Sprintf(`"name":"ask","inputResponses":%s,"requestState":%s`, answers, jsonrpc.Field(asked, "requestState")))
	if !strings.Contains(string(got), `"structuredContent":{"action":"accept"}`) {
		t.Errorf("asked %s, and then got %s", asked, got)
	}
	changes := (&mcptest.Client{URL: ts.URL}).Stream(t, http.MethodPost, request("subscriptions/listen", `"notifications":{"toolsListChanged":true}`))
	if first := changes.Until(t, "{"); !strings.Contains(string(first.Data), "acknowledged") {
		t.Errorf("first it hears %s", first.Data)
	}
	result(t, ts.URL, "tools/call", `"name":"change"`)
	if second := changes.Until(t, "{"); !strings.Contains(string(second.Data), `"io.modelcontextprotocol/subscriptionId":"mine"`) {
		t.Errorf("then it hears %s", second.Data)
	}
	changes.Close()
}

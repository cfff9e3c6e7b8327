package translate_test

import (
	"context"
	"fmt"
	"io"
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
	"holdfast/internal/sse"
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

// post makes a modern request, and calls say for each message of the answer until say returns false.
func post(t *testing.T, url, method, params string, say func(jsonrpc.Message) bool) {
	t.Helper()
	if params != "" {
		params += ","
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":"mine","method":%q,"params":{%s"_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`, method, params)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	res, err := mcptest.Send(ctx, http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	tell := func(text []byte) bool {
		m, err := jsonrpc.Parse([]byte(string(text)))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return say(m)
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), sse.ContentType) {
		text := mcptest.Must(io.ReadAll(res.Body))(t)
		tell(text)
		return
	}
	for events := sse.NewReader(res.Body, 1<<20); ; {
		ev, err := events.Next()
		if err != nil || len(ev.Data) > 0 && !tell(ev.Data) {
			return
		}
	}
}

// result makes a modern request, and returns its result and the number of messages before it.
func result(t *testing.T, url, method, params string) (result []byte, before int) {
	t.Helper()
	post(t, url, method, params, func(m jsonrpc.Message) bool {
		if m.Kind != jsonrpc.Response {
			before++
			return true
		}
		if m.Error != nil || string(m.ID) != `"mine"` {
			t.Errorf("%s: %s", method, m.Raw)
		}
		result = m.Result
		return false
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
	var heard []string
	post(t, ts.URL, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`, func(m jsonrpc.Message) bool {
		heard = append(heard, string(m.Raw))
		if len(heard) == 1 {
			result(t, ts.URL, "tools/call", `"name":"change"`)
		}
		return len(heard) < 2
	})
	if len(heard) != 2 || !strings.Contains(heard[0], "acknowledged") || !strings.Contains(heard[1], `"io.modelcontextprotocol/subscriptionId":"mine"`) {
		t.Errorf("heard %q", heard)
	}
}

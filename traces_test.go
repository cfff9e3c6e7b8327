package holdfast_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
	"holdfast/traces"
)

// The traces of the tests: of a message, and of an HTTP request.
const (
	inMessage = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	inHTTP    = "00-11111111111111111111111111111111-2222222222222222-01"
	notTaken  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// A calling is a handler of a server that records the params of its tools' calls.
type calling struct {
	*holdfast.Handler
	mu     sync.Mutex
	params []string
}

func newCalling(o *holdfast.Options) *calling {
	c := &calling{}
	o.Logger = slog.New(slog.DiscardHandler)
	c.Handler = holdfast.NewBackendHandler(message.New(message.HandlerFunc(func(x *message.Exchange) {
		switch x.Method {
		case "initialize":
			x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`))
		case "tools/list":
			x.Result([]byte(`{"tools":[]}`))
		default:
			c.mu.Lock()
			c.params = append(c.params, string(x.Params))
			c.mu.Unlock()
			switch jsonrpc.String(jsonrpc.Field(x.Params, "name")) {
			case "fails":
				x.Result([]byte(`{"content":[],"isError":true}`))
			case "no":
				x.Error(jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "no"))
			default:
				x.Result([]byte(`{"content":[]}`))
			}
		}
	})), o)
	return c
}

// post makes a request in a session, or begins one.
func (c *calling) post(t *testing.T, session, traceparent, body string) (id string) {
	t.Helper()
	r := mcptest.Must(mcptest.NewRequest(t.Context(), http.MethodPost, "http://example.com/mcp", body, "Mcp-Session-Id", session, "Traceparent", traceparent))(t)
	r.RemoteAddr = "192.0.2.1:1234"
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	if w.Code/100 != 2 {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Header().Get("Mcp-Session-Id")
}

// call begins a session and calls a tool, with _meta in its params.
func (c *calling) call(t *testing.T, tool, traceparent, meta string) (session string) {
	t.Helper()
	session = c.post(t, "", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	c.post(t, session, traceparent, fmt.Sprintf(`{"jsonrpc":"2.0","id":"a\/b","method":"tools/call","params":{"name":%q,"arguments":{"x":1}%s}}`, tool, meta))
	return session
}

// Each call has a span with the attributes of the conventions. Its parent is the trace in the message, with
// a link to the trace of the HTTP request, or the other way round. The backend gets the span's context.
func TestTraces(t *testing.T) {
	t.Parallel()
	meta := func(parent string) string {
		return `,"_meta":{"progressToken":5,"traceparent":"` + parent + `","tracestate":"x=1"}`
	}
	for name, test := range map[string]struct {
		tool, http, meta string
		under            bool
		parent, link     string // as in traceparent
		attributes       string
		unsampled        bool
	}{
		"message":       {"echo", inHTTP, meta(inMessage), false, inMessage, inHTTP, "", false},
		"http":          {"echo", inHTTP, meta(inMessage), true, inHTTP, inMessage, "", false},
		"message alone": {"echo", "", meta(inMessage), true, inMessage, "", "", false},
		"http alone":    {"echo", inHTTP, "", false, inHTTP, "", "", false},
		"neither":       {"echo", "", "", false, "", "", "", false},
		"not a trace":   {"echo", "00-x", meta("00-y"), false, "", "", "", false},
		"fails":         {"fails", "", "", false, "", "", "error.type=tool_error", false},
		"error":         {"no", "", "", false, "", "", "error.type=-32602", false},
		"not sampled":   {"echo", inHTTP, meta(notTaken), false, "", "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spans := tracetest.NewSpanRecorder()
			c := newCalling(&holdfast.Options{Traces: traces.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), &traces.Options{UnderHTTP: test.under})})
			session := c.call(t, test.tool, test.http, test.meta)
			mcptest.Check(t, c.Shutdown(t.Context()))
			params := c.params[len(c.params)-1]
			told := jsonrpc.String(jsonrpc.Field([]byte(params), "_meta", "traceparent"))
			if !json.Valid([]byte(params)) || jsonrpc.Field([]byte(params), "arguments", "x") == nil || (test.meta != "") != (jsonrpc.Field([]byte(params), "_meta", "progressToken") != nil) {
				t.Errorf("the backend was told %s", params)
			}
			var span sdk.ReadOnlySpan
			for _, s := range spans.Ended() {
				if strings.HasPrefix(s.Name(), "tools/call") {
					span = s
				}
			}
			if test.unsampled {
				if span != nil || told != notTaken {
					t.Errorf("a span %v, and the backend is told %q", span != nil, told)
				}
				return
			}
			if span == nil {
				t.Fatal("there is no span")
			}
			own := text(span.SpanContext())
			if span.Name() != "tools/call "+test.tool || span.SpanKind() != trace.SpanKindServer || told != own {
				t.Errorf("%s, %v, %s; the backend is told %s", span.Name(), span.SpanKind(), own, told)
			}
			link := ""
			for _, l := range span.Links() {
				link += text(l.SpanContext)
			}
			if got := text(span.Parent()); got != test.parent || link != test.link {
				t.Errorf("the parent is %q, want %q; linked is %q, want %q", got, test.parent, link, test.link)
			}
			all := attribute.NewSet(span.Attributes()...)
			for _, want := range append(strings.Fields(test.attributes), "mcp.method.name=tools/call", "mcp.protocol.version=2025-11-25",
				"jsonrpc.request.id=a/b", "gen_ai.tool.name="+test.tool, "gen_ai.operation.name=execute_tool") {
				key, value, _ := strings.Cut(want, "=")
				if v, _ := all.Value(attribute.Key(key)); v.String() != value {
					t.Errorf("%s is %q, want %q", key, v.String(), value)
				}
			}
			if v, _ := all.Value("mcp.session.id"); v.AsString() == "" || strings.Contains(session, v.AsString()) {
				t.Errorf("mcp.session.id is %q", v.AsString())
			}
			if v, has := all.Value("error.type"); has != (test.attributes != "") {
				t.Errorf("error.type is %q", v.String())
			}
		})
	}
}

// text returns a span's context in the form of traceparent, or "".
func text(c trace.SpanContext) string {
	if !c.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%s", c.TraceID(), c.SpanID(), c.TraceFlags())
}

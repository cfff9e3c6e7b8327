package e2e

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A spanReceiver receives spans as a collector does, by OTLP over HTTP.
type spanReceiver struct {
	URL   string
	mu    sync.Mutex
	spans []*otlp.Span
	about string // the attributes of the last resource
	bad   error
}

func newSpanReceiver(t *testing.T) *spanReceiver {
	r := &spanReceiver{}
	r.URL = mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var said collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &said)
		}
		if err == nil && req.URL.Path != "/v1/traces" {
			err = fmt.Errorf("the path is %s", req.URL.Path)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if err != nil {
			r.bad = err
		}
		for _, of := range said.GetResourceSpans() {
			r.about = of.GetResource().String()
			for _, in := range of.GetScopeSpans() {
				r.spans = append(r.spans, in.GetSpans()...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	return r
}

// env returns the environment by which a program sends its spans to r.
func (r *spanReceiver) env(string) []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + r.URL, "OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_TRACES_SAMPLER=parentbased_always_off"}
}

// named returns the spans with names that begin with name.
func (r *spanReceiver) named(name string) []*otlp.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.spans), func(s *otlp.Span) bool { return !strings.HasPrefix(s.GetName(), name) })
}

// attributeOf returns an attribute of a span, or "".
func attributeOf(s *otlp.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			if text := a.GetValue().GetStringValue(); text != "" {
				return text
			}
			return fmt.Sprint(a.GetValue().GetIntValue())
		}
	}
	return ""
}

// A call that is cut and resumed, and then loses its node, is one span from its beginning to its end,
// and each of its connections is a child span.
func TestTracesOverCutAndKill(t *testing.T) {
	testlong.Only(t, "its call takes seconds, twice")
	t.Parallel()
	to := newSpanReceiver(t)
	f := newFleet(t, fileEngine(t), shape{nodes: 1, env: to.env})
	n := f.nodes[0]
	r := f.client(fixed(n.url()), func() string { return n.url() })
	ctx := bounded(t, 2*time.Minute)
	id := callID(t, "look")
	last := ""
	// read reads at most most messages of a response, and closes it.
	read := func(method, body string, most int, header ...string) (answered bool) {
		t.Helper()
		events := r.now().Stream(t, method, body, header...)
		defer func() {
			last = cmp.Or(events.LastID, last)
			events.Close()
		}()
		for said := 0; said < most; {
			ev, err := events.Next()
			if err != nil {
				return false
			}
			if len(ev.Data) > 0 {
				said++
			}
			if strings.Contains(string(ev.Data), `"result"`) {
				return true
			}
		}
		return false
	}
	began := time.Now()
	read("POST", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"look","arguments":{"id":"`+id+`","steps":100,"ms":3000},`+
		`"_meta":{"progressToken":1,"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}}`, 3,
		"Traceparent", "00-11111111111111111111111111111111-2222222222222222-01")
	mcptest.Eventually(t, "the first connection is known", time.Minute, func() bool { return len(to.named("connection post")) == 1 })
	read("GET", "", 3, "Last-Event-ID", last)
	mcptest.Eventually(t, "the second connection is known", time.Minute, func() bool { return len(to.named("connection last_event_id")) == 1 })
	killed := time.Now()
	n.kill()
	mcptest.Check(t, n.start(n.address()))
	for !read("GET", "", 10_000, "Last-Event-ID", last) {
		if ctx.Err() != nil {
			t.Fatal("the call did not end")
		}
	}
	f.wantRuns(id, 2, 2)
	mcptest.Eventually(t, "the call's span is known", time.Minute, func() bool { return len(to.named("tools/call look")) > 0 })
	if err := n.terminate(time.Minute); err != nil { // at its end the node sends the last spans
		t.Error(err)
	}

	if to.bad != nil {
		t.Error(to.bad)
	}
	all := to.named("tools/call look")
	if len(all) != 1 {
		t.Fatalf("%d spans of one call: %v", len(all), all)
	}
	span := all[0]
	if got := fmt.Sprintf("%x %x", span.GetTraceId(), span.GetParentSpanId()); got != "0af7651916cd43dd8448eb211c80319c b7ad6b7169203331" {
		t.Errorf("its trace and its parent are %s", got)
	}
	from, end := time.Unix(0, int64(span.GetStartTimeUnixNano())), time.Unix(0, int64(span.GetEndTimeUnixNano()))
	if from.Before(began) || from.After(killed) || !end.After(killed) {
		t.Errorf("from %v to %v; the call was made at %v, and its node killed at %v", from, end, began, killed)
	}
	if events := fmt.Sprint(span.GetEvents()); !strings.Contains(events, "taken over") {
		t.Errorf("its events are %s", events)
	}
	for key, want := range map[string]string{
		"mcp.method.name": "tools/call", "gen_ai.tool.name": "look", "jsonrpc.request.id": "7", "mcp.protocol.version": "2025-11-25",
		"holdfast.outcome": "result", "error.type": "",
	} {
		if got := attributeOf(span, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if name := attributeOf(span, "mcp.session.id"); name == "" || strings.Contains(r.session, name) {
		t.Errorf("mcp.session.id is %q", name)
	}
	children := to.named("connection ")
	if len(children) < 3 {
		t.Errorf("%d connections: %v", len(children), children)
	}
	for _, c := range children {
		if string(c.GetParentSpanId()) != string(span.GetSpanId()) || string(c.GetTraceId()) != string(span.GetTraceId()) {
			t.Errorf("%s is no child of the call", c.GetName())
		}
	}
	if !strings.Contains(to.about, `"holdfast"`) {
		t.Errorf("the resource is %s", to.about)
	}
	if all := to.named("initialize"); len(all) != 0 {
		t.Errorf("what the sampler leaves out is sent: %v", all)
	}
}

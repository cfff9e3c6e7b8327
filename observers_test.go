package holdfast_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/metrics"
)

// The figures and the audit of a handler agree about its calls.
func TestObservers(t *testing.T) {
	t.Parallel()
	var page bytes.Buffer
	registry := prometheus.NewRegistry()
	h := holdfast.NewBackendHandler(message.New(&exact{}), &holdfast.Options{
		Logger: slog.New(slog.DiscardHandler), Metrics: metrics.New(registry), Audit: slog.NewJSONHandler(&page, nil), AuditArguments: true,
	})
	m := &measured{Handler: h}
	m.begin()
	m.post(toolCall(2, "echo"))(&sink{head: map[string][]string{}})
	families := mcptest.Must(registry.Gather())(t)
	found := 0.0
	for _, f := range families {
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if f.GetName() == "holdfast_calls_total" && strings.Join(labels, " ") == "tools/call result  echo" {
				found = s.GetCounter().GetValue()
			}
		}
	}
	if found != 1 {
		t.Errorf("%v calls of the tool are counted", found)
	}
	mcptest.Check(t, h.Shutdown(t.Context()))
	var methods []string
	for text := range strings.Lines(page.String()) {
		var line struct{ Method, Tool, Outcome string }
		mcptest.Check(t, json.Unmarshal([]byte(text), &line))
		methods = append(methods, line.Method+" "+line.Tool+" "+line.Outcome)
	}
	if got, want := strings.Join(methods, ", "), "initialize  result, tools/list  result, tools/call echo result"; got != want {
		t.Errorf("the audit has %s, want %s", got, want)
	}
}

// Figures cost a light call few allocations.
func TestAllocationsObserved(t *testing.T) {
	if testlong.Race {
		t.Skip("the race detector allocates, too")
	}
	m := newMeasured(t)
	post, w := m.post(toolCall(2, "echo")), &sink{head: map[string][]string{}}
	before := allocations(func() { post(w) })
	m = newMeasured(t, func(o *holdfast.Options) { o.Metrics = metrics.New(prometheus.NewRegistry()) })
	post = m.post(toolCall(2, "echo"))
	if got := allocations(func() { post(w) }); got > before+4.5 {
		t.Errorf("%v allocations for a light call that is counted, %v for one that is not", got, before)
	}
}

package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/mcptest"
	"holdfast/internal/metrics"
	"holdfast/internal/observe"
	"holdfast/internal/server"
	"holdfast/internal/session"
)

// figures returns the samples of a node that are not zero; for a histogram, the number of observations.
func figures(t *testing.T, m *metrics.Metrics) map[string]float64 {
	t.Helper()
	all := prometheus.NewRegistry()
	all.MustRegister(m)
	families := mcptest.Must(all.Gather())(t)
	got := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), "holdfast_") + "{" + strings.Join(labels, " ") + "}"
			if v := s.GetGauge().GetValue() + s.GetCounter().GetValue() + float64(s.GetHistogram().GetSampleCount()); v != 0 {
				got[name] = v
			}
		}
	}
	return got
}

// TestDoorsFigures has clients at a door make calls, resume and listen, and reads the figures of the door and of its
// worker. Each event is counted once at each, at the door under its own names.
func TestDoorsFigures(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 0, config{})
	var all []*metrics.Metrics
	for _, role := range []server.Role{server.RoleWorker, server.RoleDoor} {
		m := metrics.New(observe.Figures{})
		all = append(all, m)
		f.start(config{server: server.Options{Role: role}, session: session.Options{Shared: session.Shared{Observers: observe.Observers{m}}}})
	}
	worker, door := f.nodes[0], f.nodes[1]
	door.meets(1)
	p := door.connect("2025-11-25", nil)
	for i := range 3 {
		p.post(callAs(fmt.Sprint(i+1), "echo", `{"text":"quick"}`))
	}
	stranger := *p
	stranger.id = "made up"
	if r := stranger.post(listTools); r.status != http.StatusNotFound {
		t.Errorf("a stranger: %d", r.status)
	}
	if r := p.open("GET", "/mcp", "", "Last-Event-ID: made up").all(); r.status != http.StatusBadRequest {
		t.Errorf("from an event that never was: %d", r.status)
	}
	if r := p.post(callAs("50", "steps", `{"key":"k","n":2}`)); !strings.Contains(string(r.body), "done") {
		t.Errorf("%d %s", r.status, r.body)
	}

	listens := p.open("GET", "/mcp", "")
	listens.head()
	held := p.open("POST", "/mcp", callAs("51", "hold", `{"key":"h"}`))
	first, err := held.next()
	if err != nil {
		t.Fatal(err)
	}
	mcptest.Eventually(t, "two readers", time.Minute, func() bool {
		got := figures(t, all[1])
		return got["forwarded_readers{door=listen}"] == 1 && got["forwarded_readers{door=post}"] == 1
	})
	held.c.Close()
	mcptest.Eventually(t, "the cut", time.Minute, func() bool { // else, on a busy machine, the resume may come first
		return figures(t, all[1])["forwarded_disconnects_total{door=post reason=cut}"] == 1
	})
	again := p.open("GET", "/mcp", "", "Last-Event-ID: "+first.ID)
	again.head()
	newer := p.open("GET", "/mcp", "", "Last-Event-ID: "+first.ID)
	newer.head()
	again.rest()
	worker.release(1)[0].Result(result("held"))
	newer.rest()
	listens.c.Close()

	want := map[string]float64{
		"forwarded_disconnects_total{door=post reason=finished}":            1,
		"forwarded_disconnects_total{door=post reason=cut}":                 1,
		"forwarded_disconnects_total{door=listen reason=cut}":               1,
		"forwarded_disconnects_total{door=last_event_id reason=superseded}": 1,
		"forwarded_disconnects_total{door=last_event_id reason=finished}":   1,
		"forwarded_resumes_total{door=last_event_id}":                       2,
		"forwarded_requests_total{status=202}":                              1, // initialized
		"forwarded_requests_total{status=400}":                              1,
		"forwarded_refusals_total{reason=bad_event_id status=400}":          1,
		"refusals_total{reason=session_not_found status=404}":               1,                         // by the door itself
		"forwarded_requests_total{status=200}":                              1 + 1 + 3 + 1 + 1 + 1 + 2, // initialize, tools/list, calls, streams
		"forwarded_call_duration_seconds{}":                                 1 + 1 + 3 + 1 + 1,
	}
	var got map[string]float64
	mcptest.Eventually(t, "all to have left", time.Minute, func() bool {
		got = figures(t, all[1])
		return got["forwarded_disconnects_total{door=listen reason=cut}"] == 1 && got["forwarded_disconnects_total{door=last_event_id reason=finished}"] == 1
	})
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s is %v at the door, want %v", name, got[name], n)
		}
	}
	for name, n := range got {
		if _, ok := want[name]; !ok && !strings.HasPrefix(name, "engine_") {
			t.Errorf("%s is %v at the door", name, n)
		}
	}
	at := figures(t, all[0])
	for name := range at {
		if strings.HasPrefix(name, "forwarded_") {
			t.Errorf("%s at the worker, which has no clients", name)
		}
	}
	if at["resumes_total{door=last_event_id}"] != 2 || at["calls_total{method=tools/call outcome=result server= tool=hold}"] != 1 {
		t.Errorf("at the worker: %v", at)
	}
}

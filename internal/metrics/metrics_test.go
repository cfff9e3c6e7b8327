package metrics

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/observe"
	_ "holdfast/internal/testlong" // the flag -long
	"holdfast/stream"
)

// values returns the samples that are not zero, as text. For a histogram it returns the number of observations.
func values(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	all := prometheus.NewPedanticRegistry()
	all.MustRegister(m)
	families, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := s.GetCounter().GetValue() + s.GetGauge().GetValue() + float64(s.GetHistogram().GetSampleCount())
			if v != 0 {
				got[strings.TrimPrefix(f.GetName(), "holdfast_")+"{"+strings.Join(labels, " ")+"}"] = v
			}
		}
	}
	return got
}

func want(t *testing.T, m *Metrics, all map[string]float64) {
	t.Helper()
	got := values(t, m)
	for name, v := range all {
		if got[name] != v {
			t.Errorf("%s is %v, want %v", name, got[name], v)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

func list(m *Metrics, server string, tools ...string) {
	m.Happened(observe.ToolsListed{Session: observe.Session{Server: server}, Tools: tools})
}

func call(m *Metrics, server, method, tool string) *observe.Watch {
	w := &observe.Watch{Call: observe.Call{Session: "s", Server: server, ID: "1", Method: method, Tool: tool, BytesIn: 10}}
	observe.Observers{m}.Begin(w, nil, nil)
	return w
}

func TestCalls(t *testing.T) {
	t.Parallel()
	m := New(observe.Figures{})
	list(m, "a", "echo")
	light := call(m, "a", "tools/call", "echo")
	light.Answered(0, "1", make([]byte, 5))
	light.Settle(0, "1", observe.ToolError, 0)
	light.End(0, observe.Cancelled, 0)

	stored := call(m, "a", "tools/call", "echo")
	want(t, m, map[string]float64{"calls_in_flight{kind=light server=a}": 1})
	stored.Stored(1)
	want(t, m, map[string]float64{"calls_in_flight{kind=stored server=a}": 1, "calls_in_flight{kind=light server=a}": 0})
	stored.Came(&observe.Reader{Number: 1})
	stored.Append(1, observe.Appended{Seq: 1, Data: make([]byte, 7)})
	stored.Happened(observe.BecameTask{})
	stored.Settle(1, "1", observe.Result, 0)
	stored.End(1, observe.Cancelled, 0)

	call(m, "b", "tools/call", "echo").End(0, observe.Unknown, -32010) // the server's list does not have this tool
	call(m, "b", "tools/call", "secret of a client").End(0, observe.Error, 1)
	call(m, "b", "made/up", "").End(0, observe.Cancelled, 0)
	call(m, "b", "ping", "").Leave(0)
	want(t, m, map[string]float64{
		"calls_total{method=tools/call outcome=tool_error server=a tool=echo}":       1,
		"calls_total{method=tools/call outcome=result server=a tool=echo}":           1,
		"calls_total{method=tools/call outcome=outcome_unknown server=b tool=other}": 1,
		"calls_total{method=tools/call outcome=error server=b tool=other}":           1,
		"calls_total{method=other outcome=cancelled server=b tool=}":                 1,
		"calls_total{method=ping outcome=result server=b tool=}":                     0,
		"calls_left_total{server=b}":                                                 1,
		"calls_stored_total{server=a}":                                               1,
		"calls_detached_total{server=a}":                                             1,
		"calls_in_flight{kind=stored server=a}":                                      0,
		"calls_in_flight{kind=light server=b}":                                       0,
		"call_duration_seconds{method=tools/call server=a tool=echo}":                2,
		"call_messages_total{server=a}":                                              2,
		"call_received_bytes_total{server=a}":                                        20,
		"call_sent_bytes_total{server=a}":                                            12,
		"call_connections{server=a}":                                                 2,
	})
}

// Neither clients nor servers can create an unlimited number of series.
func TestBoundedLabels(t *testing.T) {
	t.Parallel()
	m := New(observe.Figures{})
	for i := range 3 * mostTools {
		list(m, "a", fmt.Sprint("tool", i))
	}
	list(m, "a", strings.Repeat("x", longestTool+1))
	for i := range 3 * mostTools {
		call(m, "a", "tools/call", fmt.Sprint("tool", i)).End(0, observe.Result, 0)
		call(m, "a", fmt.Sprint("method", i), "").End(0, observe.Result, 0)
		call(m, "a", "tools/call", fmt.Sprint("unlisted", i)).End(0, observe.Result, 0)
	}
	n := 0
	for name := range values(t, m) {
		if strings.HasPrefix(name, "calls_total") {
			n++
		}
	}
	if n != mostTools+2 {
		t.Errorf("%d series, want %d tools, one for other tools and one for other methods", n, mostTools)
	}
	if got := values(t, m)["calls_total{method=tools/call outcome=result server=a tool=other}"]; got != 5*mostTools {
		t.Errorf("%v calls of other tools", got)
	}
}

// The calls that wait to be counted are bounded, also if the figures are never read.
func TestTallyBounded(t *testing.T) {
	t.Parallel()
	m := New(observe.Figures{})
	for range 3*mostEndings - 1 {
		call(m, "a", "ping", "").End(0, observe.Result, 0)
	}
	if n := len(m.seriesOf(seriesKey{"a", "ping", ""}).tally.ended); n != mostEndings-1 {
		t.Errorf("%d calls wait to be counted", n)
	}
	want(t, m, map[string]float64{"calls_total{method=ping outcome=result server=a tool=}": 3*mostEndings - 1})
}

func TestReaders(t *testing.T) {
	t.Parallel()
	m := New(observe.Figures{})
	w := call(m, "", "ping", "")
	w.Stored(1)
	first := &observe.Reader{Door: observe.DoorPost, Number: 1}
	again := &observe.Reader{Door: observe.DoorReplay, Number: 1}
	listens := &observe.Reader{Door: observe.DoorListen}
	w.Came(first)
	w.Happened(observe.ReaderWent{Reader: first, Why: observe.Cut})
	w.Came(again)
	m.Happened(observe.ReaderCame{Reader: listens})
	want(t, m, map[string]float64{
		"readers{door=post}": 0, "readers{door=last_event_id}": 1, "readers{door=listen}": 1,
		"resumes_total{door=last_event_id}": 1, "disconnects_total{door=post reason=cut}": 1,
	})
	w.Happened(observe.ReaderWent{Reader: again, Why: observe.Finished, Replayed: 3})
	m.Happened(observe.ReaderWent{Reader: listens, Why: observe.Superseded})
	want(t, m, map[string]float64{
		"readers{door=last_event_id}": 0, "readers{door=listen}": 0, "replayed_messages_total{door=last_event_id}": 3,
		"disconnects_total{door=last_event_id reason=finished}": 1, "disconnects_total{door=listen reason=superseded}": 1,
	})
}

func TestNodes(t *testing.T) {
	t.Parallel()
	m := New(observe.Figures{
		Memory: func() []observe.Memory {
			return []observe.Memory{{Part: "kept", Used: 1, Most: 2}, {Part: "in_flight", Used: 3, Most: 4}}
		},
		Ready: func() error { return nil }, AuditLost: func() uint64 { return 9 },
	})
	a, carrier := observe.Session{Name: "x", Server: "a"}, observe.Session{Name: "y", Server: "a", Carrier: true}
	for _, e := range []observe.Event{
		observe.SessionBegan{Session: a}, observe.SessionBegan{Session: carrier}, observe.SessionBegan{Session: carrier},
		observe.SessionEnded{Session: carrier, Left: true},
		observe.TakenOver{Session: a, Took: time.Second, Again: 2, Unknown: 3},
		observe.BackendOpened{Session: a}, observe.BackendOpened{Session: a, Err: errors.New("no")}, observe.BackendOpened{Session: a},
		observe.BackendClosed{Session: a},
		observe.Refused{Reason: "busy", Status: 429},
		observe.WebhookTried{Result: "sent"},
		observe.EngineAsked{Operation: "append", Took: time.Millisecond},
		observe.EngineAsked{Operation: "append", Err: fmt.Errorf("put: %w", stream.ErrConflict)},
		observe.EngineAsked{Operation: "put", Err: fmt.Errorf("put: %w", stream.ErrUnavailable)},
	} {
		m.Happened(e)
	}
	want(t, m, map[string]float64{
		"sessions{kind=client server=a}": 1, "sessions{kind=carrier server=a}": 1, "sessions_total{kind=carrier server=a}": 2,
		"takeover_duration_seconds{}": 1, "takeover_calls_total{result=again}": 2, "takeover_calls_total{result=outcome_unknown}": 3,
		"backends{server=a}": 1, "backend_open_seconds{server=a}": 3, "backend_errors_total{server=a}": 1,
		"refusals_total{reason=busy status=429}": 1, "webhooks_total{result=sent}": 1,
		"engine_operation_duration_seconds{operation=append}": 2, "engine_errors_total{operation=put reason=unavailable}": 1,
		"engine_errors_total{operation=append reason=other}": 0,
		"memory_bytes{part=kept}":                            1, "memory_limit_bytes{part=in_flight}": 4, "ready{}": 1, "audit_lost_total{}": 9,
	})
}

// A call's duration has the id of its recorded trace as an exemplar.
func TestExemplars(t *testing.T) {
	t.Parallel()
	const id = "0af7651916cd43dd8448eb211c80319c"
	for parent, want := range map[string]bool{
		"00-" + id + "-b7ad6b7169203331-01": true, "00-" + id + "-b7ad6b7169203331-00": false, "": false,
		"00-" + strings.Repeat("x", 32) + "-b7ad6b7169203331-01": false, "00-" + id: false, "00-" + id + "-b7ad6b7169203331-zz": false,
	} {
		m := New(observe.Figures{})
		w := &observe.Watch{Call: observe.Call{ID: "1", Method: "ping", Trace: observe.Trace{Parent: parent}}}
		observe.Observers{m}.Begin(w, nil, nil)
		w.End(0, observe.Result, 0)
		all := prometheus.NewRegistry()
		all.MustRegister(m)
		families, err := all.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := ""
		for _, f := range families {
			for _, s := range f.GetMetric() {
				for _, b := range s.GetHistogram().GetBucket() {
					for _, l := range b.GetExemplar().GetLabel() {
						found += l.GetName() + "=" + l.GetValue()
					}
				}
			}
		}
		if (found == "trace_id="+id) != want || found != "" && !want {
			t.Errorf("%q: exemplar %q", parent, found)
		}
	}
}

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// A script tells clients/call.mjs which calls to make, and how.
type script struct {
	SDK      int        `json:"sdk"`
	URL      string     `json:"url"`
	Door     string     `json:"door,omitempty"`
	Revision string     `json:"revision,omitempty"`
	Retries  int        `json:"retries,omitempty"`
	Probe    bool       `json:"probe,omitempty"`
	Answer   *string    `json:"answer,omitempty"`
	Timeout  int        `json:"timeout,omitempty"`
	Linger   int        `json:"linger,omitempty"`
	Calls    []toolCall `json:"calls"`
}

type toolCall struct {
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments"`
}

// A report is the output of clients/call.mjs.
type report struct {
	Revision string
	Asked    []string
	Errors   []string
	Calls    []struct {
		Result *toolResult
		Error  string
		Heard  []string
	}
}

// client runs clients/call.mjs with a script.
func client(t *testing.T, s script) report {
	t.Helper()
	npm(t, sdk1, sdk2)
	config := mcptest.Must(json.Marshal(s))(t)
	var r report
	unmarshal(t, run(t, "node", "clients/call.mjs", string(config)), &r)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the client's errors:\n%s", strings.Join(r.Errors, "\n"))
		}
	})
	if len(r.Calls) != len(s.Calls) {
		t.Fatalf("%d calls were made, want %d", len(r.Calls), len(s.Calls))
	}
	return r
}

// The long call: a progress notification every tenth of a second, then the result.
const (
	steps    = 20
	longText = "Long running operation completed. Duration: 2 seconds, Steps: 20."
)

var long = toolCall{"trigger-long-running-operation", map[string]any{"duration": 2, "steps": steps}}

// wantLong checks that every message of every call was received once, in order.
func (r report) wantLong(t *testing.T) {
	t.Helper()
	var want []string
	for i := range steps {
		want = append(want, fmt.Sprintf("progress %d", i+1))
	}
	want = append(want, "response")
	for i, call := range r.Calls {
		switch {
		case call.Error != "":
			t.Errorf("call %d: %s", i, call.Error)
		case len(call.Result.Content) != 1 || call.Result.Content[0].Text != longText:
			t.Errorf("call %d: got %+v", i, *call.Result)
		}
		if !slices.Equal(call.Heard, want) {
			t.Errorf("call %d received %q", i, call.Heard)
		}
	}
}

// wantRevision checks the revision that the client and holdfast agreed on.
func (r report) wantRevision(t *testing.T, want string) {
	t.Helper()
	if r.Revision != want {
		t.Errorf("the revision is %q, want %q", r.Revision, want)
	}
}

// always is a plan that cuts all event streams alike, but not the answer to initialize, which
// neither client resumes.
func always(c Cut) func(string) Cut {
	return resumed(c, c)
}

// resumed is a plan that cuts first streams with first, and resumed streams with each of then
// in turn.
func resumed(first Cut, then ...Cut) func(string) Cut {
	var n atomic.Int64
	return func(request string) Cut {
		switch {
		case has(request, "last-event-id"):
			return then[int(n.Add(1)-1)%len(then)]
		case has(request, "mcp-session-id"), strings.HasPrefix(request, "GET "):
			return first
		}
		return Cut{}
	}
}

// has reports whether a request has a header.
func has(request, header string) bool {
	return strings.Contains(strings.ToLower(request), "\r\n"+header+":")
}

// TestLongCall has both TypeScript clients make long calls, two at a time, over connections
// that are cut.
func TestLongCall(t *testing.T) {
	const often = 250 * time.Millisecond
	for _, sdk := range []int{1, 2} {
		for _, test := range []struct {
			name  string
			flags []string
			plan  func(string) Cut // nil: no proxy
			least int              // number of cuts
			also  script           // settings that differ from the client's defaults
			calls int              // 0: 2
		}{
			{name: "FIN", plan: always(Cut{After: often}), least: 4},
			{name: "RST", plan: always(Cut{After: often, Reset: true}), least: 4},
			{name: "half-open", plan: always(Cut{After: often, HalfOpen: true}), least: 4},
			{
				// A stream has no event id before its first message, and clients do not resume a
				// stream without one: of two such calls they would receive the end of one only.
				name: "2025-06-18", least: 2, also: script{Revision: "2025-06-18"},
				plan: always(Cut{After: often, Since: "\nid: ", Reset: true}),
			},
			{name: "always a stream", flags: []string{"--response", "sse"}, plan: always(Cut{After: often}), least: 4},
			{
				name: "cut within the header of resumed streams", least: 4, also: script{Retries: 100},
				plan: resumed(Cut{After: often}, Cut{Bytes: 20}, Cut{After: often}),
			},
			{
				// The clients forget the event id with which they resumed. If there are several
				// calls, the server can't tell which of them a client has lost, and the client
				// may receive the end of another call again.
				//
				// A client resumes twice in each round of 0.4 s, as it believes that there are two streams. Of three cuts each stream meets
				// each. Of two, one stream would always meet the same cut: the stream on which the server sends the call's events again.
				name: "resumed streams cut before their first event", least: 5, also: script{Retries: 100}, calls: 1,
				plan: resumed(Cut{After: often}, Cut{Bytes: 1, Body: true}, Cut{After: often}, Cut{After: often}),
			},
			{name: "server-side disconnect", flags: []string{"--disconnect-after", "300ms"}},
			{
				name: "server-side disconnect, and cuts", flags: []string{"--disconnect-after", "300ms"}, least: 5,
				plan: resumed(Cut{After: 200 * time.Millisecond}, Cut{After: 400 * time.Millisecond}, Cut{After: often}),
			},
		} {
			t.Run(fmt.Sprintf("sdk %d/%s", sdk, test.name), func(t *testing.T) {
				t.Parallel()
				p := serveEverything(t, append(test.flags, "--retry", "100ms")...)
				s := test.also
				s.SDK, s.URL, s.Calls = sdk, p.URL, []toolCall{long, long}
				if test.calls > 0 {
					s.Calls = s.Calls[:test.calls]
				}
				if test.plan != nil {
					s.URL = behind(t, p.URL, test.least, test.plan)
				}
				r := client(t, s)
				r.wantLong(t)
				r.wantRevision(t, cmp.Or(s.Revision, "2025-11-25"))
			})
		}
	}
}

// TestCutAtBytes cuts the streams of many concurrent calls, each at another byte after the
// stream's first event id.
func TestCutAtBytes(t *testing.T) {
	for _, sdk := range []int{1, 2} {
		t.Run(fmt.Sprintf("sdk %d", sdk), func(t *testing.T) {
			t.Parallel()
			const calls = 32
			p := serveEverything(t, "--retry", "100ms")
			var n atomic.Int64
			url := behind(t, p.URL, calls, func(request string) Cut {
				if !strings.HasPrefix(request, "POST ") || !has(request, "mcp-session-id") {
					return Cut{}
				}
				i := n.Add(1)
				return Cut{Bytes: 130 + 13*int(i), Body: true, Reset: i%2 == 0}
			})
			s := script{SDK: sdk, URL: url}
			for range calls {
				s.Calls = append(s.Calls, long)
			}
			client(t, s).wantLong(t)
		})
	}
}

// TestProbe has a client that knows revision 2026-07-28 find out whether holdfast knows it too,
// and go on with the newest revision that both know. The client reports no error, whatever the
// form of the answers.
func TestProbe(t *testing.T) {
	for _, flags := range [][]string{
		nil, {"--response", "json"}, {"--response", "sse"}, {"--legacy-only"}, {"--eras", "legacy"},
		{"--stateless"}, {"--eras", "both"}, {"--eras", "both", "--response", "json"}, {"--eras", "both", "--response", "sse"}, {"--eras", "modern"},
	} {
		revision := "2025-11-25" // the newest in which calls survive a cut
		if slices.Contains(flags, "both") || slices.Contains(flags, "modern") || slices.Contains(flags, "--stateless") {
			revision = "2026-07-28"
		}
		t.Run(strings.Join(append(flags, "serve"), " "), func(t *testing.T) {
			t.Parallel()
			p := serveEverything(t, flags...)
			echo := toolCall{"echo", map[string]any{"message": "hello"}}
			r := client(t, script{SDK: 2, URL: p.URL, Probe: true, Calls: []toolCall{echo}})
			r.wantRevision(t, revision)
			if c := r.Calls[0]; c.Error != "" || len(c.Result.Content) != 1 || c.Result.Content[0].Text != "Echo: hello" {
				t.Errorf("got %+v, error %q", c.Result, c.Error)
			}
			if len(r.Errors) > 0 {
				t.Errorf("the client saw errors: %q", r.Errors)
			}
		})
	}
}

// TestOldPair has clients of revision 2024-11-05 make long calls.
func TestOldPair(t *testing.T) {
	for _, sdk := range []int{1, 2} {
		t.Run(fmt.Sprintf("sdk %d", sdk), func(t *testing.T) {
			t.Parallel()
			p := serveEverything(t)
			client(t, script{SDK: sdk, Door: "sse", URL: p.SSE, Calls: []toolCall{long, long}}).wantLong(t)
		})
	}
	t.Run("EventSource, cut", func(t *testing.T) {
		t.Parallel()
		p := serveEverything(t)
		url := behind(t, p.SSE, 1, always(Cut{After: 1500 * time.Millisecond}))
		client(t, script{SDK: 1, Door: "eventsource", URL: url, Calls: []toolCall{long, long}}).wantLong(t)
	})
}

// TestAsk has a tool ask its client in the middle of a call.
func TestAsk(t *testing.T) {
	t.Parallel()
	answer := "forty-two"
	ask := toolCall{"ask", map[string]any{"question": "How many?"}}
	for _, sdk := range []int{1, 2} {
		for name, flags := range map[string][]string{
			"held":         nil,
			"disconnected": {"--disconnect-after", "200ms", "--retry", "100ms"},
			"JSON":         {"--response", "json"},
		} {
			t.Run(fmt.Sprintf("sdk %d/%s", sdk, name), func(t *testing.T) {
				t.Parallel()
				p := serve(t, append(flags, "--demo")...)
				r := client(t, script{SDK: sdk, URL: p.URL, Answer: &answer, Calls: []toolCall{ask, ask}})
				for i, call := range r.Calls {
					if call.Error != "" || call.Result.IsError || len(call.Result.Content) != 1 || call.Result.Content[0].Text != answer {
						t.Errorf("call %d: got %+v, error %q", i, call.Result, call.Error)
					}
				}
				if want := []string{"How many?", "How many?"}; !slices.Equal(r.Asked, want) {
					t.Errorf("asked %q", r.Asked)
				}
			})
		}
	}
}

// TestComesBackNoMore has both TypeScript clients give up a call after a second, and cancel it. They resume its stream, as they
// do with every stream that ends without a response, and are told that there is nothing more.
func TestComesBackNoMore(t *testing.T) {
	npm(t, sdk1, sdk2)
	for sdk, tests := range [][]struct {
		name string
		cut  Cut
		also script
		call toolCall
	}{
		1: {
			{name: "at once", call: toolCall{"count", map[string]any{"to": 2, "delay_ms": 60000}}},
			{name: "after cuts", cut: Cut{After: 300 * time.Millisecond, Reset: true}, call: toolCall{"count", map[string]any{"to": 600, "delay_ms": 100}}},
		},
		2: {
			{name: "after progress", call: toolCall{"count", map[string]any{"to": 600, "delay_ms": 100}}},
			{name: "2025-06-18", also: script{Revision: "2025-06-18"}, call: toolCall{"count", map[string]any{"to": 600, "delay_ms": 100}}},
		},
	} {
		for _, test := range tests {
			t.Run(fmt.Sprintf("sdk %d/%s", sdk, test.name), func(t *testing.T) {
				t.Parallel()
				p := serve(t, "--demo", "--retry", "100ms")
				var late, gets atomic.Int64
				url := behind(t, p.URL, 0, func(request string) Cut {
					switch {
					case strings.Contains(request, "notifications/cancelled"):
						late.Store(1)
					case has(request, "last-event-id") && late.Load() > 0:
						gets.Add(1)
					case has(request, "mcp-session-id"):
						return test.cut
					}
					return Cut{}
				})
				s := test.also
				s.SDK, s.URL, s.Timeout, s.Linger, s.Calls = sdk, url, 1000, 2500, []toolCall{test.call}
				r := client(t, s)
				if call := r.Calls[0]; !strings.Contains(call.Error, "timed out") {
					t.Errorf("the call ended with %+v, %s", call.Result, call.Error)
				}
				// One GET may be on its way when the call is cancelled, another follows it, and a third resumes the standalone stream, which is cut
				// too.
				if n := gets.Load(); late.Load() == 0 || n > 3 {
					t.Errorf("cancelled %d times, and %d GETs came after that", late.Load(), n)
				} else {
					t.Log(n, "GETs")
				}
			})
		}
	}
}

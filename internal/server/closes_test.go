package server_test

import (
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/metrics"
	"holdfast/internal/observe"
	"holdfast/internal/server"
	"holdfast/internal/session"
)

// closes is the number of calls of each kind.
var closes = flag.Int("closes", 20, "how many calls TestClosesUponResponse makes of each kind")

// TestClosesUponResponse has clients that close the connection as soon as they have read the whole JSON-RPC response,
// whatever is left of the HTTP response. The connection does not count as cut, and the response is not sent again.
func TestClosesUponResponse(t *testing.T) {
	t.Parallel()
	for _, size := range []int{10, 3_000, 7_900, 60_000, 200_000} {
		for _, at := range []string{"node", "door", "node, JSON", "door, JSON", "node, 2026-07-28", "door, 2026-07-28"} {
			if strings.HasSuffix(at, "28") && size != 10 {
				continue // calls of 2026-07-28 have progress, and a short result
			}
			t.Run(fmt.Sprint(at, " ", size), func(t *testing.T) {
				t.Parallel()
				at, how, _ := strings.Cut(at, ", ")
				response := server.ResponseAuto
				if how == "JSON" {
					response = server.ResponseJSON
				}
				m := metrics.New(observe.Figures{})
				f := newFarm(t, 0, config{})
				role := server.RoleBoth
				if at == "door" {
					role = server.RoleWorker
				}
				n := f.start(config{server: server.Options{Role: role, Response: response}, session: session.Options{Shared: session.Shared{Observers: observe.Observers{m}}}})
				n.HurryLost(50 * time.Millisecond)
				p := &peer{n: n.node}
				passed := metrics.New(observe.Figures{})
				if at == "door" {
					door := f.start(config{server: server.Options{Role: server.RoleDoor, Response: response}, session: session.Options{Shared: session.Shared{Observers: observe.Observers{passed}}}})
					door.meets(1)
					p.n = door.node
				}
				p = p.n.connect("2025-11-25", nil)
				times := *closes
				for i := range times {
					var w *wire
					if how == "2026-07-28" {
						w = (&peer{n: p.n}).callModern("steps", fmt.Sprintf(`{"key":"%d","n":2}`, i))
					} else {
						w = p.open("POST", "/mcp", callAs(fmt.Sprint(i+1), "hold", `{"key":"k"}`))
					}
					if how == "" {
						w.head()
					}
					end := `"result"`
					if how != "2026-07-28" {
						end = "end"
						n.release(1)[0].Result(result(strings.Repeat("x", size) + end))
					}
					for got := ""; !strings.Contains(got, end); {
						if how == "JSON" {
							body, err := io.ReadAll(io.LimitReader(w.head().Body, max(w.head().ContentLength, 1)))
							if got += string(body); err != nil || len(body) == 0 {
								t.Fatalf("%v after %.100s", err, got)
							}
							continue
						}
						ev, err := w.next()
						if err != nil {
							t.Fatal(err)
						}
						got = string(ev.Data)
					}
					w.c.Close()
				}
				mcptest.Eventually(t, "all to have left", time.Minute, func() bool {
					left := 0.0 // disconnects at the door, which counts none of JSON answers
					for _, n := range only(figures(t, passed), "disconnects_total") {
						left += n
					}
					return n.sessions.Readers() == 0 && (at == "node" || how == "JSON" || left == float64(times))
				})
				got := figures(t, m)
				if got["disconnects_total{door=post reason=finished}"] != float64(times) {
					t.Errorf("at the owner: %v", only(got, "disconnects_total"))
				}
				if got := figures(t, passed); at == "door" && how != "JSON" && got["forwarded_disconnects_total{door=post reason=finished}"] != float64(times) {
					t.Errorf("at the door: %v", only(got, "disconnects_total"))
				}
				l := p.open("GET", "/mcp", "")
				l.head()
				pass(t, 500*time.Millisecond) // a response would be told again after 50 ms
				if r := figures(t, m)["readers{door=session_id}"] + figures(t, m)["resumes_total{door=session_id}"]; r != 0 {
					t.Errorf("%v responses are told again", r)
				}
			})
		}
	}
}

// only returns the figures with a text in their names.
func only(all map[string]float64, text string) map[string]float64 {
	some := map[string]float64{}
	for name, n := range all {
		if strings.Contains(name, text) {
			some[name] = n
		}
	}
	return some
}

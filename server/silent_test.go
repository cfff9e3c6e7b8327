package server_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/server"
)

// TestCutBeforeAnID is a client whose silent call is cut before an event id has
// arrived, though one may have been written, and who has nothing besides but its GET
// stream, which was there long before. The result arrives there, once. (Failure 16)
func TestCutBeforeAnID(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		for _, how := range []cut{fin, rst} {
			for _, got := range []string{"nothing", "the head only"} {
				t.Run(fmt.Sprintf("%s/%s/%v", version, got, how), func(t *testing.T) {
					t.Parallel()
					var ended sync.Map // by the client's address
					n := newNode(t, config{
						server: server.Options{Retry: 20 * time.Millisecond},
						http: func(s *http.Server) {
							s.ConnState = func(c net.Conn, state http.ConnState) {
								if state == http.StateClosed {
									ended.Store(c.RemoteAddr().String(), true)
								}
							}
						},
					})
					p := n.connect(version, nil)
					w := p.open("GET", "/mcp", "")
					w.head()
					eventually(t, "the GET stream", func() bool { return n.sessions.Readers() == 1 })
					left := p.open("POST", "/mcp", call("hold", `{}`))
					held := n.release(1)
					if got != "nothing" {
						left.head()
					}
					left.atMost(0, how)
					eventually(t, "the cut to be noticed", func() bool {
						_, over := ended.Load(left.c.LocalAddr().String())
						return over
					})
					held[0].Result(result("late"))
					if ev := w.message(); !strings.Contains(string(ev.Data), "late") {
						t.Errorf("got %s", ev.Data)
					}
					p.unrelated("then")
					if ev := w.message(); !strings.Contains(string(ev.Data), "then") {
						t.Errorf("told again: %s", ev.Data)
					}
				})
			}
		}
	}
}

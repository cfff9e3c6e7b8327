package server_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
)

// TestCutBeforeAnID is a client with a silent call that is cut before an event id has arrived,
// though one may have been written. Its only other connection is a GET stream that was open
// before. The result arrives there, once. (Failure 16)
func TestCutBeforeAnID(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		for _, how := range []cut{fin, rst} {
			for _, got := range []string{"nothing", "the head only"} {
				t.Run(fmt.Sprintf("%s/%s/%v", version, got, how), func(t *testing.T) {
					t.Parallel()
					var ended sync.Map // keyed by the client's address
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
					mcptest.Eventually(t, "the GET stream", time.Minute, func() bool { return n.sessions.Readers() == 1 })
					left := p.open("POST", "/mcp", call("hold", `{}`))
					held := n.release(1)
					if got != "nothing" {
						left.head()
					}
					left.atMost(0, how)
					mcptest.Eventually(t, "the cut to be noticed", time.Minute, func() bool {
						_, over := ended.Load(left.c.LocalAddr().String())
						return over
					})
					held[0].Result(result("late"))
					if ev := w.message(); !strings.Contains(string(ev.Data), "late") {
						t.Errorf("got %s", ev.Data)
					}
					p.note("then")
					if ev := w.message(); !strings.Contains(string(ev.Data), "then") {
						t.Errorf("told again: %s", ev.Data)
					}
				})
			}
		}
	}
}

// ping reads a ping of Holdfast, and returns its event id and its request id.
func (w *wire) ping() (event string, id json.RawMessage) {
	w.t.Helper()
	ev := w.message()
	var m struct {
		JSONRPC, Method string
		ID              json.RawMessage
	}
	if err := json.Unmarshal(ev.Data, &m); err != nil || m.Method != "ping" || m.JSONRPC != "2.0" || len(m.ID) == 0 || ev.ID == "" {
		w.t.Fatalf("want a ping under an id, got %s under %q", ev.Data, ev.ID)
	}
	return ev.ID, m.ID
}

// pong answers the ping with a request id.
func (p *peer) pong(id json.RawMessage) {
	p.n.t.Helper()
	if r := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)); r.status != 202 || len(r.body) > 0 {
		p.n.t.Errorf("the answer to a ping: %d %s", r.status, r.body)
	}
}

// TestIDByPing is a client of a revision without empty events, with a silent call: a ping gives
// it an event id, and it resumes the call by that. A second, late answer to the ping changes
// nothing.
func TestIDByPing(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{
		PingAfter: 20 * time.Millisecond, UpgradeAfter: 20 * time.Millisecond, InputGrace: time.Millisecond, Retry: time.Millisecond,
	}})
	for _, version := range []string{"2025-03-26", "2025-06-18"} {
		for _, request := range []string{call("hold", `{}`), call("steps", `{"pause":300,"n":0}`)} {
			p := n.connect(version, nil)
			w := p.open("POST", "/mcp", request)
			id, q := w.ping()
			p.pong(q)
			w.atMost(0, rst)
			w = p.open("GET", "/mcp", "", "Last-Event-ID: "+id)
			w.head()
			if strings.Contains(request, "hold") {
				n.release(1)[0].Result(result("done"))
			}
			ev := w.message()
			if !strings.Contains(string(ev.Data), "done") {
				t.Errorf("%s: got %s", version, ev.Data)
			}
			p.pong(q) // late
			if _, err := w.next(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: after the result: %v", version, err)
			}
			// Read from its beginning, the stream has the same ids.
			link := "/mcp" + strings.TrimPrefix(strings.SplitN(p.open("GET", "/mcp", "", "Last-Event-ID: "+id).head().Header.Get("Link"), ">", 2)[0], "<")
			w = p.open("GET", strings.Replace(link, ".1.1", ".0.0", 1), "")
			if again, _ := w.ping(); again != id {
				t.Errorf("%s: the ping is %s, was %s", version, again, id)
			}
			if again := w.message(); again.ID != ev.ID {
				t.Errorf("%s: the result is %s, was %s", version, again.ID, ev.ID)
			}
		}
	}
}

// TestNoPing lists streams without a ping: the client gets an event id otherwise, or can't get
// one; the call has sent a message, or has ended; pings are off; or it is the standalone stream.
func TestNoPing(t *testing.T) {
	t.Parallel()
	const after = 20 * time.Millisecond
	for what, tc := range map[string]struct {
		version, call string
		also          server.Options
	}{
		"primed":        {version: "2025-11-25", call: call("hold", `{}`)},
		"JSON":          {version: "2025-06-18", call: call("hold", `{}`), also: server.Options{Response: server.ResponseJSON}},
		"has spoken":    {version: "2025-06-18", call: call("steps", `{"n":1}`)},
		"has asked":     {version: "2025-06-18", call: call("ask", `{}`)},
		"not asked for": {version: "2025-06-18", call: call("hold", `{}`), also: server.Options{PingAfter: -1}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			opts := tc.also
			opts.PingAfter = cmp.Or(opts.PingAfter, after)
			n := newNode(t, config{server: opts})
			p := n.connect(tc.version, nil)
			w := p.open("POST", "/mcp", tc.call)
			if !strings.Contains(tc.call, "steps") {
				held := n.release(1)
				pass(t, 5*after)
				held[0].Result(result("done"))
			}
			if r := w.all(); strings.Contains(string(r.body), "holdfast-ping") || !strings.Contains(string(r.body), "done") {
				t.Errorf("got %s", r.body)
			}
		})
	}
	t.Run("the standalone stream", func(t *testing.T) {
		t.Parallel()
		n := newNode(t, config{server: server.Options{PingAfter: after}})
		p := n.connect("2025-06-18", nil)
		w := p.open("GET", "/mcp", "")
		w.head()
		pass(t, 5*after)
		p.note("first")
		if ev := w.message(); !strings.Contains(string(ev.Data), "first") {
			t.Errorf("got %s", ev.Data)
		}
	})
}

// TestPingIsNoQuestion is a client that comes back at the stream URL, and has not answered a
// ping. The call does not count as waiting for the client's input.
func TestPingIsNoQuestion(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{PingAfter: 20 * time.Millisecond, InputGrace: time.Millisecond}})
	p := n.connect("2025-06-18", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	link := "/mcp" + strings.TrimPrefix(strings.SplitN(w.head().Header.Get("Link"), ">", 2)[0], "<")
	w.ping()
	pass(t, 50*time.Millisecond)
	w = p.open("GET", link, "")
	w.ping()
	n.release(1)[0].Result(result("done"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "done") {
		t.Errorf("got %s", ev.Data)
	}
}

// TestPingElsewhere is a client that answers a ping at another node. Then its session's node is
// lost, and it resumes by the ping's event id.
func TestPingElsewhere(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{
		server:   server.Options{PingAfter: 20 * time.Millisecond, UpgradeAfter: 20 * time.Millisecond},
		patience: 3 * time.Second,
	})
	p := f.nodes[0].connect("2025-06-18", nil)
	w := p.open("POST", "/mcp", call("safe_hold", `{"key":"far"}`))
	id, q := w.ping()
	p.at(f.nodes[1]).pong(q)
	f.nodes[0].kill()
	there := p.at(f.nodes[1])
	w = there.open("GET", "/mcp", "", "Last-Event-ID: "+id)
	f.nodes[1].release(1)[0].Result(result("done"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "done") {
		t.Errorf("got %s", ev.Data)
	}
	if n := f.runs("far"); n != 2 {
		t.Errorf("it ran %d times", n)
	}
}

// TestSwallowed is a client that comes back at the stream URL without an event id: a proxy
// swallowed all but the header of the stream with the server's question, and of the next one. Its
// requests never get the same status twice in a row, and it gets the question.
func TestSwallowed(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"the first", "the last"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, config{server: server.Options{InputGrace: 20 * time.Millisecond, Retry: time.Millisecond}})
			var left atomic.Int32 // streams that the proxy still swallows
			px := proxy{pass: func(client, server net.Conn) {
				rd := bufio.NewReader(server)
				for events := false; ; {
					line, err := rd.ReadString('\n')
					if _, e := io.WriteString(client, line); e != nil || err != nil {
						return
					}
					events = events || strings.HasPrefix(line, "Content-Type: text/event-stream")
					if line != "\r\n" {
						continue
					}
					if events && left.Add(-1) >= 0 {
						_, _ = io.Copy(io.Discard, rd)
					} else {
						_, _ = io.Copy(client, rd)
					}
					return
				}
			}}
			p := n.connect("2025-11-25", nil)
			p.via = px.listen(t, n.addr)
			linkOf := func(w *wire) string {
				return "/mcp" + strings.TrimPrefix(strings.SplitN(w.head().Header.Get("Link"), ">", 2)[0], "<")
			}
			left.Store(2)
			w := p.open("POST", "/mcp", call("ask", `{}`), "Connection: close")
			link := linkOf(w)
			if place == "the last" { // as after a POST to the URL
				link = strings.Replace(link, ".0~", ".1~", 1)
			}
			var before int
			for tries := 1; ; tries++ {
				if tries > 8 {
					t.Fatal("it is not told what it was asked")
				}
				_, _ = io.Copy(io.Discard, w.head().Body) // the stream is cut
				w = p.open("GET", link, "", "Connection: close")
				status := w.head().StatusCode
				if status == before {
					t.Errorf("try %d: %d again", tries, status)
				}
				if before = status; status == 200 && left.Load() < 0 {
					break
				}
			}
			ev := w.message()
			var q struct {
				Method string
				ID     json.RawMessage
			}
			if err := json.Unmarshal(ev.Data, &q); err != nil || q.Method != "elicitation/create" {
				t.Fatalf("asked %s", ev.Data)
			}
			w = p.open("POST", link, fmt.Sprintf(`[{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}]`, q.ID), "Connection: close")
			if ev := w.message(); !strings.Contains(string(ev.Data), "accept") {
				t.Errorf("got %s", ev.Data)
			}
		})
	}
}

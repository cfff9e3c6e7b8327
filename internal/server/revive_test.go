package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/caller"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
)

// restarted returns the client of a session at another node, as after a restart of the first.
func (p *peer) restarted(n *node) *peer {
	q := *p
	q.n, q.via = n, ""
	return &q
}

// echoes returns the status and body of a call of the tool echo.
func (p *peer) echoes(what string) string {
	p.n.t.Helper()
	r := p.post(call("echo", `{"text":"`+what+`"}`))
	return fmt.Sprint(r.status, " ", string(r.body))
}

// A session is revived after a restart that has lost everything, whether its client first sends a request, a notification or a GET.
func TestRevived(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			old := newNode(t, config{life: time.Hour})
			p := old.connect(version, nil)
			if got := p.echoes("before"); !strings.Contains(got, "before") {
				t.Fatal(got)
			}
			for what, first := range map[string]func(p *peer) error{
				"a request": func(p *peer) error {
					if got := p.echoes("again"); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, "again") {
						return errors.New(got)
					}
					return nil
				},
				"a notification": func(p *peer) error {
					if r := p.post(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`); r.status != http.StatusAccepted {
						return fmt.Errorf("%d %s", r.status, r.body)
					}
					return nil
				},
				"a GET": func(p *peer) error {
					w := p.open("GET", "/mcp", "")
					if status := w.head().StatusCode; status != http.StatusOK {
						return fmt.Errorf("status %d", status)
					}
					p.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"news"}}`)
					if ev := w.message(); !strings.Contains(string(ev.Data), "news") {
						return fmt.Errorf("heard %s", ev.Data)
					}
					return nil
				},
			} {
				n := newNode(t, config{life: time.Hour})
				q := p.restarted(n)
				if err := first(q); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if got := q.echoes("after"); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, "after") {
					t.Errorf("after %s: %s", what, got)
				}
				if all := n.sessions.Sessions(); all != 1 {
					t.Errorf("after %s: %d sessions", what, all)
				}
				if r := q.open("DELETE", "/mcp", "").all(); r.status/100 != 2 {
					t.Errorf("DELETE: %d", r.status)
				}
				if got := q.echoes("ended"); !strings.HasPrefix(got, "404 ") {
					t.Errorf("after DELETE: %s", got)
				}
			}
		})
	}
}

// A session that has expired is revived at its node, any number of times.
func TestRevivedAfterExpiry(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{life: time.Hour, session: session.Options{TTL: 50 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	for range 3 {
		mcptest.Eventually(t, "the session to expire", time.Minute, func() bool { return n.sessions.Sessions() == 0 })
		if got := p.echoes("again"); !strings.HasPrefix(got, "200 ") {
			t.Errorf("%s", got)
		}
	}
}

// A client that comes back for a call of a process that has ended gets "outcome unknown" at once.
func TestRevivedCall(t *testing.T) {
	t.Parallel()
	for _, id := range []string{`"c"`, `17`, `"5f0c6b3e-7d5c-4b0e-9a33-0d1d7f2a9d11"`} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			old := newNode(t, config{life: time.Hour})
			p := old.connect("2025-11-25", nil)
			w := p.open("POST", "/mcp", callAs(id, "hold", `{}`))
			held := old.release(1)
			primed, err := w.next()
			if err != nil {
				t.Fatal(err)
			}
			progress(held[0], 1, 1)
			told := w.message()
			link := "/mcp" + strings.TrimPrefix(strings.SplitN(w.head().Header.Get("Link"), ">", 2)[0], "<")
			n := newNode(t, config{life: time.Hour})
			q := p.restarted(n)
			for what, come := range map[string]func() *wire{
				"the first event":   func() *wire { return q.open("GET", "/mcp", "", "Last-Event-ID: "+primed.ID) },
				"a message":         func() *wire { return q.open("GET", "/mcp", "", "Last-Event-ID: "+told.ID) },
				"the URL":           func() *wire { return q.open("GET", link, "") },
				"the URL and event": func() *wire { return q.open("GET", link, "", "Last-Event-ID: "+told.ID) },
			} {
				r := come().all()
				all := r.events()
				if r.status != http.StatusOK || len(all) != 1 || !strings.Contains(string(all[0].Data), `"id":`+id) || !strings.Contains(string(all[0].Data), "outcome unknown") {
					t.Errorf("with %s: %d %s", what, r.status, r.body)
				}
			}
			bad := told.ID[:len(told.ID)-1]
			if r := q.open("GET", "/mcp", "", "Last-Event-ID: "+bad).all(); r.status != http.StatusBadRequest {
				t.Errorf("with an id that is not whole: %d %s", r.status, r.body)
			}
			// The standalone stream of the revived session is read from its beginning, also with an event id of the old one.
			q.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"news"}}`)
			p.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"old"}}`)
			get := p.open("GET", "/mcp", "")
			before := get.message()
			if ev := q.open("GET", "/mcp", "", "Last-Event-ID: "+before.ID).message(); !strings.Contains(string(ev.Data), "news") {
				t.Errorf("the standalone stream has %s", ev.Data)
			}
			if q.echoes("and on"); n.runs("") != 0 {
				t.Error("the call ran again")
			}
		})
	}
}

// A session is not revived for another principal, with a changed id, too late, or after it was ended, also if that was before a restart.
func TestNotRevived(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	as := func(name string) http.Header { return http.Header{"Authorization": {"Bearer " + name}} }
	c := config{life: time.Hour, dir: dir, server: server.Options{Principal: bearer}}
	old := newNode(t, c)
	p := old.connect("2025-11-25", as("alice"))
	ended := old.connect("2025-11-25", as("alice"))
	if r := ended.open("DELETE", "/mcp", "").all(); r.status/100 != 2 {
		t.Fatal(r.status)
	}
	n := newNode(t, c)
	for what, is := range map[string]*peer{
		"ended":     ended.restarted(n),
		"another's": {n: n, id: p.id, version: p.version, header: as("bob")},
		"nobody's":  {n: n, id: p.id, version: p.version},
		"cut":       {n: n, id: p.id[:len(p.id)-1], version: p.version, header: p.header},
		"longer":    {n: n, id: p.id + "A", version: p.version, header: p.header},
		"changed":   {n: n, id: p.id[:50] + turned(p.id[50]) + p.id[51:], version: p.version, header: p.header},
		"spliced":   {n: n, id: p.id[:40] + ended.id[40:], version: p.version, header: p.header},
		"made up":   {n: n, id: strings.Repeat("A", len(p.id)), version: p.version, header: p.header},
	} {
		if got := is.echoes("x"); !strings.HasPrefix(got, "404 ") {
			t.Errorf("%s: %s", what, got)
		}
		if r := is.open("GET", "/mcp", "").all(); r.status != http.StatusNotFound {
			t.Errorf("%s, by GET: %d", what, r.status)
		}
		if r := is.open("DELETE", "/mcp", "").all(); r.status != http.StatusNotFound {
			t.Errorf("%s, by DELETE: %d", what, r.status)
		}
	}
	if n.sessions.Sessions() != 0 {
		t.Errorf("%d sessions were revived", n.sessions.Sessions())
	}
	if got := p.restarted(n).echoes("mine"); !strings.HasPrefix(got, "200 ") {
		t.Errorf("its own client: %s", got)
	}
	late := newNode(t, config{life: time.Nanosecond, server: server.Options{Principal: bearer}})
	if got := p.restarted(late).echoes("late"); !strings.HasPrefix(got, "404 ") {
		t.Errorf("too late: %s", got)
	}
	other := newNode(t, config{server: server.Options{Principal: bearer}})
	if got := p.restarted(other).echoes("none"); !strings.HasPrefix(got, "404 ") {
		t.Errorf("where none is revived: %s", got)
	}
}

// turned returns another character of the base64 alphabet.
func turned(c byte) string {
	if c == 'A' {
		return "B"
	}
	return "A"
}

// If clients of an expired session come back at several nodes at once, one node revives it, and all are served.
func TestRevivedOnce(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, config{life: time.Hour, session: session.Options{TTL: 100 * time.Millisecond}})
	p := f.nodes[0].connect("2025-11-25", nil)
	for round := range 5 {
		mcptest.Eventually(t, "the session to expire", time.Minute, func() bool {
			all := 0
			for _, n := range f.nodes {
				all += n.sessions.Sessions()
			}
			_, err := f.nodes[0].store.Lookup(context.Background(), whereabouts.KeyOf(p.id))
			return all == 0 && err != nil
		})
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				text := fmt.Sprintf("%d of %d", i, round)
				r := p.at(f.nodes[i%3]).post(callAs(fmt.Sprint(100*round+i), "echo", `{"text":"`+text+`"}`))
				if r.status != 200 || !strings.Contains(string(r.body), text) {
					t.Errorf("%s: %d %s", text, r.status, r.body)
				}
			})
		}
		all.Wait()
	}
	if r := p.at(f.nodes[1]).open("DELETE", "/mcp", "").all(); r.status/100 != 2 {
		t.Errorf("DELETE: %d %s", r.status, r.body)
	}
	for _, n := range f.nodes {
		if got := p.at(n).echoes("ended"); !strings.HasPrefix(got, "404 ") {
			t.Errorf("after DELETE: %s", got)
		}
	}
}

// A revived session is taken over like any other, and its client can come through a door.
func TestRevivedElsewhere(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 1, config{life: time.Hour, session: session.Options{TTL: 100 * time.Millisecond}})
	door := f.start(config{life: time.Hour, server: server.Options{Role: server.RoleDoor}})
	p := f.nodes[0].connect("2025-11-25", nil)
	expire := func() {
		mcptest.Eventually(t, "the session to expire", time.Minute, func() bool {
			_, err := f.nodes[0].store.Lookup(context.Background(), whereabouts.KeyOf(p.id))
			return f.nodes[0].sessions.Sessions() == 0 && err != nil
		})
	}
	expire()
	if got := p.at(door).echoes("by a door"); !strings.HasPrefix(got, "200 ") {
		t.Errorf("by a door: %s", got)
	}
	expire()
	w := p.at(door).open("POST", "/mcp", callAs(`"h"`, "hold", `{"key":"k"}`))
	held := f.heldAt(f.nodes[:1])
	progress(held, 1, 1)
	told := w.message()
	next := f.start(config{life: time.Hour})
	f.nodes[0].kill()
	for {
		ev, err := w.next()
		if errors.Is(err, io.EOF) || err != nil {
			w = p.at(next).open("GET", "/mcp", "", "Last-Event-ID: "+told.ID)
			continue
		}
		if strings.Contains(string(ev.Data), `"id":"h"`) {
			if !strings.Contains(string(ev.Data), "outcome unknown") {
				t.Errorf("told %s", ev.Data)
			}
			break
		}
	}
	if got := p.at(next).echoes("taken over"); !strings.HasPrefix(got, "200 ") {
		t.Errorf("taken over: %s", got)
	}
}

// A session with a failed initialize has not begun, and is not revived.
func TestFailedNotRevived(t *testing.T) {
	t.Parallel()
	b := message.New(message.HandlerFunc(func(x *message.Exchange) {
		if x.Kind == jsonrpc.Request {
			x.Error(jsonrpc.Errorf(jsonrpc.CodeServer, "not today"))
		}
	}))
	n := newNode(t, config{life: time.Hour, backend: b, server: server.Options{Response: server.ResponseSSE}})
	p := &peer{n: n, version: "2025-11-25"}
	r := p.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
	if p.id = r.header.Get("Mcp-Session-Id"); p.id == "" || !strings.Contains(string(r.body), "not today") {
		t.Fatal(r.status, string(r.body))
	}
	if r := p.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); r.status != http.StatusNotFound {
		t.Errorf("it goes on: %d %s", r.status, r.body)
	}
}

// If a node is lost just after it has written the record of a session that it revives, other nodes can still revive the session.
func TestRevivedHalf(t *testing.T) {
	t.Parallel()
	var began atomic.Int32
	inner := newScript()
	b := message.New(message.HandlerFunc(func(x *message.Exchange) {
		if x.Method == "initialize" {
			began.Add(1)
		}
		inner.Serve(x)
	}))
	f := newFarm(t, 2, config{life: time.Hour, backend: b, session: session.Options{TTL: 100 * time.Millisecond}})
	p := f.nodes[0].connect("2025-11-25", nil)
	p.version = "2025-06-18" // the server has chosen this revision
	mcptest.Eventually(t, "the session to expire", time.Minute, func() bool {
		_, err := f.nodes[0].store.Lookup(context.Background(), whereabouts.KeyOf(p.id))
		return f.nodes[0].sessions.Sessions() == 0 && err != nil
	})
	before := began.Load()
	about, err := json.Marshal(map[string]any{"id": p.id, "life": 5000, "revision": p.version})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.nodes[0].store.Revive(t.Context(), whereabouts.KeyOf(p.id), about, 5000); err != nil {
		t.Fatal(err)
	}
	for _, n := range f.nodes {
		if got := p.at(n).echoes("again"); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, "again") {
			t.Errorf("%s", got)
		}
	}
	if began.Load() == before {
		t.Error("the server got no initialize")
	}
	p.at(f.nodes[1]).open("GET", "/mcp", "").head() // with a reader, the session does not expire
	revision := ""
	for _, n := range f.nodes {
		if s, err := n.sessions.Find(p.id, caller.Principal{}); err == nil {
			revision = s.Revision()
		}
	}
	if revision != p.version {
		t.Errorf("it speaks revision %q", revision)
	}
}

// A WebSocket that names an expired session revives it, at a node and at a door.
func TestRevivedOnSocket(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{life: time.Hour, session: session.Options{TTL: 100 * time.Millisecond}})
	door := f.start(config{life: time.Hour, server: server.Options{Role: server.RoleDoor}})
	p := f.nodes[0].connect("2025-11-25", nil)
	for i, n := range []*farmNode{f.nodes[0], f.nodes[1], door} {
		mcptest.Eventually(t, "the session to expire", time.Minute, func() bool {
			_, err := f.nodes[0].store.Lookup(context.Background(), whereabouts.KeyOf(p.id))
			return f.nodes[0].sessions.Sessions()+f.nodes[1].sessions.Sessions() == 0 && err != nil
		})
		c, res, err := n.dialSocket(0, "Mcp-Session-Id: "+p.id)
		if err != nil {
			body := ""
			if res != nil {
				text, _ := io.ReadAll(res.Body)
				body = res.Status + " " + string(text)
			}
			t.Errorf("node %d: %v %s", i, err, body)
			continue
		}
		if err := c.send(call("echo", `{"text":"x"}`)); err != nil {
			t.Errorf("node %d: %v", i, err)
		}
		if text, err := c.recv(); err != nil || !strings.Contains(string(text), `"x"`) {
			t.Errorf("node %d: %s %v", i, text, err)
		}
		c.cut(fin)
	}
}

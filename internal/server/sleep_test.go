package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/caller"
	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
)

// recorder is a script that names a version, and records the messages that it gets.
type recorder struct {
	*script
	version atomic.Int64
	speaks  string // the revision that the server chooses; "": the client's

	said sync.Mutex
	all  []string // methods, with the level or URI that they set
}

func (s *recorder) Serve(x *message.Exchange) {
	s.said.Lock()
	s.all = append(s.all, x.Method+jsonrpc.String(jsonrpc.Field(x.Params, "level"))+jsonrpc.String(jsonrpc.Field(x.Params, "uri")))
	s.said.Unlock()
	switch x.Method {
	case "initialize":
		revision := jsonrpc.String(jsonrpc.Field(x.Params, "protocolVersion"))
		if s.speaks != "" {
			revision = s.speaks
		}
		x.Result(fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":{"tools":{"listChanged":true},"logging":{},"resources":{"subscribe":true}},"serverInfo":{"name":"recorder","version":"%d"}}`,
			revision, s.version.Load()))
	case "ping":
		x.Sink.EmitUnrelated(mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"pinged"}}`))
		x.Result([]byte(`{}`))
	case "completion/complete":
		x.Sink.EmitUnrelated(mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`))
		x.Result([]byte(`{"completion":{"values":[]}}`))
	case "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		x.Result([]byte(`{}`))
	default:
		if jsonrpc.String(jsonrpc.Field(x.Params, "name")) == "unlisted" {
			x.Result(result("done"))
			return
		}
		s.script.Serve(x)
	}
}

// since returns the messages that the server got after the first n.
func (s *recorder) since(n int) []string {
	s.said.Lock()
	defer s.said.Unlock()
	return slices.Clone(s.all[n:])
}

// asleep waits until the node has no session.
func (n *node) asleep() {
	n.t.Helper()
	mcptest.Eventually(n.t, "the sessions to fall asleep", time.Minute, func() bool { return n.sessions.Sessions() == 0 })
}

// shortly keeps ended calls so briefly that they keep no session awake.
var shortly = memory.Options{Keep: 50 * time.Millisecond, Acknowledged: 50 * time.Millisecond}

// sleepy returns options with which sessions fall asleep soon.
func sleepy() session.Options { return session.Options{SleepAfter: 50 * time.Millisecond} }

// A session falls asleep if nothing would be lost. A request, a notification or a GET of its client wakes it, and the
// client notices nothing: its log level and subscriptions are set again, and it need not list anything again.
func TestSleeps(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{"2025-03-26", "2025-11-25"} {
		for what, come := range map[string]func(p *peer) error{
			"a request": func(p *peer) error { return p.echoed("again") },
			"a notification": func(p *peer) error {
				if r := p.post(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`); r.status != http.StatusAccepted {
					return fmt.Errorf("%d %s", r.status, r.body)
				}
				return nil
			},
			"a GET": func(p *peer) error {
				w := p.open("GET", "/mcp", "")
				defer w.c.Close()
				if status := w.head().StatusCode; status != http.StatusOK {
					return fmt.Errorf("status %d", status)
				}
				return nil
			},
		} {
			t.Run(revision+", "+what, func(t *testing.T) {
				t.Parallel()
				b := &recorder{script: newScript(), speaks: revision}
				n := newNode(t, config{life: time.Hour, session: sleepy(), backend: message.New(b), memory: shortly})
				p := n.connect("2025-06-18", nil) // the server may choose another revision
				p.version = revision
				if revision == "2025-03-26" {
					p.version = "" // its clients do not name their revision
				}
				p.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
				p.post(`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}`)
				p.post(`{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"x:a"}}`)
				p.post(`{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"x:b"}}`)
				p.post(`{"jsonrpc":"2.0","id":5,"method":"resources/unsubscribe","params":{"uri":"x:a"}}`)
				mcptest.Check(t, p.echoed("before"))
				n.asleep()
				was := len(b.since(0))
				if err := come(p); err != nil {
					t.Error(err)
				}
				if err := p.echoed("after"); err != nil {
					t.Error(err)
				}
				told := b.since(was)
				if want := []string{"initialize", "notifications/initialized", "logging/setLevelerror", "resources/subscribex:b"}; len(told) < 4 || !slices.Equal(told[:4], want) {
					t.Errorf("the server was told %q", told)
				}
				if got := p.speaks(); got != revision {
					t.Errorf("the session speaks %q", got)
				}
				n.asleep()
				w := p.open("GET", "/mcp", "")
				p.post(`{"jsonrpc":"2.0","id":6,"method":"ping"}`)
				if ev := w.message(); !strings.Contains(string(ev.Data), "pinged") {
					t.Errorf("it hears %s", ev.Data)
				}
			})
		}
	}
}

// echoed reports whether a call of the tool echo gets its answer.
func (p *peer) echoed(text string) error {
	if got := p.echoes(text); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, text) {
		return errors.New(got)
	}
	return nil
}

// speaks returns the revision of the peer's session. A GET keeps the session awake meanwhile.
func (p *peer) speaks() string {
	w := p.open("GET", "/mcp", "")
	defer w.c.Close()
	w.head()
	s, err := p.n.sessions.Find(p.id, caller.Principal{})
	if err != nil {
		return err.Error()
	}
	return s.Revision()
}

// If the server has another version when a session wakes, its lists may have changed: the client gets
// notifications/tools/list_changed. The same holds if another session, awake, got a notification that a list has changed.
func TestWokenByAnother(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(n *node, b *recorder){
		"another version": func(_ *node, b *recorder) { b.version.Add(1) },
		"another list": func(n *node, _ *recorder) {
			n.connect("2025-11-25", nil).post(`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{}}`)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := &recorder{script: newScript()}
			n := newNode(t, config{life: time.Hour, session: sleepy(), backend: message.New(b)})
			p := n.connect("2025-11-25", nil)
			n.asleep()
			change(n, b)
			w := p.open("GET", "/mcp", "")
			p.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
			if ev := w.message(); !strings.Contains(string(ev.Data), "notifications/tools/list_changed") {
				t.Errorf("it hears %s", ev.Data)
			}
		})
	}
}

// A session stays awake as long as something would be lost, or if it could not be revived.
func TestStaysAwake(t *testing.T) {
	t.Parallel()
	b := &recorder{script: newScript()}
	n := newNode(t, config{life: time.Hour, session: sleepy(), memory: memory.Options{Keep: time.Hour}, backend: message.New(b)})
	n.script = b.script
	old := newNode(t, config{session: session.Options{SleepAfter: time.Millisecond}})
	old.connect("2025-11-25", nil)
	awake := map[string]*peer{}
	for what, do := range map[string]func(p *peer){
		"a call of a tool that may leave something": func(p *peer) { p.post(call("steps", `{}`)) },
		"one that may be made again":                func(p *peer) { p.post(call("safe_steps", `{}`)) },
		"one of which nothing is known":             func(p *peer) { p.post(call("unlisted", `{}`)) },
		"a vendor's method":                         func(p *peer) { p.post(`{"jsonrpc":"2.0","id":1,"method":"vendor/x"}`) },
		"a vendor's notification":                   func(p *peer) { p.post(`{"jsonrpc":"2.0","method":"notifications/vendor"}`) },
		"a GET":                                     func(p *peer) { p.open("GET", "/mcp", "").head() },
		"a call in flight":                          func(p *peer) { p.open("POST", "/mcp", call("safe_hold", `{}`)); n.holds(1) },
		"a result that is kept": func(p *peer) {
			p.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
			w := p.open("POST", "/mcp", call("echo", `{"text":"kept"}`), "Idempotency-Key: k")
			w.all()
		},
		"what no client has heard": func(p *peer) {
			p.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		},
	} {
		p := n.connect("2025-11-25", nil)
		do(p)
		awake[what] = p
	}
	// A session that begins later falls asleep later than the others would.
	for range 3 {
		n.connect("2025-11-25", nil)
		mcptest.Eventually(t, "the session to fall asleep", time.Minute, func() bool { return n.sessions.Sessions() <= len(awake) })
	}
	for what, p := range awake {
		if _, err := n.sessions.Find(p.id, caller.Principal{}); err != nil {
			t.Errorf("after %s it has fallen asleep", what)
		}
	}
	if old.sessions.Sessions() != 1 {
		t.Error("a session has fallen asleep that nothing could wake")
	}
}

// A client can end its sleeping session, which then stays ended. Another principal can neither use nor end it.
func TestEndedAsleep(t *testing.T) {
	t.Parallel()
	as := func(name string) http.Header { return http.Header{"Authorization": {"Bearer " + name}} }
	n := newNode(t, config{life: time.Hour, session: sleepy(), server: server.Options{Principal: bearer}})
	p := n.connect("2025-11-25", as("alice"))
	n.asleep()
	other := &peer{n: n, id: p.id, version: p.version, header: as("bob")}
	if r := other.open("DELETE", "/mcp", "").all(); r.status != http.StatusNotFound {
		t.Errorf("another's DELETE: %d", r.status)
	}
	if got := other.echoes("x"); !strings.HasPrefix(got, "404 ") {
		t.Errorf("another: %s", got)
	}
	if err := p.echoed("mine"); err != nil {
		t.Error(err)
	}
	if r := p.open("DELETE", "/mcp", "").all(); r.status/100 != 2 {
		t.Errorf("DELETE: %d", r.status)
	}
	if got := p.echoes("x"); !strings.HasPrefix(got, "404 ") {
		t.Errorf("after DELETE: %s", got)
	}
}

// A request that is repeated under its idempotency key does not run again, also if its session has slept meanwhile.
func TestKeyAfterSleep(t *testing.T) {
	t.Parallel()
	o := sleepy()
	o.Forgets = true
	n := newNode(t, config{life: time.Hour, session: o, memory: memory.Options{Keep: 50 * time.Millisecond, Acknowledged: 50 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	body := call("steps", `{"key":"k"}`)
	if r := p.open("POST", "/mcp", body, "Idempotency-Key: one").all(); r.status != 200 {
		t.Fatal(r.status, string(r.body))
	}
	n.asleep()
	r := p.open("POST", "/mcp", body, "Idempotency-Key: one").all()
	if n.script.runs["k"] != 1 {
		t.Errorf("it has run %d times: %d %s", n.script.runs["k"], r.status, r.body)
	}
}

// A sleepers is an observer that counts how often sessions fell asleep.
type sleepers struct{ atomic.Int64 }

func (*sleepers) Began(*observe.Call, []byte) observe.CallObserver { return nil }

func (s *sleepers) Happened(e observe.Event) {
	if _, ok := e.(observe.SessionSlept); ok {
		s.Add(1)
	}
}

// Requests that come while their session falls asleep are answered, at one node and at two.
func TestFallsAsleepUnderRequests(t *testing.T) {
	t.Parallel()
	// The session sleeps only once nothing is kept of its calls. The other node reads on for a client that has left (endGrace in placement).
	for what, quiet := range map[string]time.Duration{"alone": 0, "two nodes": 200 * time.Millisecond} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var slept sleepers
			c := config{life: time.Hour, session: session.Options{SleepAfter: time.Nanosecond, Forgets: true}}
			c.session.Observers = observe.Observers{&slept}
			c.memory = memory.Options{Keep: time.Millisecond, Acknowledged: time.Millisecond}
			var nodes []*node
			if quiet == 0 {
				nodes = append(nodes, newNode(t, c))
			} else {
				for _, n := range newFarm(t, 2, c).nodes {
					nodes = append(nodes, n.node)
				}
			}
			p := nodes[0].connect("2025-11-25", nil)
			var all sync.WaitGroup
			began, least := time.Now(), testlong.Either(time.Second, 8*time.Second)
			for i := range 4 {
				q := p.restarted(nodes[i%len(nodes)])
				all.Go(func() {
					// The session must have slept between two requests; on a busy machine that may take a while.
					for j := 0; time.Since(began) < least || slept.Load() < 2 && time.Since(began) < time.Minute; j++ {
						text := fmt.Sprintf("%d of %d", j, i)
						switch r := q.post(callAs(fmt.Sprintf(`"%d-%d"`, i, j), "echo", `{"text":"`+text+`"}`)); {
						case r.status != 200 || !strings.Contains(string(r.body), text):
							t.Errorf("%s: %d %s", text, r.status, r.body)
							return
						case j%3 == i%3:
							w := q.open("GET", "/mcp", "")
							if status := w.head().StatusCode; status != 200 {
								t.Errorf("GET: %d", status)
							}
							w.c.Close()
						}
						if j%8 == 0 {
							time.Sleep(quiet + time.Duration(i*5)*time.Millisecond) // so that all clients are quiet at times
						}
					}
				})
			}
			all.Wait()
			if slept.Load() < 2 {
				t.Errorf("it slept %d times", slept.Load())
			}
		})
	}
}

// A session wakes on any node, with its revision and its log level. An end on one node holds for all.
func TestWakesElsewhere(t *testing.T) {
	t.Parallel()
	b := &recorder{script: newScript(), speaks: "2025-03-26"}
	f := newFarm(t, 2, config{life: time.Hour, session: sleepy(), backend: message.New(b)})
	p := f.nodes[0].connect("2025-11-25", nil)
	p.version = ""
	p.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	p.post(`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"error"}}`)
	gone := func() {
		t.Helper()
		mcptest.Eventually(t, "the session to fall asleep", time.Minute, func() bool {
			_, err := f.nodes[0].store.Lookup(context.Background(), whereabouts.KeyOf(p.id))
			return f.nodes[0].sessions.Sessions()+f.nodes[1].sessions.Sessions() == 0 && err != nil
		})
	}
	for i := range 4 {
		gone()
		was := len(b.since(0))
		if r := p.at(f.nodes[(i+1)%2]).post(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`); r.status != 200 {
			t.Errorf("%d %s", r.status, r.body)
		}
		if told := b.since(was); len(told) < 3 || told[2] != "logging/setLevelerror" {
			t.Errorf("the server was told %q", told)
		}
		if got := p.at(f.nodes[(i+1)%2]).speaks(); got != "2025-03-26" {
			t.Errorf("the session speaks %q", got)
		}
	}
	gone()
	if r := p.at(f.nodes[1]).open("DELETE", "/mcp", "").all(); r.status/100 != 2 {
		t.Errorf("DELETE: %d %s", r.status, r.body)
	}
	for _, n := range f.nodes {
		if got := p.at(n).echoes("ended"); !strings.HasPrefix(got, "404 ") {
			t.Errorf("after DELETE: %s", got)
		}
	}
}

// A sleeping session leaves nothing in the store, and a wake writes at most two values and two frames, so that very many sessions can wake at once.
func TestWakesAtLittleCost(t *testing.T) {
	t.Parallel()
	b := &recorder{script: newScript()}
	f := newFarm(t, 2, config{life: time.Hour, session: sleepy(), backend: message.New(b)})
	p := f.nodes[0].connect("2025-11-25", nil)
	p.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	key := whereabouts.KeyOf(p.id)
	frames := "e." + string(key)
	const wakes = 10
	puts, appends := 0, 0
	for i := range wakes {
		mcptest.Eventually(t, "the session to sleep, and to leave nothing", time.Minute, func() bool {
			_, err := f.nodes[0].store.Lookup(context.Background(), key)
			return f.nodes[0].sessions.Sessions()+f.nodes[1].sessions.Sessions() == 0 && err != nil && f.engine.Kept(frames) == 0
		})
		puts, appends = puts-f.engine.CountOf("Put", string(key)), appends-f.engine.CountOf("Append", string(key))
		if r := p.at(f.nodes[i%2]).post(`{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"x:a"}}`); r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		puts, appends = puts+f.engine.CountOf("Put", string(key)), appends+f.engine.CountOf("Append", string(key))
	}
	if puts > 2*wakes || appends > 2*wakes { // the list of tools that are retry-safe included
		t.Errorf("%d values and %d frames were written to wake %d times", puts, appends, wakes)
	}
}

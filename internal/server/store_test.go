package server_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// deafStore is a store that can be written, but not read while on is set.
type deafStore struct {
	stream.Store
	on atomic.Bool
}

func (d *deafStore) Watch(id stream.ID, ready chan<- struct{}) (stop func(), err error) {
	if d.on.Load() {
		return nil, stream.ErrUnavailable
	}
	return d.Store.Watch(id, ready)
}

func (d *deafStore) over(s stream.Store) stream.Store {
	d.Store = s
	return d
}

// An endlessStore is a store that does not say where streams end while on is set.
type endlessStore struct {
	stream.Store
	on     atomic.Bool
	failed chan struct{} // gets a value for each failure, if there is room
	fails  atomic.Int64  // how many failures there were
}

func (e *endlessStore) Bounds(ctx context.Context, id stream.ID) (first, next uint64, err error) {
	if !e.on.Load() {
		return e.Store.Bounds(ctx, id)
	}
	e.fails.Add(1)
	select {
	case e.failed <- struct{}{}:
	default:
	}
	return 0, 0, stream.ErrUnavailable
}

func (e *endlessStore) over(s stream.Store) stream.Store {
	e.Store, e.failed = s, make(chan struct{}, 1)
	return e
}

// TestStreamUnreadable calls a tool while streams cannot be read. The client gets a 503, the tool
// does not run, and no call is left.
func TestStreamUnreadable(t *testing.T) {
	t.Parallel()
	var deaf deafStore
	n := newNode(t, config{store: deaf.over})
	p := n.connect("2025-06-18", nil)
	deaf.on.Store(true)
	res := p.post(call("steps", `{"key":"k"}`))
	if res.status != http.StatusServiceUnavailable || res.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s", res.status, res.body)
	}
	if got := n.runs("k"); got != 0 {
		t.Errorf("the tool ran %d times", got)
	}
	if got := n.sessions.Calls(); got != 0 {
		t.Errorf("%d calls in flight", got)
	}
	deaf.on.Store(false)
	if res := p.post(call("steps", `{"key":"k"}`)); res.status != http.StatusOK || n.runs("k") != 1 {
		t.Errorf("called again: %d, %d runs", res.status, n.runs("k"))
	}
}

// TestUpgradeUnreadable is the same for a call that was delivered before it got a stream: the
// client gets "outcome unknown", and the response when it comes back.
func TestUpgradeUnreadable(t *testing.T) {
	t.Parallel()
	var deaf deafStore
	n := newNode(t, config{store: deaf.over, server: server.Options{Response: server.ResponseJSON}})
	p := n.connect("2025-06-18", nil)
	deaf.on.Store(true)
	res := p.post(call("steps", `{"key":"k","n":1}`))
	if res.status != http.StatusBadGateway || res.header.Get("Retry-After") != "" || // the client must not send it again
		!strings.Contains(string(res.body), `"id":"c"`) || !strings.Contains(string(res.body), "outcome unknown") {
		t.Errorf("got %d %s", res.status, res.body)
	}
	deaf.on.Store(false)
	w := p.open("GET", "/mcp", "")
	w.message()
	if end := w.message(); mcptest.Parse(string(end.Data)).Kind != jsonrpc.Response || n.runs("k") != 1 {
		t.Errorf("got %s after %d runs", end.Data, n.runs("k"))
	}
}

// lostStore is a store in which another node takes over a session at the moment when a call's
// stream is first read.
type lostStore struct {
	shared.Store
	taken func() // takes the session over; nil: no session is taken over
}

func (l *lostStore) Watch(id stream.ID, ready chan<- struct{}) (stop func(), err error) {
	if id.Number != 0 && l.taken != nil {
		l.taken()
		return nil, stream.ErrUnavailable
	}
	return l.Store.Watch(id, ready)
}

// TestUpgradeLost is TestUpgradeUnreadable for a call of a session that another node has taken
// over by then. The client gets a 503 with Retry-After: the tool is retry-safe, or was not called
// yet, as its call is stored first.
func TestUpgradeLost(t *testing.T) {
	t.Parallel()
	for tool, runs := range map[string]int{"steps": 0, "safe_steps": 1} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			engine := logtest.New(logtest.Options{})
			store := durable.New(engine.Open(), durable.Options{})
			other := durable.New(engine.Open(), durable.Options{})
			defer func() { _, _ = store.Close(), other.Close() }()
			lost := &lostStore{Store: store}
			c := config{store: func(stream.Store) stream.Store { return lost }}
			c.server.Response = server.ResponseJSON
			c.session.Safe = func(tool string) bool { return tool == "safe_steps" }
			n := newNode(t, c)
			p := n.connect("2025-11-25", nil)
			lost.taken = func() {
				was, err := other.Lookup(t.Context(), whereabouts.KeyOf(p.id))
				if err == nil {
					_, err = other.Acquire(t.Context(), was)
				}
				if err != nil {
					t.Error(err)
				}
				n.sessions.Verify(t.Context())
			}
			res := p.post(call(tool, `{"key":"k","n":1,"pause":2000}`)) // the session is taken over before the call ends
			if res.status != http.StatusServiceUnavailable || res.header.Get("Retry-After") == "" || n.runs("k") != runs ||
				strings.Contains(string(res.body), "unknown") {
				t.Errorf("told %d %s, Retry-After %q; it ran %d times", res.status, res.body, res.header.Get("Retry-After"), n.runs("k"))
			}
		})
	}
}

// TestNewSessionUnreadable opens the stream of a new 2024-11-05 session, which cannot be read.
// The session ends, as its client does not know it.
func TestNewSessionUnreadable(t *testing.T) {
	t.Parallel()
	var deaf deafStore
	n := newNode(t, config{store: deaf.over})
	p := &peer{n: n, version: "2024-11-05"}
	deaf.on.Store(true)
	if res := p.open("GET", "/sse", "").all(); res.status != http.StatusServiceUnavailable {
		t.Errorf("got %d %s", res.status, res.body)
	}
	if got := n.sessions.Sessions(); got != 0 {
		t.Errorf("%d sessions", got)
	}
}

// gated is a store with appends that wait for a function of the test.
type gated struct {
	stream.Store
	wait atomic.Pointer[func()] // nil: they do not wait
}

func (s *gated) over(store stream.Store) stream.Store {
	s.Store = store
	return s
}

func (s *gated) Append(ctx context.Context, lease stream.Lease, records []stream.Record) error {
	if wait := s.wait.Load(); wait != nil {
		(*wait)()
	}
	return s.Store.Append(ctx, lease, records)
}

// TestDisconnectAfterAnnouncing has a connection that reaches DisconnectAfter before the log has
// the call's resume policy: the client still gets the policy.
func TestDisconnectAfterAnnouncing(t *testing.T) {
	t.Parallel()
	var slow gated
	c := config{server: server.Options{DisconnectAfter: time.Millisecond, UpgradeAfter: time.Minute}}
	c.session.Safe = func(string) bool { return true } // so that the call begins as a light call
	c.store = slow.over
	n := newNode(t, c)
	p := n.able("2025-11-25", "")
	wait := func() { time.Sleep(200 * time.Millisecond) }
	slow.wait.Store(&wait)
	go func() { progress(n.release(1)[0], 1, 1) }()
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.token()
}

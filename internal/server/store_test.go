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
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// deafStore is a store that can be written and, for a while, not read.
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

// TestStreamUnreadable calls a tool while streams cannot be read. The client is
// told so; the tool does not run, and nothing stays behind.
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

// TestUpgradeUnreadable is the same for a call that was delivered before it got a
// stream: its client learns the outcome by coming back.
func TestUpgradeUnreadable(t *testing.T) {
	t.Parallel()
	var deaf deafStore
	n := newNode(t, config{store: deaf.over, server: server.Options{Response: server.ResponseJSON}})
	p := n.connect("2025-06-18", nil)
	deaf.on.Store(true)
	res := p.post(call("steps", `{"key":"k","n":1}`))
	if res.status != http.StatusBadGateway || res.header.Get("Retry-After") != "" || // it must not be sent again
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

// lostStore is a store of which another node takes a session in the moment in which a
// call in it is to be read.
type lostStore struct {
	shared.Store
	taken func() // nil until then
}

func (l *lostStore) Watch(id stream.ID, ready chan<- struct{}) (stop func(), err error) {
	if id.Number != 0 && l.taken != nil {
		l.taken()
		return nil, stream.ErrUnavailable
	}
	return l.Store.Watch(id, ready)
}

// TestUpgradeLost is TestUpgradeUnreadable for a call whose session another node has
// taken by then. Its client is told that it should make it again: the tool may be called
// again, or was not called, as its call was stored before that.
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
				was, err := other.Lookup(t.Context(), session.KeyOf(p.id))
				if err == nil {
					_, err = other.Acquire(t.Context(), was)
				}
				if err != nil {
					t.Error(err)
				}
				n.sessions.Verify(t.Context())
			}
			res := p.post(call(tool, `{"key":"k","n":1,"pause":2000}`)) // which is lost before it ends
			if res.status != http.StatusServiceUnavailable || res.header.Get("Retry-After") == "" || n.runs("k") != runs ||
				strings.Contains(string(res.body), "unknown") {
				t.Errorf("told %d %s, Retry-After %q; it ran %d times", res.status, res.body, res.header.Get("Retry-After"), n.runs("k"))
			}
		})
	}
}

// TestNewSessionUnreadable opens the stream of a 2024-11-05 session that cannot
// be read. The session, which nobody knows, ends.
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

// slowStore is a store that takes its time to append.
type slowStore struct {
	stream.Store
	by atomic.Int64 // nanoseconds
}

func (s *slowStore) Append(ctx context.Context, lease stream.Lease, records []stream.Record) error {
	time.Sleep(time.Duration(s.by.Load()))
	return s.Store.Append(ctx, lease, records)
}

// TestDisconnectAfterAnnouncing has the age at which connections are ended come before
// the log has what tells a client how to resume its call: that is told first.
func TestDisconnectAfterAnnouncing(t *testing.T) {
	t.Parallel()
	var slow slowStore
	c := config{server: server.Options{DisconnectAfter: time.Millisecond, UpgradeAfter: time.Minute}}
	c.session.Safe = func(string) bool { return true } // so that the call begins light
	c.store = func(s stream.Store) stream.Store { slow.Store = s; return &slow }
	n := newNode(t, c)
	p := n.able("2025-11-25", "")
	slow.by.Store(int64(200 * time.Millisecond))
	go func() { progress(n.release(1)[0], 1, 1) }()
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.token()
}

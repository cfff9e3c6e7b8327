package server_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"holdfast/jsonrpc"
	"holdfast/server"
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
	var deaf deafStore
	n := newNode(t, config{store: deaf.over, server: server.Options{Response: server.ResponseJSON}})
	p := n.connect("2025-06-18", nil)
	deaf.on.Store(true)
	res := p.post(call("steps", `{"key":"k","n":1}`))
	if res.status != http.StatusInternalServerError || res.header.Get("Retry-After") != "" { // it must not be sent again
		t.Errorf("got %d %s", res.status, res.body)
	}
	deaf.on.Store(false)
	w := p.open("GET", "/mcp", "")
	w.message()
	if end := w.message(); parse(string(end.Data)).Kind != jsonrpc.Response || n.runs("k") != 1 {
		t.Errorf("got %s after %d runs", end.Data, n.runs("k"))
	}
}

// TestNewSessionUnreadable opens the stream of a 2024-11-05 session that cannot
// be read. The session, which nobody knows, ends.
func TestNewSessionUnreadable(t *testing.T) {
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

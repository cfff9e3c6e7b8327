package server_test

import (
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/server"
)

// cancelKeyed cancels the call under the peer's idempotency key.
func (p *peer) cancelKeyed() {
	p.n.t.Helper()
	body := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c1"}}`
	if r := p.open("POST", "/mcp", body, "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: notifications/cancelled").all(); r.status != http.StatusAccepted {
		p.n.t.Errorf("cancelled: %d %s", r.status, r.body)
	}
}

// A call under an idempotency key can be cancelled by the key, on any node, and only by its principal.
func TestModernCancelKeyed(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{server: server.Options{Principal: func(r *http.Request) string { return r.Header.Get("Who") }}})
	at := func(i int, who, key string) *peer {
		p := (&peer{n: f.nodes[i].node}).under(key)
		p.header.Set("Who", who)
		return p
	}
	for i := range f.nodes {
		key := []string{"k0", "k1"}[i]
		w := at(0, "me", key).callModern("hold", `{}`)
		f.nodes[0].release(1)
		at(i, "you", key).cancelKeyed()
		at(i, "me", "other").cancelKeyed()
		if n := f.nodes[0].sessions.Calls(); n != 1 {
			t.Fatalf("%d calls in flight", n)
		}
		at(i, "me", key).cancelKeyed()
		if r := w.all(); !strings.Contains(r.response(), "cancelled") || f.nodes[0].sessions.Calls() != 0 {
			t.Errorf("at node %d: %d %s", i, r.status, r.body)
		}
	}
	w := at(0, "me", "k2").callModern("hold", `{}`)
	f.nodes[0].release(1)
	p := &peer{n: f.nodes[1].node, header: http.Header{"Who": {"me"}}}
	body := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c1","_meta":{"holdfast/idempotencyKey":"k2"}}}`
	_ = p.open("POST", "/mcp", body, "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: notifications/cancelled").all()
	if r := w.all(); !strings.Contains(r.response(), "cancelled") {
		t.Errorf("by the key in _meta: %d %s", r.status, r.body)
	}
	// A cancellation under a key has no effect on a call that begins later under the key.
	if r := at(1, "me", "other").callModern("steps", `{}`).all(); !strings.Contains(r.response(), "done") {
		t.Errorf("%d %s", r.status, r.body)
	}
}

package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestModernWaitsForNobody drains a single node with a modern call that waits for input: the
// drain does not wait, as no node could continue the call.
func TestModernWaitsForNobody(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := &peer{n: n}
	asks := p.modern("tools/call", "ask", `{"name":"ask","arguments":{}}`, `{"elicitation":{}}`)
	if !strings.Contains(string(asks.body), "input_required") {
		t.Fatalf("%s", asks.body)
	}
	began := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := n.Drain(ctx); err != nil || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestModernKey has a client that makes a call again under its idempotency key: the tool runs once.
func TestModernKey(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := &peer{n: n}
	p.header = http.Header{"Idempotency-Key": {"once"}}
	for range 2 {
		if r := p.modern("tools/call", "steps", `{"name":"steps","arguments":{"key":"k"}}`, `{}`); r.status != 200 || !strings.Contains(string(r.body), `"id":"c1"`) {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	if got := n.runs("k"); got != 1 {
		t.Errorf("the tool has run %d times", got)
	}
}

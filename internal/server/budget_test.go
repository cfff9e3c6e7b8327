package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
)

func asUser(r *http.Request) string { return r.Header.Get("User") }

func user(name string) http.Header { return http.Header{"User": {name}} }

// Bodies that are being read take up no more than the budget, and those of one client no more
// than its share. A body that is over it is refused before it is sent. When the unfinished bodies
// are cut off, there is room again.
func TestBodiesWithinBudget(t *testing.T) {
	t.Parallel()
	flight := budget.NewFlight(16<<20, 1<<20, 0.75) // 4 MiB
	n := newNode(t, config{server: server.Options{Shared: session.Shared{Flight: flight}, BodyTimeout: 5 * time.Minute, Principal: asUser}})
	large := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`
	announce := func(p *peer, how string) *wire { return p.open("POST", "/mcp", "", how) }
	length := fmt.Sprintf("Content-Length: %d", 1<<20)
	slow, other := n.connect("2025-11-25", user("slow")), n.connect("2025-11-25", user("other"))
	waiting := []*wire{announce(slow, length)}
	mcptest.Eventually(t, "the body to be waited for", time.Minute, func() bool { return flight.Used() == 1<<20 })
	refused := func(p *peer, how string) {
		t.Helper()
		w := announce(p, how)
		if how != length {
			// A body without a length is refused when the bytes that have come are over the share.
			fmt.Fprintf(w.c, "%x\r\n%s\r\n", len(large), large)
		}
		r := w.all()
		if r.status != 429 || r.header.Get("Retry-After") == "" || !strings.Contains(string(r.body), "--memory") {
			t.Errorf("%s: %d %.200s", how, r.status, r.body)
		}
	}
	refused(slow, length)
	refused(slow, "Transfer-Encoding: chunked")
	if r := slow.post(`{"jsonrpc":"2.0","id":2,"method":"ping"}`); r.status != 200 {
		t.Errorf("a short request of the same client: %d %s", r.status, r.body)
	}
	if r := other.post(large[:len(large)/2] + `"}}`); r.status != 200 {
		t.Errorf("another client: %d %.200s", r.status, r.body)
	}
	for i := range 3 {
		waiting = append(waiting, announce(n.connect("2025-11-25", user(fmt.Sprint(i))), length))
	}
	mcptest.Eventually(t, "the budget to be used up", time.Minute, func() bool { return flight.Used() == 4<<20 })
	refused(other, length)
	for _, w := range waiting {
		_ = w.c.Close()
	}
	mcptest.Eventually(t, "the budget to be free again", time.Minute, func() bool { return flight.Used() == 0 })
	if r := slow.post(large[:len(large)/2] + `"}}`); r.status != 200 {
		t.Errorf("afterwards: %d %.200s", r.status, r.body)
	}
}

// A body that drips is cut off, and its part of the budget is free again.
func TestDrippingBody(t *testing.T) {
	t.Parallel()
	flight := budget.NewFlight(16<<20, 1<<20, 0.75) // 4 MiB
	n := newNode(t, config{server: server.Options{Shared: session.Shared{Flight: flight}, BodyTimeout: time.Second}})
	w := n.connect("2025-11-25", nil).open("POST", "/mcp", "", fmt.Sprintf("Content-Length: %d", 1<<20))
	for range 3 {
		_, _ = w.c.Write([]byte("{ "))
	}
	if r := w.all(); r.status != http.StatusRequestTimeout {
		t.Errorf("a body that does not come: %d %.200s", r.status, r.body)
	}
	mcptest.Eventually(t, "the budget to be free again", time.Minute, func() bool { return flight.Used() == 0 })
}

// A running request holds its size in the budget until it is answered, cancelled, or its session
// ends. The requests of one client hold half of the budget at the most.
func TestCallsWithinBudget(t *testing.T) {
	t.Parallel()
	flight := budget.NewFlight(16<<20, 1<<20, 0.75) // 4 MiB
	n := newNode(t, config{server: server.Options{Shared: session.Shared{Flight: flight}, Principal: asUser}, session: session.Options{Shared: session.Shared{Flight: flight}}})
	hold := func(id int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"hold","arguments":{"text":"%s"}}}`,
			id, strings.Repeat("x", 900<<10))
	}
	p, other := n.connect("2025-11-25", user("p")), n.connect("2025-11-25", user("other"))
	var open []*wire
	for id := range 2 {
		w := p.open("POST", "/mcp", hold(id))
		if _, err := w.next(); err != nil {
			t.Fatal(err)
		}
		open = append(open, w)
	}
	if r := p.post(hold(9)); r.status != 429 || r.header.Get("Retry-After") == "" || !strings.Contains(string(r.body), "--memory") {
		t.Errorf("over its share: %d %.200s", r.status, r.body)
	}
	if r := p.post(`{"jsonrpc":"2.0","id":10,"method":"ping"}`); r.status != 200 {
		t.Errorf("a short request of the same client: %d %s", r.status, r.body)
	}
	w := other.open("POST", "/mcp", hold(1))
	if _, err := w.next(); err != nil {
		t.Fatal(err)
	}
	for _, x := range n.release(3) {
		x.Result(result("done"))
	}
	for _, w := range append(open, w) {
		if r := w.all(); !strings.Contains(string(r.body), "done") {
			t.Errorf("a call that was held: %.200s", r.body)
		}
	}
	mcptest.Eventually(t, "the budget to be free again", time.Minute, func() bool { return flight.Used() == 0 })
	open = []*wire{p.open("POST", "/mcp", hold(3))}
	n.release(1)
	p.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	mcptest.Eventually(t, "the budget to be free of a call that is cancelled", time.Minute, func() bool { return flight.Used() == 0 })
	_ = open[0].all()
	p.open("POST", "/mcp", hold(4))
	n.release(1)
	p.open("DELETE", "/mcp", "").all()
	mcptest.Eventually(t, "the budget to be free of a session that has ended", time.Minute, func() bool { return flight.Used() == 0 })
}

// Slow bodies of one client, and the memory that its requests hold, shut out neither another
// client's ordinary requests nor its own: a tiny body is not counted, and a short one counts for
// its client's share.
func TestSlowBodiesShutNobodyOut(t *testing.T) {
	t.Parallel()
	flight := budget.NewFlight(4<<20, 1<<20, 0.75) // 1 MiB
	n := newNode(t, config{server: server.Options{Shared: session.Shared{Flight: flight}, Principal: asUser}})
	slow, other := n.connect("2025-11-25", user("slow")), n.connect("2025-11-25", user("other"))
	for range 20 { // of which four fit into the client's share
		slow.open("POST", "/mcp", "", fmt.Sprintf("Content-Length: %d", 60<<10))
	}
	mcptest.Eventually(t, "some bodies to be waited for", time.Minute, func() bool { return flight.Used() >= 240<<10 })
	if r := other.post(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 50<<10) + `"}}`); r.status != 200 {
		t.Errorf("a short request of another: %d %.200s", r.status, r.body)
	}
	if used := flight.Used(); used > 256<<10 {
		t.Errorf("one client reads %d bytes", used)
	}
	flight.Add(1 << 20) // as running requests, or messages that wait for an engine, do
	defer flight.Add(-1 << 20)
	for _, p := range []*peer{slow, other} {
		if r := p.post(`{"jsonrpc":"2.0","id":2,"method":"ping"}`); r.status != 200 {
			t.Errorf("a tiny request: %d %s", r.status, r.body)
		}
	}
	w := other.open("POST", "/mcp", "", "Transfer-Encoding: chunked")
	body := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`
	fmt.Fprintf(w.c, "%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	if r := w.all(); r.status != http.StatusAccepted {
		t.Errorf("a tiny request without a length: %d %.200s", r.status, r.body)
	}
}

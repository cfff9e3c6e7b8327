package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/engine/memory"
	"holdfast/internal/protocol"
	"holdfast/internal/server"
	"holdfast/internal/session"
)

// A URI over 8 KiB is refused in each method with a URI, over each transport, and the error has the id of the request.
func TestLongURIs(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	modern := newNode(t, config{backend: newToolbox()})
	most := "x:" + strings.Repeat("u", protocol.MaxURI-2)
	p := n.connect("2025-11-25", nil)
	socket := openSocket(n, 0)
	socket.begin("2025-11-25", `{}`)
	pair := n.pair(nil)
	pair.send(initialize)
	pair.next()
	stranger := &peer{n: modern}
	for method, params := range map[string]string{
		"resources/read":        `{"uri":"%s"}`,
		"resources/subscribe":   `{"uri":"%s"}`,
		"resources/unsubscribe": `{"uri":"%s"}`,
		"completion/complete":   `{"ref":{"type":"ref/resource","uri":"%s"},"argument":{"name":"a","value":"b"}}`,
		"subscriptions/listen":  `{"notifications":{"resourceSubscriptions":["a\"b","%s"]}}`,
		"vendor/uri":            `{"uri":"%s"}`, // a method of the server's own: the URI is not checked
	} {
		for uri, long := range map[string]bool{
			most:       false,
			most + "u": true,
			strings.Repeat(`\u0061`, protocol.MaxURI):   false, // the URI is shorter than its escaped form
			strings.Repeat(`\u0061`, protocol.MaxURI+1): true,
		} {
			long = long && method != "vendor/uri"
			if !long && method == "subscriptions/listen" {
				continue // its answer would not end
			}
			check := func(over, said string) {
				t.Helper()
				if refused := strings.Contains(said, "-32602") && strings.Contains(said, "longer than 8192 bytes"); refused != long {
					t.Errorf("%s of a URI of %d bytes over %s: %.300s", method, len(uri), over, said)
				}
				if !strings.Contains(said, `"id":"c1"`) {
					t.Errorf("%s over %s: the answer has not the id of the request: %.300s", method, over, said)
				}
			}
			body := fmt.Sprintf(`{"jsonrpc":"2.0","id":"c1","method":"%s","params":`+params+`}`, method, uri)
			check("HTTP", string(p.post(body).body))
			if err := socket.send(body); err != nil {
				t.Fatal(err)
			}
			said, err := socket.recv()
			if err != nil {
				t.Fatal(err)
			}
			check("a WebSocket", string(said))
			r := pair.p.open("POST", pair.endpoint, body).all()
			if r.status == http.StatusAccepted {
				r.body = pair.next().Data
			}
			check("HTTP+SSE", string(r.body))
			name := ""
			if method == "resources/read" {
				if strings.HasPrefix(uri, `\`) {
					continue // the name would be too long a header
				}
				name = uri
			}
			if long && (method == "resources/read" || method == "completion/complete" || method == "subscriptions/listen") {
				check("2026-07-28", string(stranger.modern(method, name, fmt.Sprintf(params, uri), `{}`).body))
			}
		}
	}
	if calls := n.sessions.Calls(); calls != 0 {
		t.Errorf("%d calls are in flight", calls)
	}
}

// The capabilities and clientInfo of a client of 2026-07-28 have the same bound as an initialize request.
func TestLongClient(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{backend: newToolbox()})
	p := &peer{n: n}
	capabilities := func(size int) string { return `{"x":"` + strings.Repeat("c", size-8) + `"}` }
	if r := p.modern("tools/list", "", `{}`, capabilities(session.MaxInitialize)); r.status != 200 {
		t.Errorf("as long as may be: %d %.200s", r.status, r.body)
	}
	r := p.modern("tools/list", "", `{}`, capabilities(session.MaxInitialize+1))
	if r.status != http.StatusRequestEntityTooLarge || !strings.Contains(string(r.body), "-32600") ||
		!strings.Contains(string(r.body), "larger than 65536 bytes") || !strings.Contains(string(r.body), `"id":"c1"`) {
		t.Errorf("longer: %d %.200s", r.status, r.body)
	}
	r = p.modern("tools/list", "", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":`+capabilities(session.MaxInitialize)+`}}`, `{}`)
	if r.status != http.StatusBadRequest && r.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long clientInfo: %d %.200s", r.status, r.body)
	}
}

// holding returns a node with little memory for sessions, and a function that returns the bytes that they hold.
func holding(t *testing.T, c config) (n *node, held func() int64) {
	c.server.Principal, c.memory = asUser, memory.Options{TotalBytes: 512 << 10, TenantBytes: 256 << 10}
	n = newNode(t, c)
	return n, n.store.Held
}

// A session counts for its tenant, with the data that it keeps of its client's initialize. At the bound,
// other tenants can still begin sessions, and sessions that have ended no longer count.
func TestSessionsWithinMemory(t *testing.T) {
	t.Parallel()
	n, held := holding(t, config{})
	full := func(r reply) bool {
		if r.status == http.StatusOK {
			return false
		}
		if r.status != http.StatusTooManyRequests || r.header.Get("Retry-After") == "" || !strings.Contains(string(r.body), "--memory") {
			t.Fatalf("at the bound: %d %.200s", r.status, r.body)
		}
		return true
	}
	for _, c := range []struct {
		what string
		size int // of the initialize request
		most int // sessions
	}{
		{"short", 100, 48},
		{"long", 40 << 10, 1}, // each counts for 160 KiB
		{"of 8 KiB", 8 << 10, 5},
	} {
		p := &peer{n: n, version: "2025-11-25", header: user(c.what)}
		var open []string
		for range 100 {
			r := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"x":%q}}}`, strings.Repeat("x", c.size)))
			if full(r) {
				break
			}
			open = append(open, r.header.Get("Mcp-Session-Id"))
		}
		if len(open) != c.most {
			t.Errorf("%s: %d sessions are open, want %d", c.what, len(open), c.most)
		}
		other := n.connect("2025-11-25", user("other"))
		if r := other.post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`); r.status != 200 {
			t.Errorf("%s: another client: %d %s", c.what, r.status, r.body)
		}
		for _, id := range append(open, other.id) {
			p := &peer{n: n, id: id, header: p.header}
			if id == other.id {
				p.header = other.header
			}
			if r := p.open("DELETE", "/mcp", "").all(); r.status != 204 {
				t.Fatalf("DELETE: %d %s", r.status, r.body)
			}
		}
		if left := held(); left != 0 {
			t.Errorf("%s: %d bytes are held without sessions", c.what, left)
		}
	}
}

// A carrier of a modern client counts, with the client's capabilities.
func TestCarriersWithinMemory(t *testing.T) {
	t.Parallel()
	n, held := holding(t, config{backend: newToolbox()})
	p := &peer{n: n, header: user("p")}
	refused := false
	for i := range 8 {
		r := p.modernOpen("subscriptions/listen", "", `{"notifications":{}}`, fmt.Sprintf(`{"x":"%d%s"}`, i, strings.Repeat("c", 30<<10)))
		if r.head().StatusCode == http.StatusTooManyRequests {
			if said := string(r.all().body); !strings.Contains(said, "--memory") {
				t.Errorf("at the bound: %.200s", said)
			}
			refused = true
		}
	}
	if !refused || held() == 0 {
		t.Errorf("8 carriers of 30 KiB were begun, and hold %d bytes", held())
	}
	n.sessions.Close()
	if left := held(); left != 0 {
		t.Errorf("%d bytes are held without carriers", left)
	}
}

// A subscription counts until its client ends it, or its session ends.
func TestSubscriptionsWithinMemory(t *testing.T) {
	t.Parallel()
	n, held := holding(t, config{server: server.Options{}})
	p := n.connect("2025-11-25", user("p"))
	idle := held()
	ask := func(p *peer, method string, i int) reply {
		return p.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/%s","params":{"uri":"x:%d%s"}}`, method, i, strings.Repeat("u", 4<<10)))
	}
	for i := range 5 {
		for range 3 { // the three requests make one subscription
			if r := ask(p, "subscribe", i); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
		}
	}
	of := (held() - idle) / 5
	if of < 3*4<<10 || of > 14<<10 {
		t.Errorf("a subscription of 4 KiB counts for %d bytes", of)
	}
	i := 5
	for ; i < 100; i++ {
		r := ask(p, "subscribe", i)
		if r.status == 200 {
			continue
		}
		if r.status != http.StatusTooManyRequests || !strings.Contains(string(r.body), "--memory") {
			t.Errorf("at the bound: %d %.200s", r.status, r.body)
		}
		break
	}
	if i == 100 {
		t.Error("there is no bound")
	}
	if r := ask(n.connect("2025-11-25", user("other")), "subscribe", 1); r.status != 200 {
		t.Errorf("another client: %d %s", r.status, r.body)
	}
	before := held()
	ask(p, "unsubscribe", 0)
	ask(p, "unsubscribe", 0)
	if got := before - held(); got != of {
		t.Errorf("the end of a subscription gave %d bytes back, of %d", got, of)
	}
	if r := ask(p, "subscribe", 1000); r.status != 200 {
		t.Errorf("afterwards: %d %s", r.status, r.body)
	}
	n.sessions.Close()
	if left := held(); left != 0 {
		t.Errorf("%d bytes are held without sessions", left)
	}
}

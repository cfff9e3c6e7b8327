package server_test

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
)

// An open WebSocket or stream counts for its client, beside its connection. A client over its share is refused, and others are
// still served. Clients behind a trusted proxy are told apart, and the proxy's connections have no share.
func TestOpenStreamsWithinMemory(t *testing.T) {
	t.Parallel()
	for _, behind := range []bool{false, true} {
		for kind, open := range map[string]func(n *node, in *peer, from string) *wire{
			"WebSocket": func(n *node, _ *peer, from string) *wire {
				return (&peer{n: n}).open("GET", "/mcp", "", append([]string{from}, handshake...)...)
			},
			"HTTP+SSE": func(n *node, _ *peer, from string) *wire {
				return (&peer{n: n}).open("GET", "/sse", "", from)
			},
			"standalone": func(_ *node, in *peer, from string) *wire {
				return in.open("GET", "/mcp", "", from)
			},
		} {
			t.Run(fmt.Sprintf("%s, behind a proxy %v", kind, behind), func(t *testing.T) {
				t.Parallel()
				held := budget.NewConnections(640<<10, 0.75) // 48 connections
				o := server.Options{Connections: held}
				if behind {
					o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
				}
				n := newNode(t, config{server: o})
				hostile, honest := "X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: ::ffff:192.0.2.2"
				var sessions []*peer
				for range 48 {
					sessions = append(sessions, n.connect("2025-11-25", nil))
				}
				mcptest.Eventually(t, "the connections of that to be closed", time.Minute, func() bool { return held.Used() == 0 })
				var wires []*wire
				for len(wires) < 48 {
					w := open(n, sessions[len(wires)], hostile)
					status := w.head().StatusCode
					if status == http.StatusTooManyRequests || !behind && status == http.StatusServiceUnavailable { // the connection was refused
						r := w.all()
						if r.header.Get("Retry-After") == "" || !strings.Contains(string(r.body), "--memory") {
							t.Errorf("%v %s", r.header, r.body)
						}
						break
					}
					if status != http.StatusOK && status != http.StatusSwitchingProtocols {
						t.Fatalf("status %d", status)
					}
					wires = append(wires, w)
				}
				if len(wires) < 8 || len(wires) > 24 {
					t.Errorf("one client has %d of them", len(wires))
				}
				if behind {
					p := n.connect("2025-11-25", http.Header{"X-Forwarded-For": {"192.0.2.2"}})
					p.works("another client")
					if w := open(n, sessions[47], honest); w.head().StatusCode >= 300 {
						t.Errorf("another client: %d", w.head().StatusCode)
					} else {
						wires = append(wires, w)
					}
				}
				for _, w := range wires {
					_ = w.c.Close()
				}
				mcptest.Eventually(t, "all to be given back", time.Minute, func() bool { return held.Used() == 0 })
			})
		}
	}
}

// Each stream on an HTTP/2 connection counts for its client.
func TestStreamsOfOneConnectionWithinMemory(t *testing.T) {
	t.Parallel()
	held := budget.NewConnections(640<<10, 0.75)
	n := newNode(t, config{server: server.Options{Connections: held}})
	ts := httptest.NewUnstartedServer(n.SSE("/messages"))
	ts.EnableHTTP2 = true
	ts.StartTLS()
	t.Cleanup(ts.Close)
	client := ts.Client()
	open := 0
	for ; open < 48; open++ {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ts.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		if res.ProtoMajor != 2 {
			t.Fatalf("it is %s", res.Proto)
		}
		if res.StatusCode == http.StatusTooManyRequests {
			break
		}
	}
	if open < 8 || open > 30 {
		t.Errorf("one client has %d streams on a connection", open)
	}
}

// A WebSocket message of more than 8 KiB counts for the client that sends it, piece by piece as it comes.
func TestPiecesWithinBudget(t *testing.T) {
	t.Parallel()
	flight := budget.NewFlight(16<<20, 1<<20, 0.75) // 4 MiB, of which one client reads 1 MiB
	n := newNode(t, config{server: server.Options{Shared: session.Shared{Flight: flight}, Principal: asUser, BodyTimeout: 5 * time.Minute}})
	// begin opens a WebSocket, and begins a message of 4 MB.
	begin := func(name string) *wire {
		w := n.connect("2025-11-25", user(name)).open("GET", "/mcp", "", handshake...)
		if res := w.head(); res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("status %d", res.StatusCode)
		}
		head := binary.BigEndian.AppendUint64([]byte{0x81, 0x80 | 127}, 4_000_000)
		if _, err := w.c.Write(append(head, 0, 0, 0, 0)); err != nil { // a mask of zeros
			t.Fatal(err)
		}
		return w
	}
	send := func(w *wire, size int) {
		_, _ = w.c.Write([]byte(strings.Repeat(" ", size))) // an error means that the message is refused meanwhile
	}
	// A message is read into buffers that double: half of the bytes sent may not be counted yet, or they may count twice.
	const sent, half = 500 << 10, 250 << 10
	small := begin("small")
	send(small, 8<<10)
	large := begin("large")
	send(large, sent)
	mcptest.Eventually(t, "the message to be counted", time.Minute, func() bool { return flight.Used() >= half })
	before := flight.Used()
	if before > 2*(sent+8<<10) {
		t.Errorf("%d bytes count for %d bytes", sent, before)
	}
	send(small, 400<<10)
	mcptest.Eventually(t, "what is longer than 8 KiB to be counted", time.Minute, func() bool { return flight.Used() > before+100<<10 })
	over := begin("large")
	send(over, 2<<20)
	over.wait()
	var said []byte
	for b := make([]byte, 512); len(said) < 4<<10; {
		m, err := over.r.Read(b)
		said = append(said, b[:m]...)
		if err != nil || strings.Contains(string(said), "--memory") {
			break
		}
	}
	if !strings.Contains(string(said), "\x03\xf5") || !strings.Contains(string(said), "--memory") { // 1013
		t.Errorf("over its share: %q", said)
	}
	other := begin("other")
	send(other, sent)
	mcptest.Eventually(t, "another client's to be counted", time.Minute, func() bool { return flight.Used() >= 2*half+200<<10 })
	for _, w := range []*wire{small, large, other} {
		_ = w.c.Close()
	}
	mcptest.Eventually(t, "all to be given back", time.Minute, func() bool { return flight.Used() == 0 })
}

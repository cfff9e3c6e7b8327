package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/feature/webhook"
	"holdfast/internal/mcptest"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
)

// A cutter cuts a connection between nodes after a number of bytes.
type cutter struct {
	reads, writes atomic.Int64 // bytes that the next connection may read and write; negative: no limit
	was           atomic.Int64 // number of connections
	then          func()       // called at a cut of the reads, before it is reported; may be nil
}

// arm makes the cutter cut the next connection alone.
func (c *cutter) arm(reads, writes int) {
	c.reads.Store(int64(reads))
	c.writes.Store(int64(writes))
}

func (c *cutter) wrap(below net.Conn) net.Conn {
	c.was.Add(1)
	return &cutConn{Conn: below, reads: c.reads.Swap(-1), writes: c.writes.Swap(-1), then: c.then}
}

// A cutConn is a TCP connection that is cut after so many bytes; negative: it is not cut.
type cutConn struct {
	net.Conn
	reset         bool // a cut of the reads resets the connection
	mu            sync.Mutex
	reads, writes int64
	then          func()
}

func (c *cutConn) most(left *int64, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *left < 0 {
		return n
	}
	n = int(min(int64(n), *left))
	*left -= int64(n)
	return n
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if m := c.most(&c.reads, n); m < n || err == nil && c.spent(&c.reads) {
		if c.reset {
			_ = c.Conn.(*net.TCPConn).SetLinger(0)
		}
		c.Close()
		if c.then != nil {
			c.then()
		}
		if m == 0 {
			return 0, io.ErrUnexpectedEOF
		}
		return m, nil
	}
	return n, err
}

func (c *cutConn) spent(left *int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *left == 0
}

func (c *cutConn) Write(b []byte) (int, error) {
	m := c.most(&c.writes, len(b))
	n, err := c.Conn.Write(b[:m])
	if m < len(b) {
		c.Close()
		return n, io.ErrClosedPipe
	}
	return n, err
}

// newCutFarm returns two nodes, and a cutter of the connections of the second one to the first.
func newCutFarm(t *testing.T, c config) (*farm, *cutter) {
	t.Helper()
	f, cut := newFarm(t, 2, c), &cutter{}
	cut.arm(-1, -1)
	f.nodes[1].Tunnel(cut.wrap)
	f.nodes[1].Unpool()
	return f, cut
}

// TestTunnelCutAnywhere cuts the connection between the client's node and the node that runs its
// call, after each 7th byte in either direction (without -long each 31st). The client, on its own
// connection, gets every message once and in order, and the tool runs once.
func TestTunnelCutAnywhere(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		for _, way := range []string{"reads", "writes"} {
			t.Run(version+" "+way, func(t *testing.T) {
				t.Parallel()
				f, cut := newCutFarm(t, config{})
				p := f.nodes[0].connect(version, nil).at(f.nodes[1])
				most, stride := 1, 7
				if !testlong.Wanted() {
					stride = 31
				}
				for at := 0; at < most; at += stride {
					key := fmt.Sprint(way, at)
					if way == "reads" {
						cut.arm(at, -1)
					} else {
						cut.arm(-1, at)
					}
					fl := &follower{p: p, seen: map[string]bool{}}
					before := cut.was.Load()
					stood := mcptest.Standstill()
					r := p.post(callAs(fmt.Sprint(at), "steps", fmt.Sprintf(`{"key":%q,"n":2}`, key)))
					if lasted := stood(); r.status == http.StatusServiceUnavailable && lasted > time.Second && f.runs(key) == 0 {
						t.Log("refused, after a standstill of", lasted)
						at -= stride
						continue
					}
					if err := fl.take(r); err != nil {
						t.Errorf("cut after %d bytes: %v", at, err)
					}
					if err := fl.check(2); err != nil || f.runs(key) != 1 {
						t.Fatalf("cut after %d bytes: %v, %d runs: %d %q", at, err, f.runs(key), r.status, r.body)
					}
					if cut.was.Load() > before+1 {
						most = at + 100 // this cut was within the stream: a later one may be, too
					}
				}
				t.Log("up to", most)
			})
		}
	}
}

// TestTunnelCutInEvent cuts this connection in the middle of an event, and kills the node that runs
// the call, so that the client's node continues the stream itself: it does not write the half event.
func TestTunnelCutInEvent(t *testing.T) {
	t.Parallel()
	const events = 400 // about the number of bytes before the first event
	for at := events; at < events+400; at += testlong.Either(97, 23) {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			f, cut := newCutFarm(t, config{})
			p := f.nodes[0].connect("2025-06-18", nil).at(f.nodes[1])
			cut.then = sync.OnceFunc(func() { f.nodes[0].kill() })
			cut.arm(at, -1)
			fl := &follower{p: p, seen: map[string]bool{}}
			r := p.post(callAs("1", "steps", `{"key":"k","n":2,"pause":100}`))
			if err := fl.take(r); err != nil || !fl.done {
				t.Errorf("%v; answered: %v: %q", err, fl.done, r.body)
			}
		})
	}
}

// TestTunnelLightCut cuts this connection during light calls, which are retry-safe: each gets its answer.
func TestTunnelLightCut(t *testing.T) {
	t.Parallel()
	f, cut := newCutFarm(t, config{})
	p := f.nodes[0].connect("2025-11-25", nil).at(f.nodes[1])
	p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	for at := range 300 {
		if cut.arm(at, -1); at%2 == 1 {
			cut.arm(-1, 4*at)
		}
		if r := p.post(callAs(fmt.Sprint(at), "echo", `{"text":"quick"}`)); r.status != 200 || !strings.Contains(string(r.body), "quick") {
			t.Fatalf("cut after %d: %d %s", at, r.status, r.body)
		}
	}
}

// TestTunnelToldCut cuts this connection during calls with a webhook: they run once, though retry-safe, as the webhook would get a
// message for each run.
func TestTunnelToldCut(t *testing.T) {
	t.Parallel()
	f, cut := newCutFarm(t, config{session: session.Options{OnEnded: func(webhook.Ended) bool { return true }}})
	p := f.nodes[0].connect("2025-11-25", nil).at(f.nodes[1])
	p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	for at := range 60 {
		cut.arm(10*at, -1)
		key := fmt.Sprint("k", at)
		r := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"safe_steps","arguments":{"key":%q,"n":0},`+
			`"_meta":{"holdfast/webhook":{"url":"https://h"}}}}`, at, key))
		if runs := f.runs(key); r.status != http.StatusOK || runs != 1 {
			t.Errorf("cut after %d: it ran %d times, %d %s", 10*at, runs, r.status, r.body)
		}
	}
}

// TestForgedVisit is a client that sends the headers which nodes send to each other: they have no effect.
func TestForgedVisit(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{})
	alice := f.nodes[0].connect("2025-11-25", http.Header{"Authorization": {"Bearer alice"}})
	visit := `Holdfast-Visit: eyJwcmluY2lwYWwiOiJhbGljZSJ9` // {"principal":"alice"}
	for i, n := range f.nodes {
		bob := *alice.at(n)
		bob.header = http.Header{"Authorization": {"Bearer bob"}}
		if r := bob.post(call("echo", `{}`), visit); r.status != http.StatusNotFound {
			t.Errorf("node %d: %d %s", i, r.status, r.body)
		}
		if r := alice.at(n).post(call("echo", `{"text":"hers"}`), visit, "Holdfast-At: x"); r.status != http.StatusOK {
			t.Errorf("node %d: %d %s", i, r.status, r.body)
		}
	}
}

package client_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
)

// A mutable makes connections that can all be silenced: no bytes pass any more, as where a NAT has forgotten them or a machine has lost its power.
type mutable struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	conns []*muted
}

// A muted is a connection of a mutable.
type muted struct {
	net.Conn
	silent chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (m *mutable) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := m.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	s := &muted{Conn: c, silent: make(chan struct{}), closed: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, s)
	return s, nil
}

// silence silences the present connections.
func (m *mutable) silence() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		close(c.silent)
	}
	m.conns = nil
}

// Read implements [net.Conn].
func (c *muted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.silent:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

// Write implements [net.Conn].
func (c *muted) Write(p []byte) (int, error) {
	select {
	case <-c.silent:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

// Close implements [net.Conn]. The other side does not notice it once the connection is silent, but in a test its goroutines have to end.
func (c *muted) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A connection that dies without a notice is replaced within 40 s. A request without any answer is sent again after 10 s.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, after time.Duration // how long before, or after, the call is sent the connections die
		method        string
		within        time.Duration // the time from then to the response
	}{
		"in mid-call":         {after: 7 * time.Second, method: `"tools/call","params":{"name":"work"}`, within: 40 * time.Second},
		"while idle":          {before: 7 * time.Second, method: `"tools/call","params":{"name":"work"}`, within: 12*time.Second + worksFor},
		"while idle, a list":  {before: 7 * time.Second, method: `"tools/list"`, within: 12 * time.Second},
		"while idle, a fetch": {before: 7 * time.Second, method: `"resources/templates/list"`, within: 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				runs := 0
				server := newServer()
				mcp.AddTool(server, &mcp.Tool{Name: "work"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
					runs++
					time.Sleep(worksFor)
					return nil, "done", nil
				})
				h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, nil)
				url, hc := serveInside(t, h)
				tr := hc.Transport.(*http.Transport)
				m := &mutable{dial: tr.DialContext}
				tr.DialContext = m.DialContext
				c := newRaw(t, url, client.Options{HTTPClient: hc})
				c.within = time.Hour
				c.open()
				time.Sleep(time.Second)
				c.send(`{"jsonrpc":"2.0","id":"ping","method":"ping"}`)
				c.answer(`"ping"`) // keeps a connection for the next request, beside that of the standalone stream
				if test.before > 0 {
					time.Sleep(test.before)
					m.silence()
				}
				c.send(`{"jsonrpc":"2.0","id":1,"method":%s}`, test.method)
				if test.after > 0 {
					time.Sleep(test.after)
					m.silence()
				}
				dead := time.Now()
				answer := c.answer("1")
				if took := time.Since(dead); answer.Error != nil || took > test.within {
					t.Errorf("after %v: %s", took, answer.Raw)
				}
				if strings.Contains(test.method, "work") && runs != 1 {
					t.Errorf("the tool ran %d times", runs)
				}
				_ = c.Close()
				_ = h.Shutdown(t.Context())
			})
		})
	}
}

// worksFor is how long the test's tool works. A longer time would hide that a dead connection is noticed late.
const worksFor = 20 * time.Second

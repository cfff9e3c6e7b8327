package e2e

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/cluster/clustertest"
	"holdfast/internal/mcptest"
)

// A front is a load balancer without a memory: each request goes to the next node, over its own
// connection. The front passes over a node that accepts no connection. A request that breaks is
// answered with 502, and not tried again.
type front struct {
	URL   string
	nodes func() []string // returns the addresses of nodes
	next  atomic.Uint64

	mu      sync.Mutex
	shunned string // the address of a node that can't be reached
}

func newFront(t *testing.T, nodes func() []string) *front {
	t.Helper()
	f := &front{nodes: nodes}
	own := &http.Transport{DisableKeepAlives: true, DialContext: f.dial}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "127.0.0.1"})
			r.Out.Host = "127.0.0.1"
		},
		Transport:     own,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // it would log each node that is killed
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, errNobody) {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	t.Cleanup(own.CloseIdleConnections)
	f.URL = mcptest.Serve(t, aborting(mcptest.Early(proxy))) + "/mcp"
	return f
}

// aborting closes the client's connection when the proxy's connection was cut, without a line
// in the test's output.
func aborting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		h.ServeHTTP(w, r)
	})
}

func (f *front) dial(ctx context.Context, _, _ string) (c net.Conn, err error) {
	f.mu.Lock()
	shunned := f.shunned
	f.mu.Unlock()
	nodes := slices.DeleteFunc(f.nodes(), func(addr string) bool { return addr == shunned })
	first := f.next.Add(1)
	for i := range nodes {
		d := net.Dialer{Timeout: 2 * time.Second} // packets may vanish
		if c, err = d.DialContext(ctx, "tcp", nodes[(first+uint64(i))%uint64(len(nodes))]); err == nil {
			return c, nil
		}
	}
	return nil, errNobody
}

// errNobody says that no node accepted a connection for a request.
var errNobody = errors.New("no node takes connections")

// deaden holds back all bytes between a node and its engine, without an error at either end: connections stay open, and new ones
// are accepted, as in a network that drops packets.
func (n *node) deaden() {
	for _, w := range n.wires {
		w.Cut(clustertest.Silent)
	}
}

// heal undoes deaden. It resets the connections, as happens to most connections that were silent for long.
func (n *node) heal() {
	for _, w := range n.wires {
		w.Cut(clustertest.Reset)
		w.Cut(clustertest.Healed)
	}
}

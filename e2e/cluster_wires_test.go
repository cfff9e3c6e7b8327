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
)

// A front is a load balancer without a memory: each request goes to the next node,
// over a connection of its own. A node that takes no connection is passed over; a
// request that breaks is answered with 502, and not tried again.
type front struct {
	URL    string
	nodes  func() []string // their addresses
	next   atomic.Uint64
	server *http.Server

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
		ErrorLog:      log.New(io.Discard, "", 0), // nodes are killed
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if errors.Is(err, errNobody) {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.URL = "http://" + l.Addr().String() + "/mcp"
	f.server = &http.Server{Handler: aborting(proxy), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.server.Serve(l) // until it is closed
	}()
	t.Cleanup(func() {
		_ = f.server.Close()
		<-ended
		own.CloseIdleConnections()
	})
	return f
}

// aborting cuts a client off where the proxy was cut off, without a word about it in
// the test's output.
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
		d := net.Dialer{Timeout: 2 * time.Second} // where packets vanish
		if c, err = d.DialContext(ctx, "tcp", nodes[(first+uint64(i))%uint64(len(nodes))]); err == nil {
			return c, nil
		}
	}
	return nil, errNobody
}

// errNobody says that a request went to no node.
var errNobody = errors.New("no node takes connections")

// A wire is a TCP proxy that can go dead: between a node and a server of its engine.
type wire struct {
	Addr   string
	to     string
	listen net.Listener
	wait   sync.WaitGroup

	mu    sync.Mutex
	alive chan struct{} // closed as long as all does
	conns map[net.Conn]struct{}
	over  bool
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Addr: l.Addr().String(), to: to, listen: l, conns: make(map[net.Conn]struct{}), alive: make(chan struct{})}
	close(w.alive)
	w.wait.Go(w.accept)
	t.Cleanup(func() {
		w.mu.Lock()
		w.over = true
		_ = l.Close()
		for c := range w.conns {
			_ = c.Close()
		}
		w.mu.Unlock()
		w.heal()
		w.wait.Wait()
	})
	return w
}

// cut lets nothing through any more, and tells nobody: connections stay, and new
// ones are taken, as in a network that drops packets.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive = make(chan struct{})
}

// heal ends a cut. Connections that were there in the meantime are reset, as most
// are that were silent for that long.
func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.alive:
		return
	default:
	}
	for c := range w.conns {
		_ = c.Close()
	}
	close(w.alive)
}

func (w *wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		_ = c.Close()
		return false
	}
	w.conns[c] = struct{}{}
	return true
}

func (w *wire) drop(c net.Conn) {
	w.mu.Lock()
	delete(w.conns, c)
	w.mu.Unlock()
	_ = c.Close()
}

func (w *wire) accept() {
	for {
		c, err := w.listen.Accept()
		if err != nil {
			return
		}
		if w.keep(c) {
			w.wait.Go(func() { w.carry(c) })
		}
	}
}

func (w *wire) carry(c net.Conn) {
	defer w.drop(c)
	w.pass()
	up, err := net.Dial("tcp", w.to)
	if err != nil || !w.keep(up) {
		return
	}
	defer w.drop(up)
	var both sync.WaitGroup
	for _, ends := range [][2]net.Conn{{c, up}, {up, c}} {
		both.Go(func() {
			_, _ = io.Copy(ends[0], through{w, ends[1]}) // until either is closed
			_ = c.Close()
			_ = up.Close()
		})
	}
	both.Wait()
}

// pass waits as long as the wire is cut.
func (w *wire) pass() {
	w.mu.Lock()
	alive := w.alive
	w.mu.Unlock()
	<-alive
}

// through reads what comes through a wire.
type through struct {
	w *wire
	r io.Reader
}

func (t through) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.w.pass()
	return n, err
}

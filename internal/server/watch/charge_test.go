package watch

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/budget"
)

// bounded serves HTTP over connections with a bound of 3/2 of memory.
func bounded(t *testing.T, memory int64, tenant string, handler http.Handler) (addr string, held *budget.Connections, refused *atomic.Int32) {
	t.Helper()
	held, refused = budget.NewConnections(memory, 0.75), new(atomic.Int32)
	cs := &Connections{Bound: &Bound{Memory: held, Tenant: func(net.Addr) string { return tenant }, Refused: func(net.Addr) { refused.Add(1) }}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ConnState: State, MaxHeaderBytes: 32 << 10, ReadHeaderTimeout: time.Minute}
	over := make(chan error, 1)
	go func() { over <- server.Serve(cs.Listener(l)) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-over; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String(), held, refused
}

func dial(t *testing.T, addr, says string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, says); err != nil {
		t.Fatal(err)
	}
	return c
}

func becomes(t *testing.T, what string, held *budget.Connections, want func(used int64) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !want(held.Used()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: connections count for %d bytes", what, held.Used())
		}
	}
}

// is returns a function that reports whether connections count for want bytes.
func is(want int64) func(int64) bool { return func(used int64) bool { return used == want } }

// A connection counts from when it is accepted until it is closed. A header counts while it is read and while the request is
// served. A body does not count.
func TestCharge(t *testing.T) {
	t.Parallel()
	serve := make(chan struct{})
	addr, held, _ := bounded(t, 64<<20, "a", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 30<<10))
		<-serve
	}))
	const head = "POST / HTTP/1.1\r\nHost: x\r\n"
	var fields strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&fields, "%x:\r\n", i)
	}
	large := "X: " + strings.Repeat("x", 20<<10) + "\r\n"
	for name, c := range map[string]struct {
		says        string
		least, most int64 // bounds of the bytes that the header counts for
	}{
		"nothing":                  {"", 0, 0},
		"a short header":           {head, 0, 0},
		"a long one":               {head + large, 50 << 10, 70 << 10},
		"one of many fields":       {head + fields.String(), 150 << 10, 300 << 10},
		"a short one with a body":  {head + "Content-Length: 100000\r\n\r\n" + strings.Repeat("\n", 32<<10), 0, 0},
		"a long one with a body":   {head + large + "Content-Length: 100000\r\n\r\n" + strings.Repeat("\n", 32<<10), 50 << 10, 70 << 10},
		"a body that comes at all": {head + "Content-Length: 30720\r\nX: " + strings.Repeat("x", 3<<10) + "\r\n\r\n" + strings.Repeat("\n", 30<<10), 3 << 10, 6 << 10},
	} {
		conn := dial(t, addr, c.says)
		becomes(t, name, held, func(used int64) bool {
			return used >= connectionCost+c.least && used <= connectionCost+c.most
		})
		if strings.HasSuffix(name, "at all") { // then the next header comes
			serve <- struct{}{}
			if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != http.StatusOK {
				t.Errorf("%s: %v %v", name, res, err)
			}
			becomes(t, name+", afterwards", held, is(connectionCost))
			_, _ = io.WriteString(conn, head+large)
			becomes(t, name+", the next header", held, func(used int64) bool { return used >= connectionCost+50<<10 })
		}
		_ = conn.Close()
		if strings.HasSuffix(name, "with a body") {
			serve <- struct{}{}
		}
		becomes(t, name+", closed", held, is(0))
	}
}

// With TLS the header is encrypted: it counts for its largest possible size until it was read. So does a handshake that does not end.
func TestChargeTLS(t *testing.T) {
	t.Parallel()
	addr, held, _ := bounded(t, 64<<20, "a", http.NotFoundHandler())
	_ = dial(t, addr, "\x16\x03\x01")
	becomes(t, "a handshake below no TLS", held, is(connectionCost))

	var cs Connections
	held = budget.NewConnections(64<<20, 0.75)
	cs.Bound = &Bound{Memory: held, Tenant: func(net.Addr) string { return "a" }, Refused: func(net.Addr) { t.Error("refused") }}
	here, client := pair(t, &cs)
	secure := tls.Server(here, &tls.Config{})
	State(secure, http.StateNew)
	over := make(chan error, 1)
	go func() { over <- secure.Handshake() }()
	if _, err := client.Write(append([]byte{22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xf0}, make([]byte, 0x4000-4)...)); err != nil {
		t.Fatal(err)
	}
	becomes(t, "a handshake that does not end", held, func(used int64) bool { return used > connectionCost+securedCost+8*(14<<10) })
	header := held.Used() - connectionCost - securedCost
	State(secure, http.StateActive)
	becomes(t, "a header that was read", held, func(used int64) bool { return used < connectionCost+securedCost+header/2 })
	State(secure, http.StateIdle)
	becomes(t, "a request that has ended", held, is(connectionCost+securedCost))
	_ = here.Close()
	if err := <-over; err == nil {
		t.Error("the handshake has ended well")
	}
	becomes(t, "a closed connection", held, is(0))
}

// A client over its share gets a 503 that says why its connection is closed, when the connection is accepted or when its header
// comes. There is room again when connections are closed.
func TestTurnedAway(t *testing.T) {
	t.Parallel()
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	addr, held, refused := bounded(t, 8*connectionCost, "a", ok) // of 12 connections one client may have 9
	const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	told := func(what string, c net.Conn) {
		t.Helper()
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || err != nil ||
			!strings.Contains(string(text), "--memory") || !strings.Contains(string(text), "--max-share") {
			t.Errorf("%s: %s %s %v", what, res.Status, text, err)
		}
	}
	var open []net.Conn
	for range 8 {
		open = append(open, dial(t, addr, request))
	}
	becomes(t, "eight connections", held, is(8*connectionCost))
	told("a header of many fields", dial(t, addr, "GET / HTTP/1.1\r\n"+strings.Repeat("x:\r\n", 4000)))
	becomes(t, "eight connections again", held, is(8*connectionCost))
	open = append(open, dial(t, addr, request))
	becomes(t, "nine connections", held, is(9*connectionCost))
	told("a connection", dial(t, addr, request))
	if n := refused.Load(); n != 2 {
		t.Errorf("%d connections were said to be refused", n)
	}
	secure := dial(t, addr, "\x16\x03\x01\x00\x05hello")
	if text, err := io.ReadAll(secure); len(text) > 0 {
		t.Errorf("a client that speaks TLS: %q %v", text, err)
	}
	_ = open[0].Close()
	becomes(t, "a closed connection", held, is(8*connectionCost))
	if res, err := http.ReadResponse(bufio.NewReader(dial(t, addr, request)), nil); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("when there is room: %v %v", res, err)
	}

	addr, held, _ = bounded(t, 8*connectionCost, "", ok) // a trusted proxy
	for range 12 {
		dial(t, addr, request)
	}
	becomes(t, "all of a proxy", held, is(12*connectionCost))
	told("one more", dial(t, addr, request))
}

package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testport"
)

// proxy is a proxy of the kind in its name. pass passes on the bytes of one connection.
type proxy struct {
	name string
	pass func(client, server net.Conn)
	cuts bool // the proxy ends connections before their end
}

var proxies = []proxy{
	{"cuts idle connections", func(client, server net.Conn) {
		// The idle time is counted in parts, so that the time in which this process stands still does not count.
		const part, most = 100 * time.Millisecond, 15
		for idle := 0; idle < most; idle++ {
			passed, err := relay(client, server, func() { _ = server.SetReadDeadline(time.Now().Add(part)) })
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			if passed {
				idle = 0
			}
		}
	}, false},
	{"caps a connection's time", func(client, server net.Conn) {
		reads := 0
		_, _ = relay(client, server, func() {
			if reads++; reads == 2 { // the request has arrived: else the call may never begin
				_ = server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			}
		})
	}, true},
	{"holds the header until the first byte of the body", func(client, server net.Conn) {
		var head []byte
		one := make([]byte, 1)
		for !bytes.Contains(head, []byte("\r\n\r\n")) || len(head) == bytes.Index(head, []byte("\r\n\r\n"))+4 {
			if _, err := server.Read(one); err != nil {
				return
			}
			head = append(head, one...)
		}
		if _, err := client.Write(head); err != nil {
			return
		}
		_, _ = relay(client, server, func() {})
	}, false},
	{"buffers", func(client, server net.Conn) {
		all, err := io.ReadAll(server) // requests ask for the connection to be closed
		if err == nil {
			_, _ = client.Write(all)
		}
	}, true},
}

// relay copies from server to client, and calls before before each read. It returns whether any
// bytes came, and the error that ended it.
func relay(client, server net.Conn, before func()) (passed bool, err error) {
	buf := make([]byte, 4<<10)
	for {
		before()
		n, err := server.Read(buf)
		passed = passed || n > 0
		if _, e := client.Write(buf[:n]); e != nil || err != nil {
			return passed, errors.Join(e, err)
		}
	}
}

// listen starts the proxy and returns its address.
func (p proxy) listen(t *testing.T, to string) string {
	r := &testport.Relay{Target: to}
	r.Carry = func(_ uint64, client *net.TCPConn) {
		server := r.Dial()
		if server == nil {
			return
		}
		defer r.Drop(server)
		go func() { _, _ = io.Copy(server, client) }()
		p.pass(client, server)
	}
	mcptest.Check(t, r.Start())
	t.Cleanup(r.Close)
	return r.Addr()
}

// TestHostileProxies is failure 6: a silent tool behind proxies that cut, hold and buffer. Its
// messages arrive once, and it runs once.
func TestHostileProxies(t *testing.T) {
	t.Parallel()
	var tests sync.WaitGroup // the tests mostly wait
	defer tests.Wait()
	for _, px := range proxies {
		for _, version := range []string{"2025-06-18", "2025-11-25"} {
			tests.Go(func() {
				t.Run(px.name+"/"+version, func(t *testing.T) { hostile(t, px, version) })
			})
		}
	}
}

func hostile(t *testing.T, px proxy, version string) {
	const silence = 2 * time.Second // the tool's silence, longer than a connection may be idle
	opts := server.Options{Retry: 5 * time.Millisecond}
	switch px.name {
	case "cuts idle connections":
		opts.KeepAlive = 50 * time.Millisecond
	case "buffers":
		opts.DisconnectAfter = 50 * time.Millisecond
	}
	n := newNode(t, config{server: opts, http: func(s *http.Server) { s.WriteTimeout = time.Second }})
	p := n.connect(version, nil)
	p.via = px.listen(t, n.addr)
	f := &follower{p: p, seen: map[string]bool{}}
	w := p.open("POST", "/mcp", call("steps", fmt.Sprintf(`{"key":"k","n":1,"pause":%d}`, silence.Milliseconds())), "Connection: close")
	if began, stood := time.Now(), mcptest.Standstill(); !px.cuts {
		w.head()
		if first := time.Since(began) - stood(); first >= silence {
			t.Errorf("the header came after %v", first)
		}
	} else {
		_ = stood()
	}
	for {
		var r reply
		if px.cuts {
			r = w.atMost(1<<20, fin) // on a busy machine not even the header may arrive
		} else {
			r = w.all()
		}
		mcptest.Check(t, f.take(r))
		if f.done {
			break
		}
		if !px.cuts {
			t.Fatalf("ended before the response: %q", r.body)
		}
		w = f.again("Connection: close")
	}
	if err := f.check(1); err != nil || n.runs("k") != 1 {
		t.Errorf("%v, %d runs", err, n.runs("k"))
	}
}

package clustertest

import (
	"errors"
	"net"
	"sync"
	"testing"
)

// A Cut is what lies between a node and its engine.
type Cut int

const (
	// Healed is a network that works.
	Healed Cut = iota
	// Reset ends all connections, and refuses new ones.
	Reset
	// Silent holds all that is sent back, without a word, until it is healed: then
	// it arrives late.
	Silent
)

// A Proxy is the network between a node and a server of its engine. Its methods may
// be called concurrently.
type Proxy struct {
	target   string
	listener net.Listener
	done     sync.WaitGroup

	mu    sync.Mutex
	cut   Cut
	gate  chan struct{} // closed unless the cut is silent
	conns map[net.Conn]struct{}
	ended bool
}

// NewProxy listens until the test ends, and passes on what comes to the server at
// target, a host and port.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, listener: l, conns: make(map[net.Conn]struct{}), gate: make(chan struct{})}
	close(p.gate)
	p.done.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is where the proxy listens: host and port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut changes what becomes of connections from now on.
func (p *Proxy) Cut(c Cut) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	switch {
	case c == Silent && p.cut != Silent:
		p.gate = make(chan struct{})
	case c != Silent && p.cut == Silent:
		close(p.gate)
	}
	p.cut = c
	if c == Reset {
		p.reset()
	}
}

// reset ends all connections; p is locked.
func (p *Proxy) reset() {
	for conn := range p.conns {
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	clear(p.conns)
}

func (p *Proxy) close() {
	p.Cut(Reset)
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.listener.Close()
	p.done.Wait()
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.done.Go(func() { p.serve(conn) })
		}
	}
}

// keep notes a connection that a cut will end, or ends it if there is one.
func (p *Proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut == Reset {
		conn.Close()
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *Proxy) forget(conn net.Conn) {
	p.mu.Lock()
	delete(p.conns, conn)
	p.mu.Unlock()
	conn.Close()
}

func (p *Proxy) serve(client net.Conn) {
	if !p.keep(client) {
		return
	}
	defer p.forget(client)
	p.wait()
	server, err := net.Dial("tcp", p.target)
	if err != nil || !p.keep(server) {
		return
	}
	defer p.forget(server)
	var both sync.WaitGroup
	both.Go(func() { p.pass(client, server) })
	both.Go(func() { p.pass(server, client) })
	both.Wait()
}

// wait waits while all is held back.
func (p *Proxy) wait() {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	<-gate
}

// pass passes on what comes from one side until either ends.
func (p *Proxy) pass(from, to net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.wait()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			return
		}
	}
}

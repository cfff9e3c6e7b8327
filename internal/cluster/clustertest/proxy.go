package clustertest

import (
	"net"
	"sync"
	"testing"

	"holdfast/internal/testport"
)

// A Cut is the state of the network between a node and its engine.
type Cut int

const (
	// Healed is a network that works.
	Healed Cut = iota
	// Reset ends all connections, and refuses new ones.
	Reset
	// Silent holds all bytes back, without an error, until the network is healed: then they arrive
	// late.
	Silent
)

// A Proxy is the network between a node and a server of its engine. Its methods may
// be called concurrently.
type Proxy struct {
	relay testport.Relay

	mu   sync.Mutex
	gate chan struct{} // closed unless the cut is silent
}

// NewProxy returns a proxy that listens until the test ends, and passes bytes on to the server at
// target, a host and port.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{gate: make(chan struct{})}
	close(p.gate)
	p.relay = testport.Relay{Target: target, Carry: p.carry}
	if err := p.relay.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Cut(Reset)
		p.relay.Close()
	})
	return p
}

// Addr is where the proxy listens: host and port.
func (p *Proxy) Addr() string { return p.relay.Addr() }

// Cut changes the state of the network from now on.
func (p *Proxy) Cut(c Cut) {
	p.relay.Away(c == Reset, true)
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
		if c == Silent {
			p.gate = make(chan struct{})
		}
	default:
		if c != Silent {
			close(p.gate)
		}
	}
}

func (p *Proxy) carry(_ uint64, client *net.TCPConn) {
	p.wait()
	server := p.relay.Dial()
	if server == nil {
		return
	}
	defer p.relay.Drop(server)
	var both sync.WaitGroup
	both.Go(func() { p.pass(client, server) })
	both.Go(func() { p.pass(server, client) })
	both.Wait()
}

// wait waits while bytes are held back.
func (p *Proxy) wait() {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	<-gate
}

// pass passes on the bytes of one side until either side ends.
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

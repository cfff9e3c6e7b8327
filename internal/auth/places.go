package auth

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"sync"
)

// The bounds of the requests to an issuer about tokens. They hold separately for tokens that were good
// before.
const (
	asksAtOnce    = 32 // requests under way
	asksOfAddress = 8  // of these, for clients of one address
	waitOfAddress = 64 // tokens of one address that may wait for a place
)

// errCrowded says that waitOfAddress tokens of the client's address wait already.
var errCrowded = errors.New("too many tokens of this address are being checked")

// places bound the requests that are under way at an issuer: a request needs a place. Each address has a
// share of them, and waiting addresses take turns, so a client that makes tokens up delays only clients of
// its own address. The methods may be called concurrently. The zero value is ready.
type places struct {
	mu    sync.Mutex
	taken int
	of    map[string]*share // by address: those that have a place, or wait for one
	turns []*share          // those with requests that wait, the next first
}

// A share is the places of one address. Guarded by places.mu.
type share struct {
	address string
	taken   int
	waiting []chan struct{} // one for each request that waits, closed when the request has a place
}

// take waits for a place, until ctx is done. A caller that gets a place must call [places.give]. The error
// is errCrowded, or ctx's.
func (p *places) take(ctx context.Context, address string) error {
	p.mu.Lock()
	one := p.of[address]
	if one == nil {
		one = &share{address: address}
		if p.of == nil {
			p.of = make(map[string]*share)
		}
		p.of[address] = one
	}
	if len(one.waiting) == waitOfAddress {
		p.mu.Unlock()
		return errCrowded
	}
	ready := make(chan struct{})
	if one.waiting = append(one.waiting, ready); len(one.waiting) == 1 {
		p.turns = append(p.turns, one)
	}
	p.assign()
	p.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(one.waiting, ready)
	if i < 0 {
		return nil // it has got a place just now
	}
	if one.waiting = slices.Delete(one.waiting, i, i+1); len(one.waiting) == 0 {
		p.turns = slices.DeleteFunc(p.turns, func(s *share) bool { return s == one })
		p.forget(one)
	}
	return ctx.Err()
}

// give gives the place of an address back.
func (p *places) give(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.of[address]
	p.taken--
	one.taken--
	p.forget(one)
	p.assign()
}

// forget drops a share that has no place and no request that waits. p.mu is held.
func (p *places) forget(one *share) {
	if one.taken == 0 && len(one.waiting) == 0 {
		delete(p.of, one.address)
	}
}

// assign gives free places to the addresses in turn. p.mu is held.
func (p *places) assign() {
	for i := 0; i < len(p.turns) && p.taken < asksAtOnce; {
		one := p.turns[i]
		if one.taken == asksOfAddress {
			i++
			continue
		}
		p.taken++
		one.taken++
		close(one.waiting[0])
		one.waiting = one.waiting[1:]
		p.turns = slices.Delete(p.turns, i, i+1)
		if len(one.waiting) > 0 {
			p.turns = append(p.turns, one)
		}
	}
}

// addressOf returns the IP address of a request's client, for IPv6 its /64 network; "" if it has none. The
// request has passed the guard, which knows of proxies.
func addressOf(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		net, _ := ip.Prefix(64) // an IPv6 address has as many bits
		ip = net.Addr()
	}
	return ip.String()
}

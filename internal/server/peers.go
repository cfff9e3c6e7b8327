package server

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/cluster"
	"holdfast/internal/session"
	"holdfast/stream"
)

// sweepEvery is how often one of the nodes looks for sessions without an owner, beside the
// sweeps after a node is gone. The engine lists all sessions for a sweep. That takes at most
// one part in sweepShare of its time, unless a sweep is due in which each node has one in
// sweepAtLeast.
const (
	sweepEvery   = 30 * time.Second
	sweepShare   = 20
	sweepAtLeast = 10 * time.Minute
)

// sweepAfter is how long a sweep waits after a node is gone. Requests of clients take over
// the sessions that they need before that.
const sweepAfter = 200 * time.Millisecond

// sweepAgain is when a sweep is tried again that ended with an error of the store.
const sweepAgain = 2 * time.Second

// peers is what the handler has to do with other nodes: connections to them, requests from
// them, notices, and the sweep of the sessions of nodes that are gone.
type peers struct {
	h         *Handler
	node      *cluster.Node
	transport *http.Transport
	direct    *nodeClient // for what is small
	server    *http.Server

	since time.Time     // when it began
	quit  chan struct{} // closed at the end
	work  sync.WaitGroup
	lost  chan struct{} // signalled when a node is gone

	locations locations

	mu         sync.Mutex
	placements map[*placement]struct{}
	bridges    map[*bridge]struct{}
	// left are clients that have left other nodes, and when.
	left map[string]time.Time
	// waiting are the light calls of forwarded requests, by the names of these.
	waiting map[string]context.CancelFunc
}

// join begins to serve other nodes, and to look after their sessions.
func (h *Handler) join(node *cluster.Node) *peers {
	p := &peers{
		h:          h,
		node:       node,
		since:      time.Now(),
		quit:       make(chan struct{}),
		lost:       make(chan struct{}, 1),
		placements: make(map[*placement]struct{}),
		bridges:    make(map[*bridge]struct{}),

		left:    make(map[string]time.Time),
		waiting: make(map[string]context.CancelFunc),
	}
	p.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			name, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return node.Dial(ctx, name)
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    128,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 1 << 20,
	}
	p.direct = &nodeClient{transport: p.transport}
	p.server = &http.Server{
		Handler:           http.HandlerFunc(h.receive),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    2 << 20, // a client's, and a visit
		ErrorLog:          nil,
	}
	return p
}

// start starts what runs until [Handler.Close].
func (p *peers) start() {
	p.work.Go(func() {
		err := p.server.Serve(p.node.Listener())
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			p.h.logger.Error("other nodes are not served any more", "error", err)
		}
	})
	if !p.h.isDoor() {
		p.work.Go(p.sweep)
	}
	if p.h.opts.Limits != nil {
		p.h.opts.Limits.Share()
		p.work.Go(p.tellLimits)
	}
	p.node.Watch(func(gone string) {
		p.locations.forgetNode(gone)
		p.direct.forget(gone)
		session.Wake(p.lost)
	})
	p.node.OnWake(func() {
		p.locations.forgetAll()
		p.h.Verify()
	})
	p.node.Notices(p.noticed)
}

// Verify checks whether this node still owns its sessions. It is called after a time in which
// other nodes may have taken it for gone, as when the engine was away.
func (h *Handler) Verify() {
	if h.peers == nil || !h.peers.begin() {
		return
	}
	go func() {
		defer h.peers.work.Done()
		ctx, stop := h.peers.until(sweepEvery)
		defer stop()
		h.sessions.Verify(ctx)
	}()
}

// begin counts work that close waits for, until work.Done. It is false once close was called.
func (p *peers) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.quit:
		return false
	default:
		p.work.Add(1)
		return true
	}
}

// until returns a context that ends with the peers, or after a time.
func (p *peers) until(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeout(context.Background(), d)
	over := make(chan struct{})
	go func() {
		select {
		case <-p.quit:
			stop()
		case <-over:
		}
	}()
	var once sync.Once
	return ctx, func() {
		stop()
		once.Do(func() { close(over) })
	}
}

// sweep takes over the sessions of nodes that are gone: this node's share when a node is gone,
// and from time to time all of them.
func (p *peers) sweep() {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		mine, all := p.mine, false
		select {
		case <-p.quit:
			return
		case <-p.lost: // all nodes notice that at the same time, and take their shares
			if !p.sleep(sweepAfter) {
				return
			}
		case <-t.C:
			mine, all = func(stream.SessionKey) bool { return true }, true
		}
		begun := time.Now()
		if !p.h.isDraining() && !p.sweepOnce(mine) {
			time.AfterFunc(sweepAgain, func() { session.Wake(p.lost) })
		}
		if all {
			every := min(max(sweepEvery, sweepShare*time.Since(begun)), sweepAtLeast) * time.Duration(1+len(p.node.Peers()))
			if p.h.sessions.Alone() {
				every = sweepAtLeast
			}
			t.Reset(every*3/4 + rand.N(every/2))
		}
	}
}

// sleep waits, and reports whether close was not called meanwhile.
func (p *peers) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.quit:
		return false
	}
}

// sweepOnce takes over the sessions without an owner for which mine is true. It is false if
// that failed.
func (p *peers) sweepOnce(mine func(stream.SessionKey) bool) bool {
	ctx, stop := p.until(10 * time.Minute)
	defer stop()
	gone := func(name string) bool { return p.node.Gone(ctx, name) }
	err := p.h.sessions.Sweep(ctx, gone, mine)
	if err != nil && ctx.Err() == nil {
		p.h.logger.Warn("sessions of lost nodes not all taken over; tried again soon", "error", err)
	}
	return err == nil
}

// mine reports whether this node is the one to take a session over: each node that lives has
// its share, and all agree on it (rendezvous hashing).
func (p *peers) mine(key stream.SessionKey) bool {
	me := weight(p.node.Name(), key)
	for _, name := range p.node.Peers() {
		if weight(name, key) > me {
			return false
		}
	}
	return true
}

func weight(node string, key stream.SessionKey) uint64 {
	sum := fnv.New64a()
	_, _ = fmt.Fprintf(sum, "%s %s", key, node)
	return mix(sum.Sum64())
}

// mix spreads a sum's last bytes over all of it.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// enter registers a placement, whose client is disconnected when this node is drained. The
// function that it returns removes the placement.
func (p *peers) enter(x *placement) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.placements[x] = struct{}{}
	select {
	case <-p.quit:
		x.leaving.begin()
	default:
	}
	return func() { p.exit(x) }
}

// exit removes a placement that enter has registered.
func (p *peers) exit(x *placement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.placements, x)
}

// enterBridge is enter for a WebSocket that is joined with another node's.
func (p *peers) enterBridge(b *bridge) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bridges[b] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.bridges, b)
	}
}

// close ends all that runs, and waits for it.
func (p *peers) close() {
	p.mu.Lock()
	select {
	case <-p.quit:
		p.mu.Unlock()
		return
	default:
	}
	close(p.quit)
	for x := range p.placements {
		x.leaving.begin()
	}
	bridges := slices.Collect(maps.Keys(p.bridges))
	p.mu.Unlock()
	for _, b := range bridges { // whose connections no http.Server knows any more
		b.leave(websocket.StatusGoingAway, "going away; retry: 1000")
	}
	_ = p.server.Close()
	p.transport.CloseIdleConnections()
	p.direct.close()
	p.work.Wait()
}

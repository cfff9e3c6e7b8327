package cluster

import (
	"context"
	"errors"
	"slices"
	"time"
)

// remembered is how long a node knows who is gone. It would only ask again.
const remembered = time.Hour

// hear returns the peer whose message has come, which therefore lives. nil: it has left,
// and the message is late.
func (n *Node) hear(from []byte) *peer {
	n.mu.Lock()
	p := n.peers[string(from)]
	if p == nil {
		p = &peer{name: string(from)}
		n.peers[p.name] = p
	}
	now := n.now()
	p.heard.Store(int64(now))
	was, is := p.take(signMessage)
	p.announce()
	n.mu.Unlock()
	switch {
	case is == left:
		return nil
	case p.name == n.name:
		n.health.echo.Store(int64(now) | 1)
	case was == gone:
		n.log.Info("cluster: a node that seemed gone is back", "node", p.name)
	}
	return p
}

// hold returns the peer of a name, unknown or not. It is not forgotten until release.
func (n *Node) hold(name string) *peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[name]
	if p == nil {
		p = &peer{name: name}
		p.heard.Store(-int64(remembered))
		n.peers[name] = p
	}
	p.users.Add(1)
	return p
}

func (n *Node) release(p *peer) { p.users.Add(-1) }

// next returns what is closed when something new is known of a peer.
func (n *Node) next(p *peer) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.news == nil {
		p.news = make(chan struct{})
	}
	return p.news
}

// noName hears from the bus that nobody has a name. A peer that was there may only be
// changing servers, so it has a moment.
func (n *Node) noName(name string) {
	n.mu.Lock()
	p := n.peers[name]
	if p == nil || name == n.name || p.lost() {
		n.mu.Unlock()
		return
	}
	now := max(n.now(), 1)
	first := p.nameless == 0
	if first {
		p.nameless = now
		p.announce()
	}
	was := p.is()
	sure := was == unknown || now-p.nameless >= n.doubt(now)
	if !sure {
		p.take(signNoName)
	}
	n.mu.Unlock()
	if sure {
		n.lose(p, signNoAnswer, "is not there")
	} else if first {
		select {
		case n.hurry <- struct{}{}:
		default:
		}
	}
}

// doubt is how long a peer that was there may have no name: longer if the bus has
// just come back, as then all others have to find it too.
func (n *Node) doubt(now time.Duration) time.Duration {
	if woke := time.Duration(n.health.woke.Load()); woke != 0 && now-woke < 2*n.o.Silence {
		return n.o.Silence
	}
	return n.o.Doubt
}

// lose notes by a sign that a peer is lost: its connections fail, and the watchers hear
// of it.
func (n *Node) lose(p *peer, g sign, how string) {
	n.mu.Lock()
	if n.closing {
		n.mu.Unlock()
		return
	}
	was, is := p.take(g)
	if was == is {
		n.mu.Unlock()
		return
	}
	p.met, p.asked, p.nameless, p.lostAt = false, 0, 0, n.now()
	p.announce()
	var lost []*conn
	for _, c := range n.conns {
		if c.peer == p {
			lost = append(lost, c)
			n.unlist(c)
		}
	}
	watches := slices.Clone(n.watches)
	n.mu.Unlock()
	for _, c := range lost {
		c.fail(&lostError{p.name, how})
		if is == gone {
			// It may only have been stopped, and then learns that these have ended.
			n.post(p.name, n.compose(kindReset).conn(c.id))
		}
	}
	if was != alive && was != suspected {
		return
	}
	n.log.Info("cluster: a node "+how, "node", p.name)
	n.told.put(func() {
		for _, f := range watches {
			f(p.name)
		}
	})
}

// lostError says that a peer is gone.
type lostError struct{ node, how string }

func (e *lostError) Error() string { return "node " + e.node + " " + e.how + ": " + ErrNoNode.Error() }
func (e *lostError) Unwrap() error { return ErrNoNode }

// Gone says whether a node is gone: it has said so, nobody has its name, or it does
// not answer. It is asked if it has not been heard of just now, so the answer may
// take a second or so. What ctx ends is no sign, nor what a bus that carries nothing
// does not bring: then a node is not gone.
func (n *Node) Gone(ctx context.Context, node string) bool {
	if node == n.name {
		return false
	}
	p := n.hold(node)
	defer n.release(p)
	asked := n.now()
	if !p.lost() && asked-time.Duration(p.heard.Load()) < n.o.tick() {
		return false
	}
	for tries := 0; tries < 2; tries++ {
		news, begun := n.next(p), n.now()
		if p.lost() {
			return true
		}
		if err := n.send(p, n.compose(kindPing)); err != nil && !errors.Is(err, ErrNoNode) {
			return false
		}
		if p.lost() {
			return true
		}
		if !n.await(ctx, p, news, asked, n.o.Answer) {
			return p.lost()
		}
		if !p.lost() && time.Duration(p.heard.Load()) >= asked {
			return false
		}
		if n.now()-begun > n.o.Answer+n.o.jump() {
			tries = -1 // this process was stopped
		}
	}
	if !p.lost() && n.well(n.now(), asked) {
		n.lose(p, signNoAnswer, "does not answer")
	}
	return p.lost()
}

// await waits until a peer was heard of or is lost, for a time. It returns false if
// this end has given up.
func (n *Node) await(ctx context.Context, p *peer, news <-chan struct{}, since, patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-news:
			if p.lost() || time.Duration(p.heard.Load()) >= since {
				return true
			}
			news = n.next(p)
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		case <-n.closed:
			return false
		}
	}
}

// Peers are the names of the other nodes that live and take new sessions, in order.
func (n *Node) Peers() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for name, p := range n.peers {
		if name != n.name && p.met && !p.draining && !p.lost() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Watch has f called with the name of each peer that is gone from now on, one at a
// time, from a goroutine of the Node. A peer that was only away for long may come
// back, and be gone again; so whoever acts on it later should ask [Node.Gone], which
// then knows at once. While f waits, nobody else is told anything.
func (n *Node) Watch(f func(node string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watches = append(n.watches, f)
}

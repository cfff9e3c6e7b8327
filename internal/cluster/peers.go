package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// remembered is how long a node remembers that a peer is lost. After that it would ask again.
const remembered = time.Hour

// sender returns the peer that sent a message, and notes that it lives. nil: the peer has left, and
// the message is late.
func (n *Node) sender(from []byte) *peer {
	n.mu.Lock()
	p := n.peers[string(from)]
	if p == nil {
		p = &peer{name: string(from)}
		n.peers[p.name] = p
	}
	now := n.now()
	p.seen.Store(int64(now))
	was, is := p.take(signMessage)
	back := was == gone || p.toldLost
	p.toldLost = false
	p.announce()
	n.mu.Unlock()
	switch {
	case is == left:
		return nil
	case p.name == n.name:
		n.health.heard(now, n.o.Silence/2)
	case back:
		n.log.Info("cluster: a node that seemed gone is back", "node", p.name)
	}
	return p
}

// use returns the peer of a name, known or not. The peer is not forgotten until release.
func (n *Node) use(name string) *peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peers[name]
	if p == nil {
		p = &peer{name: name}
		p.seen.Store(-int64(remembered))
		n.peers[name] = p
	}
	p.users.Add(1)
	return p
}

func (n *Node) release(p *peer) { p.users.Add(-1) }

// next returns a channel that is closed when something new is known of a peer.
func (n *Node) next(p *peer) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.news == nil {
		p.news = make(chan struct{})
	}
	return p.news
}

// noName notes that the bus finds no node of a name. A peer that was there may only be changing
// servers, so it has [Options.Grace] to come back.
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
	sure := was == unknown || now-p.nameless >= n.grace(now)
	if !sure {
		p.take(signNoName)
	}
	n.mu.Unlock()
	if sure {
		n.lose(p, signNoAnswer, "is not there")
	} else if first {
		select {
		case n.wakeClock <- struct{}{}:
		default:
		}
	}
}

// grace is how long a peer that was there may have no name. It is longer if the bus has
// just come back, as the peers have to find it again too.
func (n *Node) grace(now time.Duration) time.Duration {
	if woke := time.Duration(n.health.returned.Load()); woke != 0 && now-woke < 2*n.o.Silence {
		return n.o.Silence
	}
	return n.o.Grace
}

// lose takes a sign that a peer is lost: its connections fail, and the watchers are called.
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
	p.beats, p.asked, p.nameless, p.lostAt = false, 0, 0, n.now()
	n.changes++
	p.announce()
	var lost []*conn
	for _, c := range n.conns {
		if c.peer == p {
			lost = append(lost, c)
			n.unlist(c)
		}
	}
	watches := slices.Clone(n.watches)
	seen := was == alive || was == suspected
	again := p.toldLost // the peer was lost before, and has only been pinged again since the bus was away
	p.toldLost = again || seen
	n.mu.Unlock()
	for _, c := range lost {
		c.fail(&lostError{p.name, how})
		if is == gone {
			// The peer may only have been stopped, and then learns that these connections have ended.
			n.enqueue(p.name, n.compose(kindReset).conn(c.id))
		}
	}
	if !seen {
		return
	}
	if !again {
		n.log.Info("cluster: a node "+how, "node", p.name)
	}
	n.events.put(func() {
		for _, f := range watches {
			f(p.name)
		}
	})
}

// lostError says that a peer is gone.
type lostError struct{ node, how string }

func (e *lostError) Error() string { return "node " + e.node + " " + e.how + ": " + ErrNoNode.Error() }
func (e *lostError) Unwrap() error { return ErrNoNode }

// Gone reports whether a node is gone: it has said so, no node has its name, or it does not answer.
// Gone pings the node if no message of it has come just now, so it may take a second. Gone returns
// false if ctx ends before, and while the bus carries no messages.
func (n *Node) Gone(ctx context.Context, node string) bool {
	if node == n.name {
		return false
	}
	p := n.use(node)
	defer n.release(p)
	asked := n.now()
	if !p.lost() && asked-time.Duration(p.seen.Load()) < n.o.tick() {
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
		if !p.lost() && time.Duration(p.seen.Load()) >= asked {
			return false
		}
		if n.now()-begun > n.o.Answer+n.o.jump() {
			tries = -1 // this process was stopped
		}
	}
	if !p.lost() && n.busWorks(n.now(), asked) {
		n.lose(p, signNoAnswer, "does not answer")
	}
	return p.lost()
}

// await waits until a message of a peer comes or the peer is lost, for a time. It returns
// false if ctx ended or the node was closed.
func (n *Node) await(ctx context.Context, p *peer, news <-chan struct{}, since, patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-news:
			if p.lost() || time.Duration(p.seen.Load()) >= since {
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

// Peers returns the names of the other nodes that live and take new sessions, sorted. Doors are
// not among them.
func (n *Node) Peers() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for name, p := range n.peers {
		if n.takes(p) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Homes returns the names of the other nodes that live and may have sessions, sorted. Doors are not among them.
// changes is how often a node was lost, or began to drain. settled is false while a node with sessions drains.
func (n *Node) Homes() (names []string, changes uint64, settled bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	settled = true
	for name, p := range n.peers {
		switch {
		case name == n.name || !p.beats || p.lost():
			continue
		case p.draining && p.load.told && p.load.last.Sessions == 0: // it gets no sessions any more, as a door gets none
			continue
		}
		names = append(names, name)
		settled = settled && !p.draining
	}
	slices.Sort(names)
	return names, n.changes, settled
}

// Watch registers f, which a goroutine of the Node calls with the name of each peer that is lost
// from now on, one at a time. A peer that was only away may come back, and be lost again. So code
// that acts on it later should ask [Node.Gone], which then answers at once. All watchers are called
// by one goroutine, so f should not wait.
func (n *Node) Watch(f func(node string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watches = append(n.watches, f)
}

// A Member is another node, as this node knows it.
type Member struct {
	Name      string
	Suspected bool // it is pinged
	Gone      bool // it seems to have ended
	Left      bool // it has said that it ends
}

// Members returns the other nodes that this node has heard of, also those that were lost in the
// last hour, sorted by name.
func (n *Node) Members() []Member {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []Member
	for name, p := range n.peers {
		if name != n.name && (p.beats || p.lost()) {
			is := p.is()
			all = append(all, Member{Name: name, Suspected: is == suspected, Gone: is == gone, Left: is == left})
		}
	}
	slices.SortFunc(all, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return all
}

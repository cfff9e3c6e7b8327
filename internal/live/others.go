package live

import (
	"context"
	"sync"
	"time"
)

// How other nodes are watched. Nothing of it runs while no page is open.
const (
	lookEvery   = 250 * time.Millisecond // for which nodes there are
	lingerFor   = 10 * time.Second       // what is known of others is kept after the last page was closed
	silentAfter = 2 * time.Second        // without news, a node is shown as silent
	lostFor     = 2 * time.Minute        // what a lost node had is shown
	mostFeeds   = 64                     // calls of other nodes whose lives are kept
)

// others is what a page knows of other nodes.
type others struct {
	mu     sync.Mutex
	users  int // pages that are open
	idle   time.Time
	closed bool
	stop   context.CancelFunc // of run; nil: it does not run
	ctx    context.Context    // of those that ask
	nodes  map[string]*node
	feeds  map[place]*feed
	work   sync.WaitGroup
}

// node is another node, as the page knows it. others.mu guards it.
type node struct {
	name    string
	state   NodeState
	lost    time.Time // when it was first seen to be lost or ended
	asking  bool      // a goroutine asks it
	refused string    // why it gives no details: see the constants; "": it does, or has not answered yet

	heard    time.Time // when its last news came; zero: none has
	skew     int64     // what is to be added to its times, in milliseconds
	last     snapshot  // without its lists
	calls    map[uint64]callView
	sessions map[string]sessionView
	folded   map[uint64]bool // calls of a lost node that another one has gone on with
}

// Why a node gives no details.
const (
	refusedOld  = "older_build"
	refusedPage = "no_page"
)

// A place is a call on a node.
type place struct {
	node string
	id   uint64
}

// watchOthers has other nodes watched until the function that it returns is called, and a while longer.
func (l *Live) watchOthers() (done func()) {
	o := &l.others
	o.mu.Lock()
	defer o.mu.Unlock()
	if l.from().Nodes == nil || l.from().Ask == nil || o.closed {
		return func() {}
	}
	o.users++
	if o.stop == nil {
		o.nodes, o.feeds = make(map[string]*node), make(map[place]*feed)
		o.ctx, o.stop = context.WithCancel(context.Background())
		o.work.Go(l.runOthers)
	}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.users--
		o.idle = time.Now()
	}
}

// close ends it, and waits.
func (o *others) close() {
	o.mu.Lock()
	o.closed = true
	if o.stop != nil {
		o.stop()
	}
	o.mu.Unlock()
	o.work.Wait()
}

// runOthers looks after the nodes, until no page has been open for a while.
func (l *Live) runOthers() {
	o := &l.others
	o.mu.Lock()
	ctx := o.ctx
	o.mu.Unlock()
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		if !l.lookAround() {
			return
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookAround brings the list of nodes up to date. It is false, and all is forgotten, once no page has
// been open for a while.
func (l *Live) lookAround() bool {
	_, all := l.from().Nodes()
	o := &l.others
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.users == 0 && time.Since(o.idle) > lingerFor || o.closed {
		o.stop()
		o.stop, o.nodes, o.feeds = nil, nil, nil
		return false
	}
	known := make(map[string]bool, len(all))
	for _, one := range all {
		known[one.Name] = true
		n := o.nodes[one.Name]
		if n == nil {
			if one.State >= NodeLost {
				continue // before this page was open
			}
			n = &node{name: one.Name, calls: make(map[uint64]callView), sessions: make(map[string]sessionView), folded: make(map[uint64]bool)}
			o.nodes[one.Name] = n
			l.news.Add(1)
		}
		l.become(n, one.State)
		if n.state < NodeLost && !n.asking {
			n.asking = true
			ctx := o.ctx
			o.work.Go(func() { l.askNode(ctx, n) })
		}
	}
	for name, n := range o.nodes {
		if !known[name] {
			l.become(n, max(n.state, NodeLost))
		}
		if n.state >= NodeLost && time.Since(n.lost) > lostFor {
			delete(o.nodes, name)
			l.news.Add(1)
		}
	}
	return true
}

// become notes the state of a node. l.others.mu is held.
func (l *Live) become(n *node, s NodeState) {
	if n.state == s {
		return
	}
	if s >= NodeLost && n.state < NodeLost {
		n.lost = time.Now()
	}
	if s < NodeLost && n.state >= NodeLost {
		n.folded = make(map[uint64]bool) // it was only away, and tells anew what it has
	}
	n.state = s
	l.news.Add(1)
}

package live

import (
	"context"
	"sync"
	"time"
)

// The times and bounds of watching other nodes, which ends lingerFor after the last page was closed.
const (
	lookEvery   = 250 * time.Millisecond // between two looks at the list of nodes
	lingerFor   = 10 * time.Second       // the state of others is kept so long after the last page was closed
	silentAfter = 2 * time.Second        // without news, a node is shown as silent
	lostFor     = 2 * time.Minute        // the rows of a lost node are shown for so long
	mostFeeds   = 64                     // lives of calls on other nodes that are kept
)

// others is the state of other nodes, as this one knows it.
type others struct {
	mu     sync.Mutex
	users  int // open pages
	idle   time.Time
	closed bool
	stop   context.CancelFunc // ends ctx; nil: runOthers does not run
	ctx    context.Context    // of the goroutines that ask
	nodes  map[string]*node
	feeds  map[place]*feed
	work   sync.WaitGroup
}

// node is another node, as this one knows it. others.mu guards it.
type node struct {
	name    string
	state   NodeState
	lost    time.Time // when the node was first seen to be lost or ended
	asking  bool      // a goroutine runs askNode
	refused string    // why the node gives no details: see the constants; "": it does, or has not answered yet

	heard    time.Time // when its last news came; zero: none has
	skew     int64     // milliseconds to add to the node's times
	last     snapshot  // the last snapshot, without its lists
	calls    map[uint64]callView
	sessions map[string]sessionView
	folded   map[uint64]bool // calls of a lost node that went on at another one
}

// The reasons why a node gives no details.
const (
	refusedOld  = "older_build"
	refusedPage = "no_page"
)

// A place is a call on a node.
type place struct {
	node string
	id   uint64
}

// watchOthers watches other nodes until done is called, and lingerFor longer.
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

// close ends the watching of other nodes, and waits for its goroutines.
func (o *others) close() {
	o.mu.Lock()
	o.closed = true
	if o.stop != nil {
		o.stop()
	}
	o.mu.Unlock()
	o.work.Wait()
}

// runOthers calls lookAround every lookEvery, until that returns false.
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

// lookAround updates the list of nodes. Once no page has been open for lingerFor it forgets all nodes
// and returns false.
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
				continue // it was lost before this page was open
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
		n.folded = make(map[uint64]bool) // the node was only away, and sends its whole state again
	}
	n.state = s
	l.news.Add(1)
}

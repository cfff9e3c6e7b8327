package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a node: the times that it allows others, and its callbacks. The zero value of
// each field stands for the default given with it.
type Options struct {
	Heartbeat time.Duration // how often a node sends a heartbeat; 500 ms
	Silence   time.Duration // how long a peer may be silent, or a message of a connection late; 2 s
	Answer    time.Duration // how long a silent peer has to answer a ping; it is pinged for twice as long; 500 ms
	Grace     time.Duration // how long the bus may not know a peer's name, as while the peer changes servers; 300 ms
	Window    int           // bytes that may be sent in a direction of a connection before they are read; 256 KiB

	// Door says that the node takes no sessions: it only sends requests to other nodes.
	Door bool
	// Load returns the node's load, so that other nodes choose the node with the least. It is
	// called with each heartbeat, and must not wait; nil: the load is not reported.
	Load func() Load

	// Bus is called when the bus stops carrying messages (silent), and when it carries them again.
	// It must not wait. Nil: the node logs that.
	Bus func(silent bool)

	Logger *slog.Logger // slog.Default()
}

// A Load is the amount of work of a node.
type Load struct {
	Calls    int // in flight
	Sessions int
}

func (o Options) withDefaults() Options {
	o.Heartbeat = or(o.Heartbeat, 500*time.Millisecond)
	o.Silence = or(o.Silence, 2*time.Second)
	o.Answer = or(o.Answer, 500*time.Millisecond)
	o.Grace = or(o.Grace, 300*time.Millisecond)
	o.Window = or(o.Window, 256<<10)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// tick is how often a node checks its peers and connections.
func (o *Options) tick() time.Duration { return o.Heartbeat / 2 }

// ticks returns the number of ticks in a time, or one more.
func (o *Options) ticks(d time.Duration) int { return int(d/o.tick()) + 1 }

// jump is a delay of a tick that says that the process was stopped.
func (o *Options) jump() time.Duration { return o.Silence * 3 / 4 }

// A Node is this process among the nodes of one engine. Its methods may be called concurrently.
type Node struct {
	bus    Bus
	o      Options
	name   string
	chunk  int // most bytes of a message's data
	log    *slog.Logger
	health health
	listen *listener
	queues
	running

	mu sync.Mutex
	tables
	callbacks
	closing bool
	drained bool
	changes uint64 // see Homes
}

// queues are emptied by a goroutine each.
type queues struct {
	outbox  *queue[outgoing]
	events  *queue[func()] // calls of watchers
	notices *queue[[]byte]
}

// running has the goroutines of a node, and the means to end them.
type running struct {
	start     time.Time
	stop      func() // ends the subscription to the bus
	closed    chan struct{}
	wait      sync.WaitGroup
	wakeClock chan struct{} // wakes run: a peer has no name
}

// tables are a node's peers and connections. They are guarded by Node.mu.
type tables struct {
	peers   map[string]*peer
	conns   map[connID]*conn
	scratch []*conn // of checkConns
}

// callbacks are the functions that the node's user has registered. They are guarded by Node.mu.
type callbacks struct {
	watches []func(string)
	wakes   []func()
	notice  func([]byte)
}

// outgoing is a message for the outbox.
type outgoing struct {
	to string // "": all
	m  *packet
}

// leastMessage is the least [Bus.MaxMessage] that a node accepts, in bytes.
const leastMessage = 4 << 10

// Join makes the process a node on the bus. The caller closes the bus, after the node.
func Join(bus Bus, o Options) (*Node, error) {
	n := &Node{
		bus: bus, o: o.withDefaults(), name: bus.Node(),
		queues:  queues{newQueue[outgoing](1 << 16), newQueue[func()](1 << 16), newQueue[[]byte](1 << 12)},
		running: running{start: time.Now(), closed: make(chan struct{}), wakeClock: make(chan struct{}, 1)},
		tables:  tables{peers: make(map[string]*peer), conns: make(map[connID]*conn)},
	}
	n.log = n.o.Logger
	n.chunk = min(64<<10, bus.MaxMessage()-headRoom)
	if len(n.name) > 255 || n.chunk < leastMessage-headRoom {
		return nil, fmt.Errorf("joining the cluster: a name of %d bytes and messages of %d will not do", len(n.name), bus.MaxMessage())
	}
	n.listen = &listener{node: n, queue: make(chan *conn, backlog), closed: make(chan struct{})}
	stop, err := bus.Receive((*receiver)(n))
	if err != nil {
		return nil, fmt.Errorf("joining the cluster: %w", err)
	}
	n.stop = stop
	n.wait.Go(func() { n.outbox.work(n.sendQueued) })
	n.wait.Go(func() { n.events.work(n.callWatchers) })
	n.wait.Go(func() { n.notices.work(n.passNotice) })
	n.wait.Go(n.run)
	return n, nil
}

// Name is this node's name on the bus.
func (n *Node) Name() string { return n.name }

// now returns the time since the node began.
func (n *Node) now() time.Duration { return time.Since(n.start) }

// sendQueued sends a message of the outbox.
func (n *Node) sendQueued(p outgoing) {
	now := int64(n.now()) | 1
	n.health.sending.Store(now)
	defer n.health.sending.Store(0)
	if p.to != "" {
		_ = n.sendTo(p.to, p.m) // an error is the same as a loss
		return
	}
	err := n.bus.Cast(p.m.b)
	packets.Put(p.m)
	if n.health.failing.Swap(err != nil) != (err != nil) && err != nil {
		n.log.Debug("cluster: the bus takes no messages", "error", err) // clock.isAway notices it
	}
}

// enqueue puts a message into the outbox, because handlers of messages must not wait for the bus.
// If the outbox is full the message is lost, as a bus may lose it.
func (n *Node) enqueue(to string, m *packet) {
	if !n.outbox.put(outgoing{to, m}) {
		packets.Put(m)
	}
}

// send sends a message to a peer now.
func (n *Node) send(p *peer, m *packet) error { return n.sendTo(p.name, m) }

func (n *Node) sendTo(name string, m *packet) error {
	err := n.bus.Send(name, m.b)
	packets.Put(m)
	if errors.Is(err, ErrNoNode) {
		n.noName(name)
	}
	return err
}

// conn finds a connection with a peer.
func (n *Node) conn(p *peer, id connID) *conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.conns[id]; c != nil && c.peer == p {
		return c
	}
	return nil
}

// remove forgets a connection, and reports whether the node knew it.
func (n *Node) remove(c *conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns[c.id] != c {
		return false
	}
	n.unlist(c)
	return true
}

// list adds a connection. n.mu is held.
func (n *Node) list(c *conn) {
	n.conns[c.id] = c
	c.peer.conns++
}

// unlist removes a listed connection. n.mu is held.
func (n *Node) unlist(c *conn) {
	delete(n.conns, c.id)
	c.peer.conns--
}

// drop ends a connection with an error. reset: the other end is told.
func (n *Node) drop(c *conn, why error, reset bool) {
	there := n.remove(c)
	c.fail(why)
	if there && reset {
		n.enqueue(c.peer.name, n.compose(kindReset).conn(c.id))
	}
}

// Notify sends a small message to a node. It arrives once or not at all. The error is ErrNoNode if
// this node knows already that no node has the name.
func (n *Node) Notify(node string, data []byte) error {
	if len(data) > n.chunk {
		return fmt.Errorf("notifying node %s: a message of %d bytes is too large", node, len(data))
	}
	p := n.use(node)
	defer n.release(p)
	if p.lost() {
		return fmt.Errorf("notifying node %s: %w", node, ErrNoNode)
	}
	if err := n.send(p, n.compose(kindNotice).bytes(data...)); err != nil {
		return fmt.Errorf("notifying node %s: %w", node, err)
	}
	return nil
}

// Notices registers f, which a goroutine of the Node calls with each message that another node has
// sent by Notify, one at a time. f may keep the data. It replaces the f of an earlier call.
// Messages that come before the first call are lost.
func (n *Node) Notices(f func(data []byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notice = f
}

func (n *Node) passNotice(data []byte) {
	n.mu.Lock()
	f := n.notice
	n.mu.Unlock()
	if f != nil {
		f(data)
	}
}

// callWatchers calls f, which calls the watchers, unless the node is closed.
func (n *Node) callWatchers(f func()) {
	select {
	case <-n.closed:
	default:
		f()
	}
}

// Drain tells the other nodes to send no new sessions here. Connections go on.
func (n *Node) Drain() {
	n.mu.Lock()
	n.drained = true
	n.mu.Unlock()
	n.beat(0)
}

// Close ends all connections, tells the other nodes that this one has left, and waits for its
// goroutines. The other ends read the data that was written before: that may take a second.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closing {
		n.mu.Unlock()
		return net.ErrClosed
	}
	n.closing = true
	all := n.allConns()
	n.mu.Unlock()
	n.listen.Close()
	for _, c := range all {
		c.Close()
	}
	n.linger()
	n.enqueue("", n.compose(kindBye))
	n.outbox.close()
	close(n.closed)
	n.events.close()
	n.notices.close()
	n.wait.Wait()
	n.stop()
	n.mu.Lock()
	all = n.allConns()
	n.mu.Unlock()
	for _, c := range all {
		n.drop(c, net.ErrClosed, false)
	}
	return nil
}

// allConns lists the connections. n.mu is held.
func (n *Node) allConns() []*conn {
	return slices.Collect(maps.Values(n.conns))
}

// linger waits until the other ends have all messages, for a second at most.
func (n *Node) linger() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		n.mu.Lock()
		left := len(n.conns)
		n.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		}
	}
}

// health says whether the bus carries this node's messages.
type health struct {
	sending  atomic.Int64 // since when the outbox hands a message to the bus; 0: it has none
	failing  atomic.Bool  // the last cast failed
	returned atomic.Int64 // when the bus was last found to be back; 0: it was never away
	echo     atomic.Int64 // when a message of this node last came back to it; 0: never; a bus need not return them
	stalled  atomic.Int64 // when a message last came back after a pause; 0: there was no pause
}

// heard notes that a message of this node has come back to it. After a pause the bus may have lost
// the messages that peers sent meanwhile.
func (h *health) heard(now, pause time.Duration) {
	if was := h.echo.Swap(int64(now) | 1); was != 0 && now-time.Duration(was) > pause {
		h.stalled.Store(int64(now))
	}
}

// stalledSince reports whether the bus has paused since a time.
func (h *health) stalledSince(at time.Duration) bool {
	stalled := time.Duration(h.stalled.Load())
	return stalled != 0 && at < stalled
}

// busWorks reports whether the bus has carried messages since a time, as far as is known.
func (n *Node) busWorks(now, since time.Duration) bool {
	sending, echo := time.Duration(n.health.sending.Load()), time.Duration(n.health.echo.Load())
	return !n.health.failing.Load() && (sending == 0 || now-sending < n.o.jump()) && (echo == 0 || echo >= since)
}

package placement

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/cluster"
	"holdfast/internal/limit"
	"holdfast/internal/reading"
	"holdfast/internal/session"
	"holdfast/internal/whereabouts"
	"holdfast/jsonrpc"
)

// A Node is this process as one of the nodes that share a store.
type Node = cluster.Node

// A Host is the server of this node. It serves the exchanges that other nodes forward.
type Host interface {
	// Receive serves a request that another node has forwarded, with that node's visit.
	Receive(w http.ResponseWriter, r *http.Request, v *Visit)
	// Reject answers a request of another node with an HTTP status and an error.
	Reject(w http.ResponseWriter, status int, e *jsonrpc.Error)
	// Finish writes the body of an answer to a client to its end, in bounded time.
	Finish(w http.ResponseWriter, body []byte) error
	// Client reports whether this node has a connection from an address, and whether its client has left.
	Client(address string) (open, left bool)
}

// Options of a node that places exchanges. Limits and Page may be nil.
type Options struct {
	Node     *Node
	Sessions *session.Manager
	Host     Host
	Limits   *limit.Limiter // their counts are sent to other nodes
	Page     http.Handler   // answers requests from the live pages of other nodes
	Door     bool           // this node owns no sessions
	Draining <-chan struct{}
	Leaving  <-chan struct{} // closed when this node takes no more requests, not even to forward them
	// ForwardHeader reports whether a header that is not the protocol's goes to another node.
	ForwardHeader func(name string) bool
	WriteTimeout  time.Duration // for a write to a client
	Logger        *slog.Logger
}

// Nodes has this node's connections to other nodes, serves their requests and notices, and
// sweeps the sessions of nodes that are lost. Its methods may be called concurrently.
type Nodes struct {
	opts      Options
	node      *Node
	sessions  *session.Manager
	transport *http.Transport
	direct    *nodeClient // for small requests
	server    *http.Server

	since time.Time     // when this node began
	quit  chan struct{} // closed at the end
	work  sync.WaitGroup
	lost  chan struct{} // signalled when a node is lost

	locations locations
	leavers   leavers
	owed      owed
	far       farClients
	departed  departed

	mu      sync.Mutex
	departs map[*departure]struct{} // of the clients with exchanges that are being placed
	bridges map[*bridge]struct{}
}

// New returns the Nodes of opts.Node, which serve other nodes and look after their sessions
// after [Nodes.Start] and until [Nodes.Close]. Both must be called.
func New(opts Options) *Nodes {
	node := opts.Node
	n := &Nodes{
		opts:     opts,
		node:     node,
		sessions: opts.Sessions,
		since:    time.Now(),
		quit:     make(chan struct{}),
		lost:     make(chan struct{}, 1),
		departs:  make(map[*departure]struct{}),
		bridges:  make(map[*bridge]struct{}),
	}
	n.transport = &http.Transport{
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
	n.direct = &nodeClient{transport: n.transport}
	n.server = &http.Server{
		Handler:           http.HandlerFunc(n.receive),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    2 << 20, // the client's header and a visit
		ErrorLog:          nil,
	}
	n.sessions.Flights().On(n)
	return n
}

// Start starts the server for other nodes, the sweep and the sharing of limits. They run until [Nodes.Close].
func (n *Nodes) Start() {
	n.sessions.Finder.OnHomes(func() whereabouts.Homes {
		names, changes, settled := n.node.Homes()
		return whereabouts.Homes{Nodes: names, Changes: changes, Settled: settled, Heard: n.heard}
	})
	n.work.Go(func() {
		err := n.server.Serve(n.node.Listener())
		if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			n.opts.Logger.Error("other nodes are not served any more", "error", err)
		}
	})
	if !n.opts.Door {
		n.work.Go(n.sweep)
	}
	if n.opts.Limits != nil {
		n.opts.Limits.Share()
		n.work.Go(n.tellLimits)
	}
	n.node.Watch(func(gone string) {
		n.locations.forgetNode(gone)
		n.direct.forget(gone)
		n.sessions.Flights().NodeLost(gone)
		reading.Wake(n.lost)
	})
	n.node.OnWake(func() {
		n.locations.forgetAll()
		n.Verify()
	})
	n.node.Notices(n.noticed)
}

// heard returns the names of the other nodes, among them nodes that were lost in the last hour.
func (n *Nodes) heard() (names []string) {
	for _, x := range n.node.Members() {
		names = append(names, x.Name)
	}
	return names
}

// Transport returns the transport for requests to other nodes: the host of a URL is a node's name.
func (n *Nodes) Transport() *http.Transport { return n.transport }

// Alone reports whether this node knows of no other node.
func (n *Nodes) Alone() bool { return len(n.node.Peers()) == 0 }

// Verify checks whether this node still owns its sessions. It is called after a time in which
// other nodes may have taken this one for lost, as when the engine was away.
func (n *Nodes) Verify() {
	n.Go(func() {
		ctx, stop := n.until(sweepEvery)
		defer stop()
		n.sessions.Verify(ctx)
	})
}

// Go calls work on a goroutine of its own, for which [Nodes.Close] waits. After Close, Go
// returns false and does not call work.
func (n *Nodes) Go(work func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if isClosed(n.quit) {
		return false
	}
	n.work.Go(work)
	return true
}

// until returns a context that ends at Close, or after d.
func (n *Nodes) until(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeout(context.Background(), d)
	over := make(chan struct{})
	go func() {
		select {
		case <-n.quit:
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

// enter registers the client of a placement, to be disconnected when this node is drained.
// leave removes the client.
func (n *Nodes) enter(d *departure) (leave func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.departs[d] = struct{}{}
	if isClosed(n.quit) {
		d.begin()
	}
	return func() { n.exit(d) }
}

// exit removes a client that enter registered.
func (n *Nodes) exit(d *departure) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.departs, d)
}

// enterBridge is enter for a WebSocket that is forwarded to another node.
func (n *Nodes) enterBridge(b *bridge) (leave func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bridges[b] = struct{}{}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.bridges, b)
	}
}

// Close disconnects the clients of placements and bridges, ends the work of [Nodes.Start] and [Nodes.Go], and
// waits for its goroutines.
func (n *Nodes) Close() {
	n.mu.Lock()
	if isClosed(n.quit) {
		n.mu.Unlock()
		return
	}
	close(n.quit)
	for d := range n.departs {
		d.begin()
	}
	bridges := slices.Collect(maps.Keys(n.bridges))
	n.mu.Unlock()
	for _, b := range bridges { // no http.Server knows their connections any more
		b.leave(websocket.StatusGoingAway, "going away; retry: 1000")
	}
	n.owed.close()
	_ = n.server.Close()
	n.transport.CloseIdleConnections()
	n.direct.close()
	n.work.Wait()
}

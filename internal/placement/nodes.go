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

// A Node is this process among those that share a store.
type Node = cluster.Node

// A Host is the server of this node, which serves what other nodes send on.
type Host interface {
	// Receive serves a request of a client of another node, with what that node has told of it.
	Receive(w http.ResponseWriter, r *http.Request, v *Visit)
	// Reject answers a request of another node with an HTTP status and an error.
	Reject(w http.ResponseWriter, status int, e *jsonrpc.Error)
	// Finish writes the body of an answer to a client to its end, in bounded time.
	Finish(w http.ResponseWriter, body []byte) error
	// Client reports whether the connection of a client at an address is open here, and whether that has left.
	Client(address string) (open, left bool)
}

// Options say how a node places exchanges. Limits and Page may be nil.
type Options struct {
	Node     *Node
	Sessions *session.Manager
	Host     Host
	Limits   *limit.Limiter // what they count is told to other nodes
	Page     http.Handler   // answers what the live pages of other nodes ask
	Door     bool           // this node owns no sessions
	Draining <-chan struct{}
	Leaving  <-chan struct{} // closed when this node takes no requests any more, not even to forward them
	// ForwardHeader reports whether a header goes to another node that is not the protocol's.
	ForwardHeader func(name string) bool
	WriteTimeout  time.Duration // for a write to a client
	Logger        *slog.Logger
}

// Nodes are the other nodes, as this one has to do with them: connections to them, requests
// from them, notices, and the sweep of the sessions of nodes that are gone. Its methods may be
// called concurrently.
type Nodes struct {
	opts      Options
	node      *Node
	sessions  *session.Manager
	transport *http.Transport
	direct    *nodeClient // for what is small
	server    *http.Server

	since time.Time     // when it began
	quit  chan struct{} // closed at the end
	work  sync.WaitGroup
	lost  chan struct{} // signalled when a node is gone

	locations locations
	leavers   leavers
	owed      owed
	far       farClients
	departed  departed

	mu      sync.Mutex
	departs map[*departure]struct{} // of the clients whose exchanges are placed
	bridges map[*bridge]struct{}
}

// New prepares to serve other nodes, and to look after their sessions. What it returns must be
// started, and closed.
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
		MaxHeaderBytes:    2 << 20, // a client's, and a visit
		ErrorLog:          nil,
	}
	n.sessions.Flights().On(n)
	return n
}

// Start starts what runs until [Nodes.Close].
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

// heard returns the names of the other nodes that this one has heard of, with those that were lost in the last hour.
func (n *Nodes) heard() (names []string) {
	for _, x := range n.node.Members() {
		names = append(names, x.Name)
	}
	return names
}

// Transport is how requests are sent to other nodes, whose names stand in the place of the host.
func (n *Nodes) Transport() *http.Transport { return n.transport }

// Alone reports whether no other node is there.
func (n *Nodes) Alone() bool { return len(n.node.Peers()) == 0 }

// Verify checks whether this node still owns its sessions. It is called after a time in which
// other nodes may have taken it for gone, as when the engine was away.
func (n *Nodes) Verify() {
	n.Go(func() {
		ctx, stop := n.until(sweepEvery)
		defer stop()
		n.sessions.Verify(ctx)
	})
}

// Go calls work on a goroutine of its own, for which [Nodes.Close] waits. It is false once that
// was called.
func (n *Nodes) Go(work func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if isClosed(n.quit) {
		return false
	}
	n.work.Go(work)
	return true
}

// until returns a context that ends with the peers, or after a time.
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

// enter registers the client of a placement, which is disconnected when this node is drained.
// The function that it returns removes it.
func (n *Nodes) enter(d *departure) (leave func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.departs[d] = struct{}{}
	if isClosed(n.quit) {
		d.begin()
	}
	return func() { n.exit(d) }
}

// exit removes a client that enter has registered.
func (n *Nodes) exit(d *departure) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.departs, d)
}

// enterBridge is enter for a WebSocket that is joined with another node's.
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

// Close ends all that runs, and waits for it.
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
	for _, b := range bridges { // whose connections no http.Server knows any more
		b.leave(websocket.StatusGoingAway, "going away; retry: 1000")
	}
	n.owed.close()
	_ = n.server.Close()
	n.transport.CloseIdleConnections()
	n.direct.close()
	n.work.Wait()
}

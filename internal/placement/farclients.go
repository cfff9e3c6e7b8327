package placement

import (
	"context"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast/internal/again"
	"holdfast/internal/session"
)

// This file asks another node whether its client has left: a request equal to one of that client's may be the same request, made again,
// and the notice that the client has left may come later than the request.

// headerClient marks a request between nodes that asks for the client at an address, and replaces the visit. A node of an older build
// refuses the request, and its clients count as connected.
const headerClient = "Holdfast-Client"

// The states of a client, as its node answers.
const (
	clientUnknown = "unknown" // it is connected
	clientServed  = "served"  // it has left and had read all that was written
	clientSilent  = "silent"  // the node does not answer: it may be lost, and with it the client's connection
	clientLeaves  = "leaves"  // it has left, and may not have read all that it was sent
	clientLost    = "lost"    // it has left with bytes unread
)

// askWithin is how long a node may take to answer. A node that takes longer is not asked again for silentFor.
const (
	askWithin = time.Second
	silentFor = 5 * time.Second
)

// notedWithin is how long after a client has left the source of the last bytes written to it may still be noted.
const notedWithin = 100 * time.Millisecond

// clientsFor is how long a node remembers its own clients that have left, and clients of other nodes that send nothing.
const clientsFor = 2 * time.Second

// mostDeparted is how many clients that have left a node remembers. Above that, it forgets the oldest.
const mostDeparted = 1 << 12

// A farClient is a client that is connected to another node: a [session.Connection].
type farClient struct {
	n       *Nodes
	node    string
	address string

	mu     sync.Mutex
	lost   time.Time    // when it became known that the client has left with bytes unread; zero: it is not known
	served bool         // it has left and had read all: its node is not asked again
	source again.Source // of the bytes last written to the client; nil: it has sent a request since, or nothing was written
}

// farClients are clients of other nodes. The zero value is ready to use. Its methods may be called concurrently.
type farClients struct {
	mu     sync.Mutex
	young  map[farName]*farClient // heard of since the time since
	old    map[farName]*farClient // heard of in the period before that
	since  time.Time
	silent map[string]time.Time // nodes that did not answer, with the time until which they are not asked
}

type farName struct{ node, address string }

// isSilent reports whether a node is not asked now, as it did not answer lately.
func (f *farClients) isSilent(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	until, ok := f.silent[node]
	if ok && time.Now().After(until) {
		delete(f.silent, node)
		return false
	}
	return ok
}

// silence notes that a node did not answer.
func (f *farClients) silence(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.silent == nil {
		f.silent = make(map[string]time.Time)
	}
	maps.DeleteFunc(f.silent, func(_ string, until time.Time) bool { return time.Now().After(until) })
	f.silent[node] = time.Now().Add(silentFor)
}

// ClientOf returns the client of a request that another node has forwarded, and notes that the client is there.
func (n *Nodes) ClientOf(v *Visit) session.Connection {
	c := n.far.find(n, v)
	c.mu.Lock()
	c.source, c.lost, c.served = nil, time.Time{}, false
	c.mu.Unlock()
	return c
}

// find returns the client of a visit. Clients without a request are forgotten after clientsFor to twice that.
func (f *farClients) find(n *Nodes, v *Visit) *farClient {
	name := farName{v.Node, v.From}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); f.young == nil || now.Sub(f.since) > clientsFor {
		f.young, f.old, f.since = make(map[farName]*farClient), f.young, now
	}
	c := f.known(name)
	if c == nil {
		c = &farClient{n: n, node: v.Node, address: v.From}
	}
	f.young[name] = c
	return c
}

// known returns a client that was heard of lately, or nil. f.mu is held.
func (f *farClients) known(name farName) *farClient {
	if c := f.young[name]; c != nil {
		return c
	}
	return f.old[name]
}

// left notes that a client has left with bytes unread.
func (f *farClients) left(node, address string) {
	f.mu.Lock()
	c := f.known(farName{node, address})
	f.mu.Unlock()
	if c != nil {
		c.left()
	}
}

// left notes that the client has left with bytes unread, and tells the source of these.
func (c *farClient) left() {
	c.mu.Lock()
	if c.lost.IsZero() {
		c.lost = time.Now()
	}
	what := c.source
	c.mu.Unlock()
	if what != nil {
		what.Disconnected(c.address, time.Time{})
	}
}

// Wrote implements [session.Connection].
func (c *farClient) Wrote(what again.Source) {
	c.mu.Lock()
	c.source = what
	lost := !c.lost.IsZero()
	c.mu.Unlock()
	if lost {
		what.Disconnected(c.address, time.Time{})
	}
}

// IsFar implements [session.Connection].
func (c *farClient) IsFar() bool { return true }

// HasLeft implements [session.Connection]. It asks the client's node.
func (c *farClient) HasLeft() bool {
	says := c.n.askClient(c.node, c.address)
	return says == clientLeaves || says == clientLost
}

// Unsettled implements [session.Connection]. It asks the client's node.
func (c *farClient) Unsettled() bool {
	c.mu.Lock()
	served := c.served
	c.mu.Unlock()
	if served {
		return false
	}
	switch c.n.askClient(c.node, c.address) {
	case clientLeaves:
		return true
	case clientServed:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.served = c.source != nil // without a source, more may be about to be written, and remain unread
	case clientSilent: // if that node is lost, a call in flight is about to be stranded
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.source == nil
	case clientLost:
		c.n.leavers.note(c.address)
		c.left()
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.source == nil && time.Since(c.lost) < notedWithin
	}
	return false
}

// askClient asks a node for the state of the client at an address: clientSilent if the node does not answer.
func (n *Nodes) askClient(node, address string) string {
	ctx, stop := context.WithTimeout(context.Background(), askWithin)
	defer stop()
	if n.far.isSilent(node) {
		return clientSilent
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+node+"/", http.NoBody)
	if err != nil {
		return clientUnknown
	}
	req.Header.Set(headerClient, address)
	res, err := n.transport.RoundTrip(req)
	if err != nil {
		n.far.silence(node)
		return clientSilent
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, 64))
	switch {
	case err != nil:
		return clientSilent
	case res.StatusCode != http.StatusOK: // the node is of an older build
		return clientUnknown
	}
	return string(text)
}

// tellsOfClient answers a request that has headerClient, and reports whether r is one.
func (n *Nodes) tellsOfClient(w http.ResponseWriter, r *http.Request) bool {
	address := r.Header.Get(headerClient)
	if address == "" {
		return false
	}
	open, leaves := n.opts.Host.Client(address) // first: it may call departed.loses
	state := n.departed.of(address)
	switch {
	case state == clientLost, state == clientLeaves:
	case !open:
		state = clientServed
	case leaves && state != clientServed:
		state = clientLeaves
	default:
		state = clientUnknown
	}
	_, _ = io.Copy(w, strings.NewReader(state))
	return true
}

// departed are the clients that have lately left this node. The zero value is ready to use. Its methods may be called concurrently.
type departed struct {
	mu    sync.Mutex
	all   map[string]departedClient // by their addresses
	order []departedName            // the oldest first; all may lack some of them, or have later clients of their addresses
	last  uint64                    // the number of the last client
}

type departedClient struct {
	state  string
	at     time.Time
	number uint64 // in order
}

// A departedName is the name of a client that has left: clients of one address have different numbers.
type departedName struct {
	address string
	number  uint64
}

// leaves notes that a client has left, unless *written says that its whole answer was written. d.mu guards *written.
func (d *departed) leaves(address string, written *bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !*written {
		d.add(address, clientLeaves)
	}
}

// loses notes that a client has left with bytes unread.
func (d *departed) loses(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(address, clientLost)
}

// served sets *written: the whole answer was written to a client. left says that the client has read it and has left.
func (d *departed) served(address string, written *bool, left bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*written = true
	delete(d.all, address)
	if left {
		d.add(address, clientServed)
	}
}

// add sets a client's state, but keeps clientLost for clientsFor. d.mu is held.
func (d *departed) add(address, state string) {
	now := time.Now()
	c, known := d.all[address]
	if known && c.state == clientLost && now.Sub(c.at) <= clientsFor {
		return
	}
	if d.all == nil {
		d.all = make(map[string]departedClient)
	}
	if !known {
		if len(d.order) >= mostDeparted {
			if oldest := d.order[0]; d.all[oldest.address].number == oldest.number {
				delete(d.all, oldest.address)
			}
			d.order = d.order[1:]
		}
		d.last++
		c.number = d.last
		d.order = append(d.order, departedName{address, c.number})
	}
	d.all[address] = departedClient{state, now, c.number}
}

// returns notes that a client sends a request: it is not the client that has left from the same address. It clears *written.
func (d *departed) returns(address string, written *bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*written = false
	delete(d.all, address)
}

// of returns the state of the client that has left from an address, or clientUnknown.
func (d *departed) of(address string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.all[address]; ok && time.Since(c.at) <= clientsFor {
		return c.state
	}
	return clientUnknown
}

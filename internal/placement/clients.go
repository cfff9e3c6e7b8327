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

// What follows asks another node whether a client has left that is connected to it: a request that equals one of that client may be the
// same one, made again. A notice of the client's end may come later than the request.

// headerClient says that a request between nodes asks for the client at an address, in the place of a visit. A node of an older build
// refuses it, and its clients are taken to be there.
const headerClient = "Holdfast-Client"

// What a node says of a client.
const (
	clientUnknown = "unknown" // it is connected
	clientServed  = "served"  // it has left with all that was written
	clientSilent  = "silent"  // the node does not say: it, and so the client's connection, may be lost
	clientLeaves  = "leaves"  // it has left, and what it was sent may turn out to be unread
	clientLost    = "lost"    // it has left with some of that unread
)

// askWithin is how long a node may take to answer. One that does not is not asked again for silentFor.
const (
	askWithin = time.Second
	silentFor = 5 * time.Second
)

// notedWithin is how long it may take after a client has left until it is noted what was written to it last.
const notedWithin = 100 * time.Millisecond

// clientsFor is how long a node remembers clients that have left it, and those of other nodes that send nothing.
const clientsFor = 2 * time.Second

// mostDeparted bounds how many clients a node remembers that have left it: above that, it forgets the oldest.
const mostDeparted = 1 << 12

// A farClient is a client that is connected to another node: a [session.Connection].
type farClient struct {
	n       *Nodes
	node    string
	address string

	mu     sync.Mutex
	lost   time.Time    // when it was known to have left with something unread; zero: it has not
	served bool         // it has left, and has read all: it is not asked for again
	source again.Source // of what was last written to it; nil: nothing was, or it has that
}

// farClients are clients of other nodes. The zero value is ready to use. Its methods may be called concurrently.
type farClients struct {
	mu     sync.Mutex
	young  map[farName]*farClient // those that were heard of since a time
	old    map[farName]*farClient // those that were heard of before, and as long again
	since  time.Time
	silent map[string]time.Time // nodes that did not answer, and until when they are not asked
}

type farName struct{ node, address string }

// isSilent reports whether a node is not asked.
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

// ClientOf returns the client of which another node tells, and who has sent one more request.
func (n *Nodes) ClientOf(v *Visit) session.Connection {
	c := n.far.find(n, v)
	c.mu.Lock()
	c.source, c.lost, c.served = nil, time.Time{}, false
	c.mu.Unlock()
	return c
}

// find returns a client. Those that are not asked for are forgotten after some time.
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

// left notes that a client has left with something unread.
func (f *farClients) left(node, address string) {
	f.mu.Lock()
	c := f.known(farName{node, address})
	f.mu.Unlock()
	if c != nil {
		c.left()
	}
}

// left is called when the client has left with something unread.
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
		c.served = c.source != nil // else it may be about to be sent more, and to turn out to have left
	case clientSilent: // a call in flight is about to be stranded, if that node is lost
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

// askClient asks a node for the client at an address. It is silent if that does not answer.
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
	case res.StatusCode != http.StatusOK: // it is of an older build
		return clientUnknown
	}
	return string(text)
}

// tellsOfClient answers such a request, and reports whether it was one.
func (n *Nodes) tellsOfClient(w http.ResponseWriter, r *http.Request) bool {
	address := r.Header.Get(headerClient)
	if address == "" {
		return false
	}
	open, leaves := n.opts.Host.Client(address) // first: it may say of what was lost
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

// departed are the clients of this node that have left it lately. The zero value is ready to use. Its methods may be called concurrently.
type departed struct {
	mu    sync.Mutex
	all   map[string]departedClient // by their addresses
	order []string                  // of their addresses, the oldest first; some may be forgotten
}

type departedClient struct {
	state string
	at    time.Time
}

// leaves notes that a client has left, unless all was written to it. That is said by written, which is guarded by the lock here.
func (d *departed) leaves(address string, written *bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !*written {
		d.add(address, clientLeaves)
	}
}

// loses notes that a client has left with something unread.
func (d *departed) loses(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(address, clientLost)
}

// served notes that all was written to a client, and whether it has left and has read that. It sets written.
func (d *departed) served(address string, written *bool, left bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*written = true
	delete(d.all, address)
	if left {
		d.add(address, clientServed)
	}
}

// add adds a client. What was lost is lost. d.mu is held.
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
			delete(d.all, d.order[0])
			d.order = d.order[1:]
		}
		d.order = append(d.order, address)
	}
	d.all[address] = departedClient{state, now}
}

// returns notes that a client sends a request: it is another one than that which has left from the same address.
func (d *departed) returns(address string, written *bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*written = false
	delete(d.all, address)
}

// of returns what is known of a client.
func (d *departed) of(address string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.all[address]; ok && time.Since(c.at) <= clientsFor {
		return c.state
	}
	return clientUnknown
}

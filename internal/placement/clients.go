package placement

import (
	"context"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast/internal/session"
)

// What follows asks another node whether a client has left that is connected to it: a request that equals one of that client may be the
// same one, made again. A notice of the client's end may come later than the request.

// headerClient says that a request between nodes asks for the client at an address, in the place of a visit. A node of an older build
// refuses it, and its clients are taken to be there.
const headerClient = "Holdfast-Client"

// What a node says of a client.
const (
	clientUnknown = "unknown" // it is connected, or has left with all that was written
	clientLeaves  = "leaves"  // it has left, and what it was sent may turn out to be unread
	clientLost    = "lost"    // it has left with some of that unread
)

// askWithin is how long a node may take to answer. One that does not is not asked again for silentFor.
const (
	askWithin = time.Second
	silentFor = 5 * time.Second
)

// clientsFor is how long a node remembers clients that have left it, and those of other nodes; mostClients bounds how many: above that, those
// are forgotten that are older.
const (
	clientsFor  = 2 * time.Second
	mostClients = 1 << 10
)

// A farClient is a client that is connected to another node: a [session.Connection].
type farClient struct {
	n       *Nodes
	node    string
	address string
	used    time.Time // guarded by farClients.mu

	mu     sync.Mutex
	lost   bool           // it has left, with something unread
	source session.Source // of what was last written to it; nil: nothing was, or it has that
}

// farClients are clients of other nodes. The zero value is ready to use. Its methods may be called concurrently.
type farClients struct {
	mu     sync.Mutex
	all    map[string]*farClient // by their nodes and addresses
	silent map[string]time.Time  // nodes that did not answer, and until when they are not asked
}

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
	c := n.far.find(n, v, time.Now())
	c.mu.Lock()
	c.source, c.lost = nil, false
	c.mu.Unlock()
	return c
}

// Wrote notes that what a source has sent was written to such a client. The source is told if the client turns out to have left with some of it unread.
func (n *Nodes) Wrote(v *Visit, what session.Source) {
	n.far.find(n, v, time.Now()).Wrote(what)
}

// find returns a client.
func (f *farClients) find(n *Nodes, v *Visit, now time.Time) *farClient {
	key := v.Node + " " + v.From
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.all[key]
	if c == nil {
		if f.all == nil {
			f.all = make(map[string]*farClient)
		}
		if len(f.all) >= mostClients {
			maps.DeleteFunc(f.all, func(_ string, c *farClient) bool { return now.Sub(c.used) > clientsFor })
		}
		c = &farClient{n: n, node: v.Node, address: v.From}
		f.all[key] = c
	}
	c.used = now
	return c
}

// left notes that a client has left with something unread.
func (f *farClients) left(node, address string) {
	f.mu.Lock()
	c := f.all[node+" "+address]
	f.mu.Unlock()
	if c != nil {
		c.left()
	}
}

// left is called when the client has left with something unread.
func (c *farClient) left() {
	c.mu.Lock()
	c.lost = true
	what := c.source
	c.mu.Unlock()
	if what != nil {
		what.Disconnected(c.address, time.Time{})
	}
}

// Wrote implements [session.Connection].
func (c *farClient) Wrote(what session.Source) {
	c.mu.Lock()
	c.source = what
	lost := c.lost
	c.mu.Unlock()
	if lost {
		what.Disconnected(c.address, time.Time{})
	}
}

// IsFar implements [session.Connection].
func (c *farClient) IsFar() bool { return true }

// HasLeft implements [session.Connection]. It asks the client's node.
func (c *farClient) HasLeft() bool { return c.n.askClient(c.node, c.address) != clientUnknown }

// Unsettled implements [session.Connection]. It asks the client's node.
func (c *farClient) Unsettled() bool {
	switch c.n.askClient(c.node, c.address) {
	case clientLeaves:
		return true
	case clientLost:
		c.n.leavers.note(c.address)
		c.left()
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.source == nil // it is not noted yet what was written last
	}
	return false
}

// askClient asks a node for the client at an address. A node that does not answer knows of none.
func (n *Nodes) askClient(node, address string) string {
	ctx, stop := context.WithTimeout(context.Background(), askWithin)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+node+"/", http.NoBody)
	if err != nil || n.far.isSilent(node) {
		return clientUnknown
	}
	req.Header.Set(headerClient, address)
	res, err := n.transport.RoundTrip(req)
	if err != nil {
		n.far.silence(node)
		return clientUnknown
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, 64))
	if err != nil || res.StatusCode != http.StatusOK {
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
	leaves := n.opts.Host.HasLeft(address) // first: it may say of what was lost
	state := n.departed.of(address)
	if state == clientUnknown && leaves {
		state = clientLeaves
	}
	_, _ = io.Copy(w, strings.NewReader(state))
	return true
}

// departed are the clients of this node that have left it lately. The zero value is ready to use. Its methods may be called concurrently.
type departed struct {
	mu  sync.Mutex
	all map[string]departedClient // by their addresses
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

// add adds a client. What was lost is lost. d.mu is held.
func (d *departed) add(address, state string) {
	now := time.Now()
	if c, ok := d.all[address]; ok && c.state == clientLost && now.Sub(c.at) <= clientsFor {
		return
	}
	if d.all == nil {
		d.all = make(map[string]departedClient)
	}
	if len(d.all) >= mostClients {
		maps.DeleteFunc(d.all, func(_ string, c departedClient) bool { return now.Sub(c.at) > clientsFor })
	}
	d.all[address] = departedClient{state, now}
}

// forget forgets a client: it has all that was written, or is another one at the same address. It sets written.
func (d *departed) forget(address string, written *bool, is bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*written = is
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

// Package bustest is a bus in memory for tests, with the faults of a network: messages are lost,
// late and reordered, and nodes are cut off, stopped and killed.
package bustest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"holdfast/internal/cluster"
)

// Faults are the faults of messages between two nodes. Messages of a node to itself have none.
type Faults struct {
	Loss   float64       // the share of messages that are lost
	Delay  time.Duration // of each message
	Jitter time.Duration // the most that is added to the delay, at random, so that messages are reordered
	NoNode NoNode        // how a sender learns that no node has a name
}

// NoNode is how a sender learns that no node has a name.
type NoNode int

// The ways in which engines differ.
const (
	AtOnce NoNode = iota // Send fails
	Later                // Gone is called
	Never                // not at all
)

// A Net is the network of several buses. Its methods may be called concurrently.
type Net struct {
	mu     sync.Mutex
	faults Faults
	rand   *rand.Rand
	buses  map[string]*Bus
	hidden map[string]bool
	count  int
}

// New returns a net without faults and buses. Its faults are the same for the same seed, if
// messages are sent in the same order.
func New(seed uint64) *Net {
	return &Net{rand: rand.New(rand.NewPCG(seed, 0)), buses: make(map[string]*Bus), hidden: make(map[string]bool)}
}

// Set changes the faults of messages that are sent from now on.
func (n *Net) Set(f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = f
}

// Count returns how many messages were delivered or lost.
func (n *Net) Count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count
}

// Hide hides a node's name, or shows it again, as when the node changes from one server of an
// engine to another.
func (n *Net) Hide(name string, hidden bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hidden[name] = hidden
}

// Bus returns a new bus. Its name must be new. The caller closes it.
func (n *Net) Bus(name string) *Bus {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.buses[name] != nil {
		panic(fmt.Sprintf("bustest: %s is there", name))
	}
	b := &Bus{net: n, name: name, max: 1 << 20, delayed: make(map[*time.Timer]struct{})}
	b.cond.L = &b.mu
	n.buses[name] = b
	b.wait.Go(b.deliver)
	return b
}

// find returns the bus of a name, nil without one, and the faults of a message to it.
func (n *Net) find(from, to string) (b *Bus, lost bool, delay time.Duration, noNode NoNode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	f := n.faults
	if !n.hidden[to] {
		b = n.buses[to]
	}
	if from == to {
		return b, false, 0, f.NoNode
	}
	lost = f.Loss > 0 && n.rand.Float64() < f.Loss
	delay = f.Delay
	if f.Jitter > 0 {
		delay += time.Duration(n.rand.Int64N(int64(f.Jitter)))
	}
	return b, lost, delay, f.NoNode
}

func (n *Net) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.buses))
}

// errCut is the error of a bus that is cut off or closed.
var errCut = errors.New("bustest: the bus is cut")

// A Bus is the bus of one node.
type Bus struct {
	net  *Net
	name string
	max  int
	wait sync.WaitGroup

	mu       sync.Mutex
	cond     sync.Cond // signalled when a field below changes
	receiver cluster.Receiver
	queue    []item
	delayed  map[*time.Timer]struct{}
	cut      bool
	paused   bool
	closed   bool
}

// item is a message that has arrived, or the name of a node that does not exist.
type item struct {
	message []byte
	gone    string
}

var _ cluster.Bus = (*Bus)(nil)

// Node implements [cluster.Bus].
func (b *Bus) Node() string { return b.name }

// MaxMessage is 1 MiB, or as Limit has set it.
func (b *Bus) MaxMessage() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.max
}

// Limit sets MaxMessage.
func (b *Bus) Limit(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.max = bytes
}

// Cut cuts the node off, or joins it again: its sends fail, and no message arrives.
func (b *Bus) Cut(cut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut = cut
}

// Pause stops the node, or lets it go on. Meanwhile its sends wait, and its messages are
// delivered after the pause.
func (b *Bus) Pause(paused bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = paused
	b.cond.Broadcast()
}

// Close ends the bus as the end of its process would: other nodes are not informed, and no node
// has the name from now on. It may be called more than once.
func (b *Bus) Close() {
	b.net.mu.Lock()
	if b.net.buses[b.name] == b {
		delete(b.net.buses, b.name)
	}
	b.net.mu.Unlock()

	b.mu.Lock()
	b.closed = true
	b.queue = nil
	for t := range b.delayed {
		if t.Stop() {
			delete(b.delayed, t)
			b.wait.Done()
		}
	}
	b.cond.Broadcast()
	b.mu.Unlock()
	b.wait.Wait()
}

// Receive implements [cluster.Bus].
func (b *Bus) Receive(r cluster.Receiver) (func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.receiver != nil {
		return nil, errors.New("bustest: Receive was called before")
	}
	if b.closed {
		return nil, errCut
	}
	b.receiver = r
	b.cond.Broadcast()
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.receiver = nil
	}, nil
}

// Send implements [cluster.Bus].
func (b *Bus) Send(node string, message []byte) error {
	if err := b.checkSend(message); err != nil {
		return err
	}
	to, lost, delay, noNode := b.net.find(b.name, node)
	switch {
	case to == nil && noNode == AtOnce:
		return fmt.Errorf("bustest: %s: %w", node, cluster.ErrNoNode)
	case to == nil && noNode == Later:
		b.arrive(item{gone: node}, delay)
	case to != nil && !lost:
		to.arrive(item{message: bytes.Clone(message)}, delay)
	}
	return nil
}

// Cast implements [cluster.Bus].
func (b *Bus) Cast(message []byte) error {
	if err := b.checkSend(message); err != nil {
		return err
	}
	for _, name := range b.net.all() {
		if to, lost, delay, _ := b.net.find(b.name, name); to != nil && !lost {
			to.arrive(item{message: bytes.Clone(message)}, delay)
		}
	}
	return nil
}

// checkSend waits while the node is stopped, and returns an error if it cannot send.
func (b *Bus) checkSend(message []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.paused && !b.closed {
		b.cond.Wait()
	}
	switch {
	case b.cut, b.closed:
		return errCut
	case len(message) > b.max:
		return fmt.Errorf("bustest: a message of %d bytes, more than %d", len(message), b.max)
	}
	return nil
}

// arrive queues a message to the node, after a delay.
func (b *Bus) arrive(i item, delay time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.cut {
		return
	}
	if delay <= 0 {
		b.push(i)
		return
	}
	b.wait.Add(1)
	var t *time.Timer
	t = time.AfterFunc(delay, func() {
		defer b.wait.Done()
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.delayed, t)
		if !b.closed && !b.cut {
			b.push(i)
		}
	})
	b.delayed[t] = struct{}{}
}

func (b *Bus) push(i item) {
	b.queue = append(b.queue, i)
	if len(b.queue) == 1 {
		b.cond.Broadcast()
	}
}

// deliver passes messages to the receiver.
func (b *Bus) deliver() {
	var batch []item
	for {
		b.mu.Lock()
		for !b.closed && (b.paused || len(b.queue) == 0) {
			b.cond.Wait()
		}
		if b.closed {
			b.mu.Unlock()
			return
		}
		batch, b.queue = b.queue, batch[:0]
		r := b.receiver
		b.mu.Unlock()
		for _, i := range batch {
			switch {
			case r == nil:
			case i.gone != "":
				r.Gone(i.gone)
			default:
				r.Message(i.message)
			}
		}
		clear(batch)
	}
}

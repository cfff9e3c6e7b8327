// Package bustest is a bus in memory for tests of what runs over one, with the
// faults that a network has: messages are lost, late and overtaken, nodes are cut
// off, stopped and killed.
package bustest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"holdfast/internal/cluster"
)

// Faults are what befalls messages between two nodes from now on. None befalls what
// a node sends to itself.
type Faults struct {
	Loss   float64       // the share of messages that don't arrive
	Delay  time.Duration // what each takes
	Jitter time.Duration // what each takes beside, at random, so that they overtake each other
	Nobody Nobody        // how a sender hears that nobody has a name
}

// Nobody is how a sender hears that nobody has a name.
type Nobody int

// The ways in which engines differ.
const (
	AtOnce Nobody = iota // Send fails
	Later                // Gone is called
	Never                // silence
)

// A Net is what buses have in common. Its methods may be called concurrently.
type Net struct {
	mu     sync.Mutex
	faults Faults
	rand   *rand.Rand
	buses  map[string]*Bus
	hidden map[string]bool
	count  int
}

// New returns a net without faults and buses. Its faults are the same for the same
// seed, as far as the order of what is sent is.
func New(seed uint64) *Net {
	return &Net{rand: rand.New(rand.NewPCG(seed, 0)), buses: make(map[string]*Bus), hidden: make(map[string]bool)}
}

// Set changes the faults.
func (n *Net) Set(f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = f
}

// Count is how many messages were handed to nodes, or lost on the way.
func (n *Net) Count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count
}

// Hide lets nobody have a node's name for a while, as when the node changes from one
// server of an engine to another.
func (n *Net) Hide(name string, hidden bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hidden[name] = hidden
}

// Bus returns a new bus of a name that none had before. It must be closed.
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

// find returns the bus of a name, with the fate of a message to it.
func (n *Net) find(from, to string) (b *Bus, lost bool, delay time.Duration, nobody Nobody) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	f := n.faults
	if !n.hidden[to] {
		b = n.buses[to]
	}
	if from == to {
		return b, false, 0, f.Nobody
	}
	lost = f.Loss > 0 && n.rand.Float64() < f.Loss
	delay = f.Delay
	if f.Jitter > 0 {
		delay += time.Duration(n.rand.Int64N(int64(f.Jitter)))
	}
	return b, lost, delay, f.Nobody
}

func (n *Net) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for name := range n.buses {
		names = append(names, name)
	}
	return names
}

// errCut is what a bus says that is cut off, or closed.
var errCut = errors.New("bustest: the bus is cut")

// A Bus is one node's.
type Bus struct {
	net  *Net
	name string
	max  int
	wait sync.WaitGroup

	mu       sync.Mutex
	cond     sync.Cond // signals what the fields below say
	receiver cluster.Receiver
	queue    []item
	delayed  map[*time.Timer]struct{}
	cut      bool
	paused   bool
	closed   bool
}

// item is a message that has arrived, or the name of a node that there is not.
type item struct {
	message []byte
	gone    string
}

var _ cluster.Bus = (*Bus)(nil)

// Node is the bus's name.
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

// Cut cuts the node off, or joins it again: what it sends fails, and nothing comes.
func (b *Bus) Cut(cut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut = cut
}

// Pause stops the node as a debugger does, or lets it go on: what it sends waits,
// and what comes is told it after the pause.
func (b *Bus) Pause(paused bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = paused
	b.cond.Broadcast()
}

// Close ends the bus as the death of its process would: without a word, and nobody
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

// Receive has r told from now on.
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

// Send hands a message to a node.
func (b *Bus) Send(node string, message []byte) error {
	if err := b.may(message); err != nil {
		return err
	}
	to, lost, delay, nobody := b.net.find(b.name, node)
	switch {
	case to == nil && nobody == AtOnce:
		return fmt.Errorf("bustest: %s: %w", node, cluster.ErrNoNode)
	case to == nil && nobody == Later:
		b.arrive(item{gone: node}, delay)
	case to != nil && !lost:
		to.arrive(item{message: bytes.Clone(message)}, delay)
	}
	return nil
}

// Cast hands a message to all nodes, with this one.
func (b *Bus) Cast(message []byte) error {
	if err := b.may(message); err != nil {
		return err
	}
	for _, name := range b.net.all() {
		if to, lost, delay, _ := b.net.find(b.name, name); to != nil && !lost {
			to.arrive(item{message: bytes.Clone(message)}, delay)
		}
	}
	return nil
}

// may waits while the node is stopped, and says why it may not send.
func (b *Bus) may(message []byte) error {
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

// arrive queues what comes to the node, after a while.
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

// deliver tells the receiver what comes.
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

package redis

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/cluster"
	"holdfast/stream"
)

const (
	maxMessage = 512 << 10
	maxQueued  = 64 << 20 // bytes of messages that wait to be sent
	maxBatch   = 1 << 20  // bytes of messages that are sent at once
	farewell   = time.Second
)

// A bus is the cluster.Bus over publish and subscribe: a channel for each node, and
// one for all. In a Cluster the channels are sharded, as only then PUBLISH says
// how many received the message.
type bus struct {
	log  *Log
	base string // prefix of all channels
	node string

	mu        sync.Mutex
	queue     []packet
	queued    int // bytes
	closed    bool
	receiver  cluster.Receiver // nil before Receive, and after stop
	subs      []*subscription  // nil before Receive
	wake      chan struct{}    // has one if queue has packets, or closed is set
	sending   sync.WaitGroup   // the sender
	listening sync.WaitGroup   // the subscriptions
}

// A packet is a message to be sent.
type packet struct {
	channel string
	node    string // the receiver; "": all nodes
	data    []byte
}

func newBus(l *Log, base, node string) *bus {
	b := &bus{log: l, base: base, node: node, wake: make(chan struct{}, 1)}
	b.sending.Go(b.send)
	return b
}

// Node returns this process's name.
func (b *bus) Node() string { return b.node }

// MaxMessage is the size in bytes of the largest message.
func (*bus) MaxMessage() int { return maxMessage }

func (b *bus) channelOf(node string) string { return b.base + "node:{" + node + "}" }
func (b *bus) channelOfAll() string         { return b.base + "nodes" }

// Send queues a message to a node.
func (b *bus) Send(node string, message []byte) error {
	if node == "" {
		return cluster.ErrNoNode
	}
	return b.enqueue(packet{channel: b.channelOf(node), node: node}, message)
}

// Cast queues a message to all nodes.
func (b *bus) Cast(message []byte) error {
	return b.enqueue(packet{channel: b.channelOfAll()}, message)
}

func (b *bus) enqueue(p packet, message []byte) error {
	if len(message) > maxMessage {
		return fmt.Errorf("send: %w", stream.ErrTooLarge)
	}
	p.data = append([]byte(nil), message...)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return fmt.Errorf("send: %w: closed", stream.ErrUnavailable)
	case b.queued+len(p.data) > maxQueued:
		return fmt.Errorf("send: %w: too much waits to be sent", stream.ErrUnavailable)
	}
	b.queue = append(b.queue, p)
	b.queued += len(p.data)
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return nil
}

// send sends the queued packets, until the bus is closed and the queue is empty.
func (b *bus) send() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for range b.wake {
		runtime.Gosched() // other goroutines may add packets for the same round trip
		b.mu.Lock()
		all := b.queue
		b.queue, b.queued = nil, 0
		closed := b.closed
		b.mu.Unlock()
		if closed {
			time.AfterFunc(farewell, cancel)
		}
		for len(all) > 0 {
			n, size := 0, 0
			for n < len(all) && size < maxBatch {
				size += len(all[n].data)
				n++
			}
			b.publish(ctx, all[:n])
			all = all[n:]
		}
		if closed {
			return
		}
	}
}

// publish sends messages, those to one server in one round trip. A message that fails is lost.
func (b *bus) publish(ctx context.Context, packets []packet) {
	ctx, cancel := context.WithTimeout(ctx, b.log.attempt)
	defer cancel()
	if b.log.cluster == nil {
		b.publishTo(ctx, b.log.client.(*redis.Client), packets)
		return
	}
	byMaster := make(map[*redis.Client][]packet)
	for _, p := range packets {
		master, err := b.log.master(ctx, p.channel)
		if err != nil {
			continue
		}
		byMaster[master] = append(byMaster[master], p)
	}
	for master, packets := range byMaster {
		b.publishTo(ctx, master, packets)
	}
}

func (b *bus) publishTo(ctx context.Context, server *redis.Client, packets []packet) {
	pipe := server.Pipeline()
	counts := make([]*redis.IntCmd, len(packets))
	for i, p := range packets {
		if b.log.cluster == nil {
			counts[i] = pipe.Publish(ctx, p.channel, p.data)
		} else {
			counts[i] = pipe.SPublish(ctx, p.channel, p.data)
		}
	}
	_, err := pipe.Exec(ctx)
	if hasMoved(err) {
		b.log.cluster.ReloadState(ctx)
	}
	gone := make(map[string]bool)
	for i, p := range packets {
		if p.node != "" && counts[i].Err() == nil && counts[i].Val() == 0 {
			gone[p.node] = true
		}
	}
	b.mu.Lock()
	r, subs := b.receiver, b.subs
	b.mu.Unlock()
	if r == nil || len(gone) == 0 {
		return
	}
	for _, s := range subs {
		if !s.settled() {
			return
		}
	}
	for node := range gone {
		r.Gone(node)
	}
}

// Receive passes messages to r, and returns once the subscriptions are made.
func (b *bus) Receive(r cluster.Receiver) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	subs := []*subscription{newSubscription(b, r, b.channelOf(b.node), b.channelOfAll())}
	if b.log.cluster != nil { // the two channels are in different slots
		subs = []*subscription{newSubscription(b, r, b.channelOf(b.node)), newSubscription(b, r, b.channelOfAll())}
	}
	b.mu.Lock()
	closed := b.closed || b.subs != nil
	if !closed {
		b.receiver, b.subs = r, subs
		for _, s := range subs {
			b.listening.Go(func() { s.listen(ctx) })
		}
	}
	b.mu.Unlock()
	if closed {
		cancel()
		return nil, errors.New("receive: closed, or called before")
	}
	stop = func() {
		cancel()
		for _, s := range subs {
			s.close()
		}
		b.listening.Wait()
		b.mu.Lock()
		b.receiver = nil
		b.mu.Unlock()
	}
	patience := time.After(2 * b.log.attempt)
	for _, s := range subs {
		select {
		case <-s.ready:
		case <-patience:
			stop()
			b.mu.Lock()
			b.subs = nil // Receive may be tried again
			b.mu.Unlock()
			return nil, fmt.Errorf("subscribe: %w", stream.ErrUnavailable)
		}
	}
	return stop, nil
}

// hangUp sends the queued packets and ends the sender, and the subscriptions if they
// were not stopped.
func (b *bus) hangUp() {
	b.mu.Lock()
	b.closed = true
	subs := b.subs
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	b.sending.Wait()
	for _, s := range subs {
		s.close()
	}
	b.listening.Wait()
}

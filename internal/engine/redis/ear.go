package redis

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/cluster"
)

const (
	// silence is how long nothing may be heard on a subscription before it is asked
	// for a sign of life, and how long that may take.
	silence = 2 * time.Second
	// settling is how long after a subscription was lost and made again nobody is
	// said to be gone: others may have lost theirs too.
	settling = 3 * time.Second
	// pause is what lies between two attempts to subscribe.
	pause = 100 * time.Millisecond
)

// An ear is a subscription to channels on one connection, made again when that is
// lost.
type ear struct {
	bus      *bus
	receiver cluster.Receiver
	channels []string
	ready    chan struct{} // closed at the first subscription

	mu     sync.Mutex
	sub    *redis.PubSub
	closed bool
	up     bool      // the subscription is there
	since  time.Time // when it was made again; zero: never lost
}

func newEar(b *bus, r cluster.Receiver, channels ...string) *ear {
	return &ear{bus: b, receiver: r, channels: channels, ready: make(chan struct{})}
}

// settled says whether the subscription is there, and has not just been made
// again.
func (e *ear) settled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.up && time.Since(e.since) > settling
}

// close ends listen.
func (e *ear) close() {
	e.mu.Lock()
	sub := e.sub
	e.closed = true
	e.mu.Unlock()
	if sub != nil {
		sub.Close()
	}
}

// listen subscribes, again and again, until the ear is closed.
func (e *ear) listen(ctx context.Context) {
	for {
		sub := e.subscribe(ctx)
		if sub == nil {
			return
		}
		e.hear(ctx, sub)
		sub.Close()
		e.lost()
		if c := e.bus.log.cluster; c != nil {
			c.ReloadState(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// subscribe asks for the channels, or returns nil if the ear is closed.
func (e *ear) subscribe(ctx context.Context) *redis.PubSub {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || ctx.Err() != nil {
		return nil
	}
	// Without channels there is no connection yet, and nothing to wait for.
	e.sub = e.bus.log.client.Subscribe(ctx)
	return e.sub
}

// hear tells the receiver of messages until the connection fails.
func (e *ear) hear(ctx context.Context, sub *redis.PubSub) {
	first, cancel := context.WithTimeout(ctx, e.bus.log.attempt)
	defer cancel()
	subscribe := sub.Subscribe
	if e.bus.log.cluster != nil {
		subscribe = sub.SSubscribe
	}
	if subscribe(first, e.channels...) != nil {
		return
	}
	confirmed, asked := 0, false
	for {
		message, err := sub.ReceiveTimeout(ctx, silence)
		switch m := message.(type) {
		case *redis.Message:
			asked = false
			e.receiver.Message([]byte(m.Payload))
		case *redis.Pong:
			asked = false
		case *redis.Subscription:
			if m.Kind != "subscribe" && m.Kind != "ssubscribe" {
				return // the channel has moved to another server
			}
			// go-redis subscribes again by itself after an error, which ends this
			// loop before.
			if confirmed++; confirmed == len(e.channels) {
				e.found()
			}
		}
		var timeout net.Error
		switch {
		case err == nil:
		case errors.As(err, &timeout) && timeout.Timeout() && !asked && confirmed >= len(e.channels):
			asked = true
			if sub.Ping(ctx) != nil {
				return
			}
		default:
			return
		}
	}
}

func (e *ear) found() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.up = true
	select {
	case <-e.ready:
		e.since = time.Now()
	default:
		close(e.ready)
	}
}

func (e *ear) lost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.up = false
}

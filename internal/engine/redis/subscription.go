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
	// silence is after how long without a message a subscription is pinged, and how
	// long the answer may take.
	silence = 2 * time.Second
	// settling is how long after a subscription was lost and made again no node is
	// reported gone: other nodes may have lost theirs too.
	settling = 3 * time.Second
	// pause is the time between two attempts to subscribe.
	pause = 100 * time.Millisecond
)

// A subscription is to channels on one connection. It is made again when the connection is lost.
type subscription struct {
	bus      *bus
	receiver cluster.Receiver
	channels []string
	ready    chan struct{} // closed at the first subscription

	mu     sync.Mutex
	sub    *redis.PubSub
	closed bool
	up     bool      // the subscription is made
	since  time.Time // when it was made again; zero: never lost
}

func newSubscription(b *bus, r cluster.Receiver, channels ...string) *subscription {
	return &subscription{bus: b, receiver: r, channels: channels, ready: make(chan struct{})}
}

// settled reports whether the subscription is up, and was not just made again.
func (s *subscription) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up && time.Since(s.since) > settling
}

// close ends listen.
func (s *subscription) close() {
	s.mu.Lock()
	sub := s.sub
	s.closed = true
	s.mu.Unlock()
	if sub != nil {
		sub.Close()
	}
}

// listen subscribes, again and again, until it is closed.
func (s *subscription) listen(ctx context.Context) {
	for {
		sub := s.subscribe(ctx)
		if sub == nil {
			return
		}
		s.receive(ctx, sub)
		sub.Close()
		s.lost()
		if c := s.bus.log.cluster; c != nil {
			c.ReloadState(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// subscribe opens a connection, or returns nil if s is closed.
func (s *subscription) subscribe(ctx context.Context) *redis.PubSub {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || ctx.Err() != nil {
		return nil
	}
	// Without channels Subscribe does not connect yet, so it does not block.
	s.sub = s.bus.log.client.Subscribe(ctx)
	return s.sub
}

// receive passes messages to the receiver until the connection fails.
func (s *subscription) receive(ctx context.Context, sub *redis.PubSub) {
	first, cancel := context.WithTimeout(ctx, s.bus.log.attempt)
	defer cancel()
	subscribe := sub.Subscribe
	if s.bus.log.cluster != nil {
		subscribe = sub.SSubscribe
	}
	if subscribe(first, s.channels...) != nil {
		return
	}
	confirmed, asked := 0, false
	for {
		message, err := sub.ReceiveTimeout(ctx, silence)
		switch m := message.(type) {
		case *redis.Message:
			asked = false
			s.receiver.Message([]byte(m.Payload))
		case *redis.Pong:
			asked = false
		case *redis.Subscription:
			if m.Kind != "subscribe" && m.Kind != "ssubscribe" {
				return // the channel has moved to another server
			}
			// go-redis subscribes again after an error, but this loop ends first.
			if confirmed++; confirmed == len(s.channels) {
				s.found()
			}
		}
		var timeout net.Error
		switch {
		case err == nil:
		case errors.As(err, &timeout) && timeout.Timeout() && !asked && confirmed >= len(s.channels):
			asked = true
			if sub.Ping(ctx) != nil {
				return
			}
		default:
			return
		}
	}
}

func (s *subscription) found() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = true
	select {
	case <-s.ready:
		s.since = time.Now()
	default:
		close(s.ready)
	}
}

func (s *subscription) lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = false
}

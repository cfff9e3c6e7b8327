package jetstream

import (
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/engine/durable"
)

// Conn returns the connection of a log.
func Conn(l durable.Log) *nats.Conn { return l.(*Log).nc }

// Patient gives the engine more time to answer than usual, for a busy machine.
func Patient(l durable.Log, attempt, reading time.Duration) {
	l.(*Log).attempt, l.(*Log).reading = attempt, reading
}

// TheirClock makes a log believe that the servers' clock is ahead of this one.
func TheirClock(l durable.Log, ahead time.Duration) {
	c := &l.(*Log).clock
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = time.Now().Add(ahead), time.Now()
}

// ForgetClock makes a log look at the servers' clock again.
func ForgetClock(l durable.Log) {
	c := &l.(*Log).clock
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = time.Time{}, time.Time{}
}

package jetstream

import (
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/internal/engine/durable"
)

// Conn is the connection under a log.
func Conn(l durable.Log) *nats.Conn { return l.(*Log).nc }

// Patient gives the engine longer to answer than it has otherwise, on a machine that
// has much else to do.
func Patient(l durable.Log, attempt, reading time.Duration) {
	l.(*Log).attempt, l.(*Log).reading = attempt, reading
}

// TheirClock has a log believe that the servers' clock is so far ahead of this one.
func TheirClock(l durable.Log, ahead time.Duration) {
	c := &l.(*Log).clock
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = time.Now().Add(ahead), time.Now()
}

// ForgetClock has it look at that clock anew.
func ForgetClock(l durable.Log) {
	c := &l.(*Log).clock
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = time.Time{}, time.Time{}
}

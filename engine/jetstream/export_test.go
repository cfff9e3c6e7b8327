package jetstream

import (
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/engine/durable"
)

// Conn is the connection under a log.
func Conn(l durable.Log) *nats.Conn { return l.(*Log).nc }

// Patient gives the engine longer to answer than it has otherwise, on a machine that
// has much else to do.
func Patient(l durable.Log, d time.Duration) {
	l.(*Log).attempt, l.(*Log).reading = d, d
}

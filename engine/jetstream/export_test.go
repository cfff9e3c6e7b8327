package jetstream

import (
	"github.com/nats-io/nats.go"

	"holdfast/engine/durable"
)

// Conn is the connection under a log.
func Conn(l durable.Log) *nats.Conn { return l.(*Log).nc }

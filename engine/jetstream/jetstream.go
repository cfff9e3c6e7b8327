// Package jetstream keeps streams in NATS JetStream: in this process, or a cluster.
package jetstream

import (
	"context"
	"errors"

	_ "github.com/nats-io/nats-server/v2/server" // placeholder, so that go.mod has it
	_ "github.com/nats-io/nats.go"
	_ "github.com/nats-io/nats.go/jetstream"
	"holdfast/engine/durable"
)

// Open opens "file:DIR" or "nats://…".
func Open(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error) {
	return nil, errors.New("to come")
}

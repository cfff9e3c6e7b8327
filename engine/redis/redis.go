// Package redis keeps streams in Redis or Valkey.
package redis

import (
	"context"
	"errors"

	_ "github.com/redis/go-redis/v9" // placeholder, so that go.mod has it

	"holdfast/engine/durable"
)

// Open opens "redis://…".
func Open(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error) {
	return nil, errors.New("to come")
}

// Package redis registers the engine of URLs like redis://HOST, rediss:, redis+sentinel: and redis+cluster:, which is Redis or Valkey.
// Import the package for its side effect, and pass the URL to [engine.Open].
//
//	import _ "holdfast/engine/redis"
package redis

import (
	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/redis"
)

func init() { driver.Register(redis.Open, "redis", "rediss", "redis+sentinel", "redis+cluster") }

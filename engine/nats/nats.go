// Package nats has the engine of URLs like nats://HOST and tls://HOST, a NATS JetStream cluster: import it for its effect, and give the
// URL to [engine.Open].
//
//	import _ "holdfast/engine/nats"
package nats

import (
	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/jetstream"
)

func init() { driver.Register(jetstream.Open, "nats", "tls") }

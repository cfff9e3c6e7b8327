// Package nats registers the engine of URLs like nats://HOST and tls://HOST, a NATS JetStream cluster. Import the package for its side
// effect, and pass the URL to [engine.Open].
//
//	import _ "holdfast/engine/nats"
package nats

import (
	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/jetstream"
)

func init() { driver.Register(jetstream.Open, "nats", "tls") }

// Package file has the engine of URLs like file:DIR, a directory of this machine: import it for its effect, and give the URL to
// [engine.Open]. It links a NATS server.
//
//	import _ "holdfast/engine/file"
package file

import (
	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/embedded"
)

func init() { driver.Register(embedded.Open, "file") }

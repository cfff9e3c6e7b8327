// Package file registers the engine of URLs like file:DIR, a directory of this machine. Import the package for its side effect,
// and pass the URL to [engine.Open]. The package links a NATS server.
//
//	import _ "holdfast/engine/file"
package file

import (
	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/embedded"
)

func init() { driver.Register(embedded.Open, "file") }

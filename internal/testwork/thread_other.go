//go:build !linux

package testwork

import "time"

var began = time.Now()

// threadTime returns the time since the start, as this system does not tell the processor time of a
// thread.
func threadTime() time.Duration { return time.Since(began) }

//go:build !linux

package testwork

import "time"

var began = time.Now()

// threadTime returns the time: here nobody tells that of a thread.
func threadTime() time.Duration { return time.Since(began) }

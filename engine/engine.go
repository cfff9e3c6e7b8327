// Package engine opens what keeps the streams.
package engine

import (
	"fmt"
	"net/url"
	"time"

	"holdfast/engine/memory"
	"holdfast/stream"
)

// Open opens the store that a URL names, which keeps finished calls for keep (0:
// the engine's default). So far there is one engine:
//
//	memory:    in this process; what it keeps is gone with the process
func Open(rawURL string, keep time.Duration) (stream.Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("store %q: %w", rawURL, err)
	}
	if u.Scheme == "memory" {
		return Memory(keep), nil
	}
	return nil, fmt.Errorf(`store %q: no such engine; there is only "memory:"`, u.Redacted())
}

// Memory opens a store in this process.
func Memory(keep time.Duration) stream.Store {
	return memory.New(memory.Options{Keep: keep})
}

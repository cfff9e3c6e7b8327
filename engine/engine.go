// Package engine opens what keeps the streams.
package engine

import (
	"errors"
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
	// What is wrong is said without the URL: it may hold a password.
	u, err := url.Parse(rawURL)
	switch {
	case err != nil:
		return nil, errors.New("store: malformed URL")
	case u.Scheme == "":
		return nil, errors.New(`store: want an engine's URL; there is only "memory:"`)
	case u.Scheme != "memory":
		return nil, fmt.Errorf(`store %q: no such engine; there is only "memory:"`, u.Scheme+":")
	case *u != url.URL{Scheme: "memory"}:
		return nil, errors.New(`store "memory:": nothing may follow the colon`)
	}
	return Memory(keep), nil
}

// Memory opens a store in this process.
func Memory(keep time.Duration) stream.Store {
	return memory.New(memory.Options{Keep: keep})
}

//go:build unix

package redis

import (
	"fmt"
	"sync/atomic"
	"testing"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/stream"
	"holdfast/stream/streamtest"
)

// What a store promises holds over Redis: each case has keys of its own there.
func TestStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var cases atomic.Int64
	streamtest.Run(t, func(t *testing.T, l streamtest.Limits) func() stream.Store {
		url := fmt.Sprintf("%s?prefix=case%d", server.URL(), cases.Add(1))
		return func() stream.Store {
			o := durable.Options{
				Keep: l.Keep, SessionTTL: l.SessionTTL,
				StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes,
				Logger: quiet,
			}
			return durable.New(patient(t, url, o), o)
		}
	}, streamtest.Options{Nodes: true, Durable: true})
}

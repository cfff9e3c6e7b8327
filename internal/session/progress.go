package session

import (
	"context"
	"math"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// progress has the greatest value that was sent under each progress token, by the
// token's key, before a call is made again: see [protocol.Progress].
type progress map[string]float64

// passes reports whether a progress notification may be sent, and notes its value.
func (p progress) passes(params []byte) bool {
	token, value, ok := protocol.Progress(params)
	if !ok {
		return true // without a token and a value it cannot go back
	}
	if last, known := p[token]; known && value <= last {
		return false
	}
	p[token] = value
	return true
}

// progressOf takes in the progress that was sent of a call which is about to be made
// again. In a single session it is on the standalone stream, with the progress of
// earlier calls: if these had the same tokens, some progress is not sent.
func (f *restored) progressOf(ctx context.Context, c *Call) {
	if len(c.tokens) == 0 || c.isHeir() {
		return
	}
	number := c.number
	if c.s.single {
		number = standalone
	}
	said := f.progress
	if said == nil {
		said = make(progress)
		_ = c.s.streams.Each(ctx, number, math.MaxUint64, func(e *stream.Entry) {
			if jsonrpc.String(jsonrpc.Field(e.Data, "method")) == protocol.MethodProgress {
				said.passes(jsonrpc.Field(e.Data, "params"))
			}
		})
	}
	if c.s.single {
		f.progress = said
	}
	if len(said) > 0 {
		c.recorded().progress = said
	}
}

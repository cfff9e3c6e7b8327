package session

import (
	"context"

	"holdfast/internal/engine/shared"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// progress has the greatest values that were said under progress tokens, by the keys
// of the tokens, before a call is made again: see [protocol.Progress].
type progress map[string]float64

// passes reports whether a progress notification may be said, and notes its value.
func (p progress) passes(params []byte) bool {
	token, value, ok := protocol.Progress(params)
	if !ok {
		return true // whatever it is, it is none that goes back
	}
	if last, known := p[token]; known && value <= last {
		return false
	}
	p[token] = value
	return true
}

// restoreProgress takes in what was said of a call that is about to be made again. In
// a single session that is on the standalone stream, with what was said of calls
// before: should their tokens have been the same, some progress is not said.
func (c *Call) restoreProgress(ctx context.Context, st *shared.Stream, f *restored) {
	if len(c.tokens) == 0 {
		return
	}
	number := st.Number
	if c.s.single {
		number = standalone
	}
	said := f.progress
	if said == nil {
		said = c.s.progressIn(ctx, number)
	}
	if c.s.single {
		f.progress = said
	}
	if len(said) == 0 {
		return
	}
	c.recorded().progress = said
}

// progressIn returns the progress that a stream tells of.
func (s *Session) progressIn(ctx context.Context, number uint64) progress {
	said := make(progress)
	at := stream.Cursor{Stream: stream.ID{Session: s.key, Number: number}}
	oldest, _, err := s.m.store.Bounds(ctx, at.Stream)
	if err != nil {
		return said // nothing was said, or it can't be read any more
	}
	at.Seq = oldest - 1
	buf := make([]stream.Entry, 0, 64)
	for {
		got, err := s.m.store.Read(ctx, at, buf[:0])
		if err != nil || len(got) == 0 {
			return said // io.EOF, as a rule
		}
		for i := range got {
			at.Seq, at.Epoch = got[i].Seq, got[i].Epoch
			if jsonrpc.String(jsonrpc.Field(got[i].Data, "method")) == protocol.MethodProgress {
				said.passes(jsonrpc.Field(got[i].Data, "params"))
			}
		}
	}
}

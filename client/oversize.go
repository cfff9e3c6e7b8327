package client

import (
	"context"
	"fmt"
	"log/slog"

	"holdfast/internal/budget"
	"holdfast/internal/rpc"
	"holdfast/internal/skim"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// An oversize is the end of a connection because the server does not take messages
// as large as one that was written.
type oversize struct{ raw []byte }

// Error implements error.
func (o *oversize) Error() string {
	return fmt.Sprintf("the server does not take a message as large as this, of %d bytes", len(o.raw))
}

// skipped handles a message of the server that was not kept, because of err, over a connection that carries many
// calls: over another connection the server would send the message again. So the request that it answers fails, and a
// request of the server is refused.
func (c *Conn) skipped(found *skim.Message, err error, write func(ctx context.Context, raw []byte) error, take func(jsonrpc.Message)) {
	c.logger.Warn("message of the server dropped", "error", err)
	id := found.ID()
	switch kind, ok := found.Kind(); {
	case !ok, kind == jsonrpc.Response && id == nil:
		c.calls.failSent(err) // it may be the response to any of them
	case kind == jsonrpc.Request:
		raw := jsonrpc.AppendError(nil, id, jsonrpc.Errorf(jsonrpc.CodeInternal, "the request was not read: %v", err))
		c.spawn(func() { _ = write(c.ctx, raw) })
	case kind == jsonrpc.Response:
		raw := jsonrpc.AppendError(nil, id, failure(&unknownOutcome{err}, false))
		if m, err := jsonrpc.Parse(raw); err == nil {
			take(m)
		}
	}
}

// count returns an arrival that counts the messages of a stream while they are read; nil: they are not counted.
func (c *Conn) count(events *sse.Reader) *budget.Arrival {
	arrival := c.account.Arrive(c.ctx.Done())
	if arrival != nil {
		events.Room = func(size int) error { return arrival.Grow(int64(size), int64(c.opts.MaxMessage)) }
	}
	return arrival
}

// skip skips the rest of an event that was not read, because of why.
func (c *Conn) skip(events *sse.Reader, why error, write func(ctx context.Context, raw []byte) error, take func(jsonrpc.Message)) error {
	var found skim.Message
	if err := events.Skip(&found); err != nil {
		return err
	}
	c.skipped(&found, why, write, take)
	return nil
}

// errTooLong returns the error of a message that was too long to be read.
func (c *Conn) errTooLong() error {
	return fmt.Errorf("a message of the server is larger than %d bytes", c.opts.MaxMessage)
}

// dropped logs a text of the server that is not a message: only the first as a warning, as heartbeats come again and again.
func (c *Conn) dropped(text []byte, why error) {
	level := slog.LevelDebug
	if c.noise.CompareAndSwap(false, true) {
		level = slog.LevelWarn
	}
	c.logger.Log(c.ctx, level, "what the server sent is no message, and is dropped; more of that is logged at level debug", "text", rpc.Quote(text), "error", why)
}

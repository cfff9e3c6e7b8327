package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"holdfast/stream"
)

// What follows is what a connection does for clients that may have lost a call, and
// know nothing but their session: docs/decisions/0001-session-id-only.md.

const (
	// leastPatience is how long a client that knows an event id is given at the least
	// to come back with it, whatever it was told to wait.
	leastPatience = 500 * time.Millisecond

	// justBefore is how long after a write it may be heard at the most that the client
	// had left before it arrived.
	justBefore = time.Second
)

// adopt continues the calls that the client has lost, and says when there will be
// more: where an id was written, the client may be about to come back with it,
// after the time that it was told to wait.
func (c *conn) adopt(ctx context.Context) {
	lost, due := c.s.LostStreams(max(2*c.h.opts.Retry, leastPatience))
	for _, at := range lost {
		err := c.read(ctx, at)
		if errors.Is(err, stream.ErrTrimmed) { // the end of it is better than nothing
			at.Seq = c.s.OldestOf(ctx, at.Stream.Number)
			err = c.read(ctx, at)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			c.h.logger.Warn("call not continued", "session", c.s.Name(), "error", err)
		}
	}
	c.recover = due
}

// pings says whether the client is to be pinged, as it has got no event id of its call
// and is not primed with one (docs/decisions/0021-ids-by-ping.md).
func (c *conn) pings() bool {
	return c.ids && !c.primes && !c.sentID && !c.pinged && !c.young && !c.stays &&
		c.h.opts.PingAfter > 0 && c.sources[0].Cursor().Stream.Number != 0
}

// left says that the client has left, if it can be known. Before all of a call
// counts as told, the network is asked: it knows sooner than ctx.
func (c *conn) left(ctx context.Context) error {
	ends := func(src source) bool { return src.ended && !src.told }
	if err := ctx.Err(); err != nil || !slices.ContainsFunc(c.sources, ends) || !c.gone() {
		return err
	}
	return errLeft
}

// gone says whether the network says that the client has left.
func (c *conn) gone() bool { return c.watched != nil && c.watched.gone() }

// finished notes that all of a call was written, which does not say that it has
// arrived.
func (c *conn) finished(src *source, besides bool) {
	switch {
	case !c.ids || c.young || c.duplex != nil:
	case c.resumed && c.primes:
		// Clients that know ids and come back without one after this have forgotten it:
		// they lost the connection.
		src.Completed("", besides)
	case c.heeded:
		src.Completed(c.from, besides)
		if c.h.peers.hasLeft(c.from, c.opened) {
			c.s.Disconnected(c.from, time.Time{})
		}
	case c.watched != nil:
		src.Completed(c.from, besides)
		c.watched.wrote(c.s)
	}
}

package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/panics"
	"holdfast/internal/reading"
	"holdfast/internal/session"
	"holdfast/stream"
)

// What follows is what a connection does for clients that may have lost a call, and
// know nothing but their session: docs/decisions/0001-session-id-only.md.

const (
	// leastPatience is how long a client that knows an event id is given at the least
	// to come back with it, however short it was asked to wait.
	leastPatience = 2 * time.Second

	// justBefore is how long after a write it may become known at the most that the client
	// had left before it arrived.
	justBefore = time.Second
)

// continued are the calls that an event stream continues beside the standalone stream:
// its response carries several streams. Each is copied by a goroutine.
type continued struct {
	c    *events
	ctx  context.Context
	stop context.CancelCauseFunc // ends them, and with a cause other than errOver the connection
	work sync.WaitGroup

	mu    sync.Mutex
	calls map[*continuedCall]struct{}
	ended []*continuedCall // with the connection
}

// A continuedCall is one of them, and the sink of its stream.
type continuedCall struct {
	copier
	parting
	of *continued
}

// continueLost has the connection continue the calls that its client has lost, and notes
// when there will be more: where an id was written, the client may be about to come
// back with it, after the time that it was asked to wait.
func (c *events) continueLost(ctx context.Context) {
	var lost []stream.Cursor
	lost, c.due = c.s.Streams().Lost(ctx, max(2*c.h.opts.Retry, leastPatience))
	if len(lost) > 0 && c.continued == nil {
		c.continued = &continued{c: c, calls: make(map[*continuedCall]struct{})}
		c.continued.ctx, c.continued.stop = context.WithCancelCause(ctx)
	}
	for _, at := range lost {
		err := c.continued.begin(ctx, at)
		if errors.Is(err, stream.ErrTrimmed) { // the end of it is better than nothing
			at.Seq = c.s.Streams().Oldest(ctx, at.Stream.Number)
			err = c.continued.begin(ctx, at)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			c.h.logger.Warn("call not continued", "session", c.s.Name(), "error", err)
		}
	}
}

// continueDue does so when it is time. The error is that of a call that ends the
// connection.
func (c *events) continueDue(ctx context.Context, a *alarm) error {
	if !c.isStandalone() || c.via.isMuxed() || c.r.Aside(ctx) {
		return nil
	}
	if x := c.continued; x != nil && x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	lost := c.r.LostChanged()
	if lost || a.due(c.due) {
		c.continueLost(ctx)
		a.due(c.due)
	}
	return nil
}

// begin begins to copy a call.
func (x *continued) begin(ctx context.Context, at stream.Cursor) error {
	cc := &continuedCall{of: x}
	cc.s, cc.ready, cc.sink, cc.yields, cc.door = x.c.s, make(chan struct{}, 1), cc, true, observe.DoorSession
	if err := cc.read(ctx, at, x.c.name != ""); err != nil {
		return err
	}
	cc.r.Beside(x.c.r, x.arrived)
	x.mu.Lock()
	x.calls[cc] = struct{}{}
	x.mu.Unlock()
	x.work.Go(cc.serve)
	return nil
}

// serve copies the call to its end. A call that its client reads on another connection
// is let go of. Another error ends the connection.
func (cc *continuedCall) serve() {
	x := cc.of
	err := cc.copied()
	over := err == nil || errors.Is(err, errSuperseded)
	if !over && !errors.Is(err, session.ErrMoved) { // which the connection finds out itself
		x.stop(err)
	}
	x.mu.Lock()
	delete(x.calls, cc)
	if !over {
		x.ended = append(x.ended, cc)
	}
	x.mu.Unlock()
	if over {
		cc.r.Detach(false, x.c.shown.any(), true)
	}
	reading.Wake(x.c.ready)
}

// copied runs the copier. The connection's writer may be a user's, which may panic.
func (cc *continuedCall) copied() (err error) {
	defer panics.Catch(&err, cc.of.c.h.logger, "writing a continued call", "")
	return cc.run(cc.of.ctx)
}

// append implements [sink].
func (cc *continuedCall) append(text, id, data []byte) []byte { return cc.of.c.append(text, id, data) }

// write implements [sink].
func (cc *continuedCall) write(text []byte, last bool) error {
	err := cc.of.c.flush(text, false)
	if err == nil && last && cc.of.c.gone() {
		return errLeft
	}
	return err
}

// finished implements [sink].
func (cc *continuedCall) finished() { cc.of.c.arrives(&cc.copier, true) }

// idle implements [sink].
func (cc *continuedCall) idle(context.Context, time.Time) (time.Time, error) {
	if cc.news(cc.r) {
		reading.Wake(cc.of.c.ready)
	}
	return time.Time{}, nil
}

// endsWithin is how long it may take to become known that a client has left a connection, before it comes back on another one.
const endsWithin = 250 * time.Millisecond

// arrived reports whether all that was written is with the client, as far as that can be known: its connection lives, and its
// system has acknowledged it. Nothing is known of what a proxy has acknowledged, or soon enough where another node has the
// connection.
func (x *continued) arrived() bool {
	c := x.c
	if c.via != direct || c.watched == nil || c.behind {
		return false
	}
	t := time.NewTimer(endsWithin)
	defer t.Stop()
	select {
	case <-x.ctx.Done():
		return false
	case <-t.C:
	}
	return !c.watched.Gone() && c.watched.Acknowledged()
}

// none reports whether no call is continued. x may be nil.
func (x *continued) none() bool {
	if x == nil {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.calls) == 0
}

// announced reports whether the client got the tokens of all of them that have one. x may
// be nil.
func (x *continued) announced() bool {
	if x == nil {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for cc := range x.calls {
		if !cc.announced.Load() {
			return false
		}
	}
	return true
}

// disconnected reports whether one of them has asked for the connection's end, once.
func (x *continued) disconnected() (retry time.Duration, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for cc := range x.calls {
		if asked := cc.retry.Swap(nil); asked != nil {
			return *asked, true
		}
	}
	return 0, false
}

// wait ends the copying, after that of the standalone stream has ended with err, and
// returns why the connection ends. If the session has ended, so have they.
func (x *continued) wait(err error) error {
	if err != nil {
		x.stop(errOver)
	}
	x.work.Wait()
	if err == nil && x.ctx.Err() != nil {
		err = context.Cause(x.ctx)
	}
	return err
}

// detach lets go of the calls that had not ended when the connection did. Of a
// connection that continued calls beside its own stream the client knows one id at the
// most: it may come back for another stream.
func (x *continued) detach(broke bool) {
	x.stop(errOver)
	x.work.Wait()
	for _, cc := range x.ended {
		cc.r.Detach(broke && cc.state != delivered, x.c.shown.any(), true)
	}
	x.ended = nil
}

package copying

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
	c    *Events
	ctx  context.Context
	stop context.CancelCauseFunc // ends them, and with a cause other than ErrOver the connection
	work sync.WaitGroup

	mu    sync.Mutex
	calls map[*continuedCall]struct{}
	ended []*continuedCall // with the connection
}

// A continuedCall is one of them, and the sink of its stream.
type continuedCall struct {
	Copier
	Parting
	of *continued
}

// ContinueLost has the connection continue the calls that its client has lost, and notes when there will be more: where an id was
// written, the client may be about to come back with it, after the time that it was asked to wait.
func (c *Events) ContinueLost(ctx context.Context) {
	var lost []stream.Cursor
	lost, c.due = c.Session.Streams().Lost(ctx, max(2*c.of.Retry, leastPatience))
	if len(lost) > 0 && c.continued == nil {
		c.continued = &continued{c: c, calls: make(map[*continuedCall]struct{})}
		c.continued.ctx, c.continued.stop = context.WithCancelCause(ctx)
	}
	for _, at := range lost {
		err := c.continued.begin(ctx, at)
		if errors.Is(err, stream.ErrTrimmed) { // the end of it is better than nothing
			at.Seq = c.Session.Streams().Oldest(ctx, at.Stream.Number)
			err = c.continued.begin(ctx, at)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			c.of.Logger.Warn("call not continued", "session", c.Session.Name(), "error", err)
		}
	}
}

// continueDue does so when it is time. The error is that of a call that ends the connection.
func (c *Events) continueDue(ctx context.Context, a *Alarm) error {
	if !c.IsStandalone() || c.Via.IsMuxed() || c.Reader.Aside(ctx) {
		return nil
	}
	if x := c.continued; x != nil && x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	lost := c.Reader.LostChanged()
	if lost || a.Due(c.due) {
		c.ContinueLost(ctx)
		a.Due(c.due)
	}
	return nil
}

// begin begins to copy a call.
func (x *continued) begin(ctx context.Context, at stream.Cursor) error {
	cc := &continuedCall{of: x}
	cc.Session, cc.Ready, cc.Sink, cc.Yields, cc.Door = x.c.Session, make(chan struct{}, 1), cc, true, observe.DoorSession
	if err := cc.Read(ctx, at, x.c.name != ""); err != nil {
		return err
	}
	cc.Reader.Beside(x.c.Reader, x.arrived)
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
	over := err == nil || errors.Is(err, ErrSuperseded)
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
		cc.Reader.Detach(false, x.c.shown.any(), true)
	}
	reading.Wake(x.c.Ready)
}

// copied runs the copier. The connection's writer may be a user's, which may panic.
func (cc *continuedCall) copied() (err error) {
	defer panics.Catch(&err, cc.of.c.of.Logger, "writing a continued call", "")
	return cc.Run(cc.of.ctx)
}

// Append implements [Sink].
func (cc *continuedCall) Append(text, id, data []byte) []byte { return cc.of.c.Append(text, id, data) }

// Write implements [Sink].
func (cc *continuedCall) Write(text []byte, last bool) error {
	err := cc.of.c.Flush(text, false)
	if err == nil && last && cc.of.c.Gone() {
		return ErrLeft
	}
	return err
}

// Finished implements [Sink].
func (cc *continuedCall) Finished() { cc.of.c.arrives(&cc.Copier, true) }

// Idle implements [Sink].
func (cc *continuedCall) Idle(context.Context, time.Time) (time.Time, error) {
	if cc.News(cc.Reader) {
		reading.Wake(cc.of.c.Ready)
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
	if c.Via != direct || c.watched == nil || c.behind {
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

// announced reports whether the client got the tokens of all of them that have one. x may be nil.
func (x *continued) announced() bool {
	if x == nil {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for cc := range x.calls {
		if !cc.Announced.Load() {
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
		if asked := cc.Retry.Swap(nil); asked != nil {
			return *asked, true
		}
	}
	return 0, false
}

// wait ends the copying, after that of the standalone stream has ended with err, and
// returns why the connection ends. If the session has ended, so have they.
func (x *continued) wait(err error) error {
	if err != nil {
		x.stop(ErrOver)
	}
	x.work.Wait()
	if err == nil && x.ctx.Err() != nil {
		err = context.Cause(x.ctx)
	}
	return err
}

// detach lets go of the calls that had not ended when the connection did. Of a connection that continued calls beside its own
// stream the client knows one id at the most: it may come back for another stream.
func (x *continued) detach(broke bool) {
	x.stop(ErrOver)
	x.work.Wait()
	for _, cc := range x.ended {
		cc.Reader.Detach(broke && cc.state != delivered, x.c.shown.any(), true)
	}
	x.ended = nil
}

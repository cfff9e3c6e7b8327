package streaming

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

// This file is for clients that may have lost a call, and come back with nothing
// but their session id: docs/decisions/0001-session-id-only.md.

const (
	// LeastPatience is the least [Responses.Patience], however short clients are told to wait.
	LeastPatience = 2 * time.Second

	// justBefore is how long after a write it may become known that the client had left
	// before the bytes arrived.
	justBefore = time.Second
)

// continued are the calls that an event stream continues beside the standalone stream:
// its response carries several streams. A goroutine copies each.
type continued struct {
	c    *Events
	ctx  context.Context
	stop context.CancelCauseFunc // ends the calls, and with a cause other than ErrOver the connection
	work sync.WaitGroup

	mu    sync.Mutex
	calls map[*continuedCall]struct{}
	ended []*continuedCall // calls that ended with the connection
}

// A continuedCall is one of these calls, and the sink of its stream.
type continuedCall struct {
	Copier
	Parting
	of *continued
}

// ContinueLost continues the calls that the client has lost, and sets the time to look for more: a client that was sent an id may
// be about to come back with it, after the time that it was asked to wait.
func (c *Events) ContinueLost(ctx context.Context) {
	var lost []stream.Cursor
	lost, c.due = c.Session.Streams().Lost(ctx, c.of.Patience)
	if len(lost) > 0 && c.continued == nil {
		c.continued = &continued{c: c, calls: make(map[*continuedCall]struct{})}
		c.continued.ctx, c.continued.stop = context.WithCancelCause(ctx)
	}
	for _, at := range lost {
		err := c.continued.begin(ctx, at)
		if errors.Is(err, stream.ErrTrimmed) { // the end of the call is better than nothing
			at.Seq = c.Session.Streams().Oldest(ctx, at.Stream.Number)
			err = c.continued.begin(ctx, at)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			c.of.Logger.Warn("call not continued", "session", c.Session.Name(), "error", err)
		}
	}
}

// continueDue calls ContinueLost when it is due. Its error is that of a continued call, and ends the connection.
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

// begin starts to copy a call from a cursor.
func (x *continued) begin(ctx context.Context, at stream.Cursor) error {
	cc := &continuedCall{of: x}
	cc.Session, cc.Ready, cc.Sink, cc.Yields, cc.Door = x.c.Session, make(chan struct{}, 1), cc, true, observe.DoorSession
	if err := cc.readOn(ctx, at, x.c.name != "", &reading.Outlet{On: x.c.Reader, Arrived: x.arrived}); err != nil {
		return err
	}
	x.mu.Lock()
	x.calls[cc] = struct{}{}
	x.mu.Unlock()
	x.work.Go(cc.serve)
	return nil
}

// serve copies the call to its end, or until the client reads it on another
// connection. Another error ends the connection.
func (cc *continuedCall) serve() {
	x := cc.of
	err := cc.copied()
	over := err == nil || errors.Is(err, ErrSuperseded)
	if !over && !errors.Is(err, session.ErrMoved) { // of which the connection learns itself
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

// copied runs the copier. The response writer may be the application's, and may panic.
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

// arrived reports whether all written bytes have arrived, as far as that can be known: the client's connection lives, and its
// system has acknowledged them. It returns false behind a proxy, which may have acknowledged them itself, and if another node
// has the connection, as the answer would come too late.
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

// announced reports whether the client got the tokens of all continued calls. x may be nil.
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

// disconnected reports, once, that a continued call has asked for the connection's end.
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

// wait waits for the copying of the calls, after that of the standalone stream has
// ended with err, and returns the reason that the connection ends. If err is nil,
// the session and with it the calls have ended; else it stops the copying.
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

// detach detaches from the calls that had not ended when the connection did. The client keeps at most one id of a connection,
// which may be of another stream than such a call's.
func (x *continued) detach(broke bool) {
	x.stop(ErrOver)
	x.work.Wait()
	for _, cc := range x.ended {
		cc.Reader.Detach(broke && cc.state != delivered, x.c.shown.any(), true)
	}
	x.ended = nil
}

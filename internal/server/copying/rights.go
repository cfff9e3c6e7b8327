package copying

import (
	"context"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
)

// Rights are those of the client of a connection that stays open, which may change meanwhile. Its methods may be called
// concurrently.
type Rights interface {
	// Check returns why the client may not go on, as a new request would be refused: with status 401 nothing proves any more
	// who it is, and with 403 it lacks a scope. With status 0 it may go on. Check does not wait.
	Check() (status int, challenge, text string)
	// Watch calls changed whenever Check may return something else, until stop is called, and once before it returns.
	// changed must not call stop.
	Watch(changed func()) (stop func())
}

type rightsKey struct{}

// WithRights returns a context for a request whose client has rights that may change while its connection is open. Only
// Options.Authenticate may put it before the handler.
func WithRights(ctx context.Context, rights Rights) context.Context {
	return context.WithValue(ctx, rightsKey{}, rights)
}

// RightsOf returns the rights of a request's client; nil: they do not change. The node that a client is connected to watches
// them, and not those that it forwards requests to.
func RightsOf(ctx context.Context) Rights {
	rights, _ := ctx.Value(rightsKey{}).(Rights)
	return rights
}

// Denial returns why the client of a connection may not go on, or nil. rights may be nil.
func Denial(rights Rights) *protocol.Unauthorized {
	if rights == nil {
		return nil
	}
	status, challenge, text := rights.Check()
	if status == 0 {
		return nil
	}
	return &protocol.Unauthorized{Status: status, Challenge: []string{challenge}, Text: text}
}

// WatchRights has the connection look at the rights of its client when they may have changed. The function that it returns ends
// that.
func (c *Events) WatchRights(ctx context.Context) (stop func()) {
	if c.Via != direct {
		return func() {}
	}
	if c.Rights = RightsOf(ctx); c.Rights == nil {
		return func() {}
	}
	ready := c.Ready
	return c.Rights.Watch(func() { reading.Wake(ready) })
}

// isDenied reports whether the client may not go on reading. What it has asked for by a POST goes on to its end, because that was
// allowed when it asked, unless it can come back for the rest.
func (c *Events) isDenied() bool {
	return c.Rights != nil && Denial(c.Rights) != nil && (c.mayLeave() || GoesWithRights(c.Door))
}

// GoesWithRights reports whether what a client reads through a door is not the answer to a request that it was allowed to make.
func GoesWithRights(door observe.Door) bool {
	switch door {
	case observe.DoorListen, observe.DoorReplay, observe.DoorURL, observe.DoorPair:
		return true
	}
	return false
}

// deny ends the connection of a client that may not go on.
func (c *Events) deny() error {
	if err := c.leave(c.of.Retry); err != nil {
		return err
	}
	return ErrComeBack
}

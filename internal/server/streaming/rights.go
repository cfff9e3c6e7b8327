package streaming

import (
	"context"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
)

// Rights are the rights of a client, which may change while its connection is open. The methods may be called concurrently.
type Rights interface {
	// Check returns the refusal that a new request of the client would get: status 401 if its credential is no longer valid,
	// 403 if it lacks a scope. With status 0 the client may go on. Check does not wait.
	Check() (status int, challenge, text string)
	// Watch calls changed whenever the result of Check may have changed, until stop is called, and once before it
	// returns. changed must not call stop.
	Watch(changed func()) (stop func())
}

type rightsKey struct{}

// WithRights returns a context for a request of a client with rights that may change while its connection is open. Only
// Options.Authenticate may use it.
func WithRights(ctx context.Context, rights Rights) context.Context {
	return context.WithValue(ctx, rightsKey{}, rights)
}

// RightsOf returns the rights of a request's client; nil: they do not change. Only the client's own node watches them, and
// not nodes that it forwards requests to.
func RightsOf(ctx context.Context) Rights {
	rights, _ := ctx.Value(rightsKey{}).(Rights)
	return rights
}

// Denial returns the refusal of a client that may not go on, or nil. rights may be nil.
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

// WatchRights signals Ready when the client's rights may have changed, until stop is called.
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

// isDenied reports whether the client may not read on. It may read the answer to a POST, which was allowed when it came, to its
// end, unless it can come back for the rest.
func (c *Events) isDenied() bool {
	return c.Rights != nil && Denial(c.Rights) != nil && (c.mayLeave() || GoesWithRights(c.Door))
}

// GoesWithRights reports whether a stream read through a door is not the answer to a request that was allowed when it came.
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

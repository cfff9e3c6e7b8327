package server

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/session"
	"holdfast/stream"
)

// What follows is for servers that check the tokens of clients themselves: a token may expire in
// the middle of a session. A client gets a new one if its request has status 401, and not if its
// call ends with an error. So the answer to a call that is stored, or was stored since the server
// took its time, waits a moment for the server before it shows the client an event id.

// refusedWithin is how long a server has to refuse a call. One that says nothing meanwhile has
// taken it, as a rule.
const refusedWithin = time.Second

// A refusable is the sink of a call that its server may refuse. It writes nothing else.
type refusable struct {
	*events
	call  *session.Call
	until time.Time
}

// isRefused waits until the server has refused a call, or has said anything of it, or a moment
// has passed. If it is true the client was answered. Else the stream is where it was before.
func (c *events) isRefused(ctx context.Context, call *session.Call) bool {
	begin := c.r.Cursor()
	c.sink = &refusable{events: c, call: call, until: time.Now().Add(refusedWithin)}
	err := c.run(ctx)
	if c.state >= last && (err == nil || !errors.Is(err, errNotRefused)) {
		c.detach(err)
		return true
	}
	c.r.Rewind(stream.Entry{Seq: begin.Seq, Epoch: begin.Epoch})
	c.state, c.sink = attached, c
	return false
}

// errNotRefused says that a call is to be answered with its stream.
var errNotRefused = errors.New("the server has not refused the call")

// append implements [sink].
func (f *refusable) append(text, _, _ []byte) []byte { return text }

// write implements [sink].
func (f *refusable) write(_ []byte, last bool) error {
	refused := f.call.Refusal()
	if !last || refused == nil {
		return errNotRefused
	}
	f.h.answers.Fail(f.w, refused)
	if f.gone() {
		return errLeft
	}
	return nil
}

// idle implements [sink].
func (f *refusable) idle(_ context.Context, now time.Time) (time.Time, error) {
	if f.r.HasDisconnectRequest() || !now.Before(f.until) {
		return time.Time{}, errNotRefused
	}
	return f.until, nil
}

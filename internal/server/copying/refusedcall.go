package copying

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
	*Events
	call  *session.Call
	until time.Time
}

// IsRefused waits until the server has refused a call, or has said anything of it, or a moment
// has passed. If it is true the client was answered. Else the stream is where it was before.
func (c *Events) IsRefused(ctx context.Context, call *session.Call) bool {
	begin := c.Reader.Cursor()
	c.Sink = &refusable{Events: c, call: call, until: time.Now().Add(refusedWithin)}
	err := c.Run(ctx)
	if c.state >= last && (err == nil || !errors.Is(err, errNotRefused)) {
		c.Detach(err)
		return true
	}
	c.Reader.Rewind(stream.Entry{Seq: begin.Seq, Epoch: begin.Epoch})
	c.state, c.Sink = attached, c
	return false
}

// errNotRefused says that a call is to be answered with its stream.
var errNotRefused = errors.New("the server has not refused the call")

// Append implements [Sink].
func (f *refusable) Append(text, _, _ []byte) []byte { return text }

// Write implements [Sink].
func (f *refusable) Write(_ []byte, last bool) error {
	refused := f.call.Refusal()
	if !last || refused == nil {
		return errNotRefused
	}
	f.of.Answers.Fail(f.W, refused)
	if f.Gone() {
		return ErrLeft
	}
	return nil
}

// Idle implements [Sink].
func (f *refusable) Idle(_ context.Context, now time.Time) (time.Time, error) {
	if f.Reader.HasDisconnectRequest() || !now.Before(f.until) {
		return time.Time{}, errNotRefused
	}
	return f.until, nil
}

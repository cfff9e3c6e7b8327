package server

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/defaults"
	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
)

// What follows is for modern clients whose connection ends before their request is answered. By the specification that cancels the
// request (2026-07-28, Cancellation). But the end of a connection is all that a server sees of a network that has cut it, too. See
// docs/decisions/0053-calls-that-come-again.md.

// errWithdrawn says that a client has cancelled its request by a message: nothing was cut.
var errWithdrawn = errors.New("the client cancelled the request")

// The cuts are the times that come of it: for how long a request is silent, and for how long a call goes on without its client.
type cuts struct {
	grace     time.Duration // 0 or less: no call goes on
	keepAlive time.Duration
	features  features
}

func newCuts(opts *Options, features features) cuts {
	grace := opts.CutGrace
	if opts.Stateless {
		grace = 0
	}
	return cuts{grace: grace, keepAlive: opts.KeepAlive, features: features}
}

// cut is called when the client of a call has left. A call of a tool goes on for a time in which its client may make it again, and get what it
// says. All others are cancelled at once, and so is one that the client has cancelled by a message.
func (c *cuts) cut(x *exchange.Exchange, call *session.Call) {
	if c.grace <= 0 || x.Method() != protocol.MethodCallTool || errors.Is(context.Cause(x.HTTP.Context()), errWithdrawn) {
		call.Withdraw("the client closed the connection")
		return
	}
	call.ConnectionLost()
	call.AwaitReturn(c.grace, "the client closed the connection, and did not come back in time")
}

// streamsAfter is how long a modern request waits for something to be said before its answer begins to be a stream of events. What is cut
// before that fails at once at its client, which may ask again. After that many hosts wait for the rest until their own limit. Proxies
// end a silent request after 60 s, as a rule.
const streamsAfter = 45 * time.Second

// opensAfter is how long an answer is silent before it begins to be a stream, to be kept alive. Less than the usual KeepAlive is set where
// something on the way ends what is silent for longer. 0 or less: it never does.
func (c *cuts) opensAfter() time.Duration {
	if every := c.keepAlive; every < defaults.KeepAlive {
		return every
	}
	return max(c.keepAlive, streamsAfter)
}

package exchange

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/limit"
	"holdfast/internal/observe"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// BeginInTurn begins the call of an exchange that a limit has refused with err, once it is the call's turn. It returns err if the
// call may not wait.
//
//go:noinline
func (st *Starter) BeginInTurn(x *Exchange, msgs []jsonrpc.Message, light bool, err error) (b Begun, _ error) {
	full, ok := Waits(err, msgs)
	if !ok {
		return b, err
	}
	ctx, over := x.Session.AwaitTurn(x.HTTP.Context(), msgs[0].ID)
	defer over()
	from := st.Origin(x)
	if from.Pass, err = st.awaitExchange(ctx, x, full); err != nil {
		return b, err
	}
	defer from.Pass.Release() // if the call has not taken it
	return Begin(x.Session, msgs, light, x.Once, from)
}

// BeginModernInTurn is BeginInTurn for a modern request.
//
//go:noinline
func (st *Starter) BeginModernInTurn(x *Exchange, err error) (b Begun, _ error) {
	full, ok := Waits(err, x.Msgs)
	if !ok {
		return b, err
	}
	ctx, over := st.Sessions.AwaitOnce(x.HTTP.Context(), x.Client(st.Sessions), x.Once.Key)
	defer over()
	from := st.Origin(x)
	if from.Pass, err = st.awaitExchange(ctx, x, full); err != nil {
		return b, err
	}
	defer from.Pass.Release() // if the call has not taken it
	if b, err = st.BeginModern(x, from); err == nil && b.Call != nil && errors.Is(context.Cause(ctx), session.ErrCancelled) {
		b.Call.Withdraw("the client cancelled the request") // which Begin has not seen
	}
	return b, err
}

// awaitExchange waits for the turn of an exchange that full has refused, until ctx ends or the client leaves the node that forwarded it.
func (st *Starter) awaitExchange(ctx context.Context, x *Exchange, full *limit.Refusal) (*limit.Pass, error) {
	if x.From != nil && x.Once.Name != "" {
		watched, attended := st.Nodes.WatchRequest(ctx, x.Once.Name)
		defer attended()
		ctx = watched
	}
	return st.AwaitTurn(ctx, full.Queue())
}

// Waits returns err as a refusal, and reports whether the call may wait: not a batch.
func Waits(err error, msgs []jsonrpc.Message) (*limit.Refusal, bool) {
	var full *limit.Refusal
	return full, len(msgs) == 1 && errors.As(err, &full) && full.Waits()
}

// AwaitTurn waits until a call may begin. The error is the cause of ctx's end, or a refusal.
func (st *Starter) AwaitTurn(ctx context.Context, turn limit.Turn) (*limit.Pass, error) {
	began := time.Now()
	pass, err := turn.Wait(ctx, st.Draining)
	if st.Observers != nil {
		st.Observers.Happened(observe.Waited{Took: time.Since(began), Began: err == nil})
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return pass, err
}

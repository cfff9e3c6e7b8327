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

// What follows is for calls that a limit does not let begin: they wait for their turn. docs/limits.md.

// Origin says where the requests of an exchange come from.
func (st *Starter) Origin(x *Exchange) session.Origin {
	from := session.Origin{Header: x.HTTP.Header, Address: x.HTTP.RemoteAddr, Pass: x.Once.Pass, Admitted: x.Once.Admitted}
	if x.Modern != nil {
		from.ID = x.Modern.ID
	}
	switch below := st.Watched.At(x.HTTP); {
	case x.Muxed:
	case below != nil:
		from.Conn = below
	case x.From != nil && x.From.Node != "" && !x.From.Stays:
		from.Conn = st.Nodes.ClientOf(x.From)
	}
	return from
}

// AdmitAlone has an exchange begin that stands alone, if limits let it, or when it is its turn.
func (st *Starter) AdmitAlone(x *Exchange) (err error) {
	x.Once.Pass, err = st.Sessions.Gate.Alone(x.Principal, x.HTTP.RemoteAddr, x.Msgs)
	if full, ok := Waits(err, x.Msgs); ok {
		ctx, over := st.Sessions.AwaitOnce(x.HTTP.Context(), x.Client(st.Sessions), x.Once.Key)
		defer over()
		x.Once.Pass, err = st.awaitExchange(ctx, x, full)
	}
	x.Once.Admitted = err == nil
	return err
}

// Start begins the call of an exchange, at once or in its turn.
func (st *Starter) Start(x *Exchange, msgs []jsonrpc.Message, light bool) (Begun, error) {
	b, err := Begin(x.Session, msgs, light, x.Once, st.Origin(x))
	if err != nil {
		return st.BeginInTurn(x, msgs, light, err)
	}
	return b, nil
}

// BeginInTurn begins the call of an exchange that err has refused, once it is its turn. The
// error is err if it does not wait.
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
	defer from.Pass.Release() // what the call has not taken
	return Begin(x.Session, msgs, light, x.Once, from)
}

// BeginModernInTurn is beginInTurn for a modern request.
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
	defer from.Pass.Release() // what the call has not taken
	if b, err = st.BeginModern(x, from); err == nil && b.Call != nil && errors.Is(context.Cause(ctx), session.ErrCancelled) {
		b.Call.Withdraw("the client cancelled the request") // just now
	}
	return b, err
}

// awaitExchange waits for the turn of an exchange that full has refused, until ctx ends, or its client
// leaves another node.
func (st *Starter) awaitExchange(ctx context.Context, x *Exchange, full *limit.Refusal) (*limit.Pass, error) {
	if x.From != nil && x.Once.Name != "" {
		watched, attended := st.Nodes.WatchRequest(ctx, x.Once.Name)
		defer attended()
		ctx = watched
	}
	return st.AwaitTurn(ctx, full.Queue())
}

// Waits returns the refusal that err is, if it is one of a call that may wait: not of a batch.
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

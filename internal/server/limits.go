package server

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/limit"
	"holdfast/internal/observe"
	"holdfast/internal/panics"
	"holdfast/internal/reading"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows is for calls that a limit does not let begin: they wait for their turn, or their
// client is told when to try again. docs/limits.md.

// origin says where the requests of an exchange come from.
func (st *starter) origin(x *exchange) session.Origin {
	from := session.Origin{Header: x.r.Header, Address: x.r.RemoteAddr, Pass: x.once.pass, Admitted: x.once.admitted}
	if x.modern != nil {
		from.ID = x.modern.ID
	}
	switch below := st.watched.At(x.r); {
	case x.muxed:
	case below != nil:
		from.Conn = below
	case x.from != nil && x.from.Node != "" && !x.from.Stays:
		from.Conn = st.nodes.ClientOf(x.from)
	}
	return from
}

// admitAlone has an exchange begin that stands alone, if limits let it, or when it is its turn.
func (st *starter) admitAlone(x *exchange) (err error) {
	x.once.pass, err = st.sessions.Gate.Alone(x.principal, x.r.RemoteAddr, x.msgs)
	if full, ok := waits(err, x.msgs); ok {
		ctx, over := st.sessions.AwaitOnce(x.r.Context(), x.client(st.sessions), x.once.key)
		defer over()
		x.once.pass, err = st.awaitExchange(ctx, x, full)
	}
	x.once.admitted = err == nil
	return err
}

// origin says where the requests of a connection come from. pass may be nil.
func (m *mux) origin(pass *limit.Pass) session.Origin {
	return session.Origin{Address: m.client.address, Pass: pass}
}

// start begins the call of an exchange, at once or in its turn.
func (st *starter) start(x *exchange, msgs []jsonrpc.Message, light bool) (begun, error) {
	b, err := begin(x.session, msgs, light, x.once, st.origin(x))
	if err != nil {
		return st.beginInTurn(x, msgs, light, err)
	}
	return b, nil
}

// beginInTurn begins the call of an exchange that err has refused, once it is its turn. The
// error is err if it does not wait.
//
//go:noinline
func (st *starter) beginInTurn(x *exchange, msgs []jsonrpc.Message, light bool, err error) (b begun, _ error) {
	full, ok := waits(err, msgs)
	if !ok {
		return b, err
	}
	ctx, over := x.session.AwaitTurn(x.r.Context(), msgs[0].ID)
	defer over()
	from := st.origin(x)
	if from.Pass, err = st.awaitExchange(ctx, x, full); err != nil {
		return b, err
	}
	defer from.Pass.Release() // what the call has not taken
	return begin(x.session, msgs, light, x.once, from)
}

// beginModernInTurn is beginInTurn for a modern request.
//
//go:noinline
func (st *starter) beginModernInTurn(x *exchange, err error) (b begun, _ error) {
	full, ok := waits(err, x.msgs)
	if !ok {
		return b, err
	}
	ctx, over := st.sessions.AwaitOnce(x.r.Context(), x.client(st.sessions), x.once.key)
	defer over()
	from := st.origin(x)
	if from.Pass, err = st.awaitExchange(ctx, x, full); err != nil {
		return b, err
	}
	defer from.Pass.Release() // what the call has not taken
	if b, err = st.beginModern(x, from); err == nil && b.call != nil && errors.Is(context.Cause(ctx), session.ErrCancelled) {
		b.call.Withdraw("the client cancelled the request") // just now
	}
	return b, err
}

// awaitExchange waits for the turn of an exchange that full has refused, until ctx ends, or its client
// leaves another node.
func (st *starter) awaitExchange(ctx context.Context, x *exchange, full *limit.Refusal) (*limit.Pass, error) {
	if x.from != nil && x.once.name != "" {
		watched, attended := st.nodes.WatchRequest(ctx, x.once.name)
		defer attended()
		ctx = watched
	}
	return st.awaitTurn(ctx, full.Queue())
}

// waits returns the refusal that err is, if it is one of a call that may wait: not of a batch.
func waits(err error, msgs []jsonrpc.Message) (*limit.Refusal, bool) {
	var full *limit.Refusal
	return full, len(msgs) == 1 && errors.As(err, &full) && full.Waits()
}

// awaitTurn waits until a call may begin. The error is the cause of ctx's end, or a refusal.
func (st *starter) awaitTurn(ctx context.Context, turn limit.Turn) (*limit.Pass, error) {
	began := time.Now()
	pass, err := turn.Wait(ctx, st.draining)
	if st.observers != nil {
		st.observers.Happened(observe.Waited{Took: time.Since(began), Began: err == nil})
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return pass, err
}

// callInTurn makes a call on a connection that err has refused, once it is its turn. It does not
// wait. It is false if the call does not.
func (m *mux) callInTurn(s *session.Session, msgs []jsonrpc.Message, batch bool, err error) bool {
	full, ok := waits(err, msgs)
	if !ok {
		return false
	}
	ctx, over := s.AwaitTurn(m.ctx, msgs[0].ID)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == muxClosed {
		over()
		return true
	}
	m.waiting++
	turn := full.Queue() // here: calls have their turns in the order in which they came
	m.work.Go(func() {
		pass, err := m.h.starter.awaitTurn(ctx, turn)
		switch {
		case m.ctx.Err() != nil, errors.Is(context.Cause(ctx), session.ErrCancelled):
			pass.Release()
		case err != nil:
			m.elsewhere(msgs, batch, err)
		default:
			m.callAdmitted(msgs, batch, pass)
		}
		over()
		m.mu.Lock()
		m.waiting--
		m.mu.Unlock()
		reading.Wake(m.ready)
	})
	return true
}

// isAnyWaiting reports whether a call of the connection waits for its turn, or a request of revision 2026-07-28 for its
// answer.
func (m *mux) isAnyWaiting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting > 0
}

// callAdmitted makes a call that has waited for its turn.
func (m *mux) callAdmitted(msgs []jsonrpc.Message, batch bool, pass *limit.Pass) {
	var err error
	defer func() {
		pass.Release() // what the call has not taken
		if err != nil {
			m.fail(msgs, err)
		}
	}()
	defer panics.Catch(&err, m.h.logger, "a connection's request", "")
	m.call(msgs, batch, &forwardedExchange{}, pass)
}

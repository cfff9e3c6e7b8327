package mux

import (
	"context"
	"errors"

	"holdfast/internal/limit"
	"holdfast/internal/panics"
	"holdfast/internal/reading"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// What follows is for calls that a limit does not let begin: they wait for their turn, or their
// client is told when to try again. docs/limits.md.

// origin says where the requests of a connection come from. pass may be nil.
func (m *mux) origin(pass *limit.Pass) session.Origin {
	return session.Origin{Address: m.client.address, Pass: pass}
}

// callInTurn makes a call on a connection that err has refused, once it is its turn. It does not
// wait. It is false if the call does not.
func (m *mux) callInTurn(s *session.Session, msgs []jsonrpc.Message, batch bool, err error) bool {
	full, ok := exchange.Waits(err, msgs)
	if !ok {
		return false
	}
	ctx, over := s.AwaitTurn(m.ctx, msgs[0].ID)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == stateClosed {
		over()
		return true
	}
	m.waiting++
	turn := full.Queue() // here: calls have their turns in the order in which they came
	m.work.Go(func() {
		pass, err := m.front.Starter.AwaitTurn(ctx, turn)
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
	defer panics.Catch(&err, m.front.Logger, "a connection's request", "")
	m.call(msgs, batch, &forwarded{}, pass)
}

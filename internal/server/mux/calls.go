package mux

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/limit"
	"holdfast/internal/observe"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// call begins a call for requests. Its stream, or for a light call [mux.answerLights], writes its messages. before is as in
// [mux.dispatch]. pass is the pass of a call that has waited for its turn, or nil.
func (m *mux) call(msgs []jsonrpc.Message, batch bool, before *forwarded, pass *limit.Pass) {
	key := ""
	var err error
	if len(msgs) == 1 && msgs[0].Method != "initialize" {
		key, err = exchange.MessageKey(&msgs[0])
	}
	switch {
	case err != nil:
		m.fail(msgs, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", err))
		return
	case slices.ContainsFunc(msgs, func(msg jsonrpc.Message) bool { return m.clashes(m.key, msg.ID) }):
		m.fail(msgs, session.ErrDuplicate)
		return
	}
	if before == nil { // else the messages after it wait for it
		m.remote.awaitOrder(m.ctx)
	}
	s := m.session()
	if s == nil {
		m.forwardCall(msgs, batch, key, before)
		return
	}
	if len(msgs) == 1 && m.callOfHome(s, &msgs[0], key, pass) {
		return
	}
	values, header := m.client.values, m.client.header
	light := key == "" && m.front.Light(values, header, s, msgs)
	got, err := exchange.Begin(s, msgs, light, exchange.Once{Key: key}, m.origin(pass))
	switch {
	case errors.Is(err, session.ErrCancelled), err != nil && m.callInTurn(s, msgs, batch, err):
		return
	case err != nil:
		m.elsewhere(msgs, batch, err)
		return
	case got.Call == nil:
		at, _ := streaming.CursorAfter(values, got.Session, got.Number, "") // from the oldest event that is stored
		m.attach(got.Session, at, &msgs[0])
		return
	}
	x := m.newExchange(s, m.key, msgs)
	if got.Number == 0 {
		m.callLight(x, &lightCall{call: got.Call, batch: batch}, msgs)
		return
	}
	// The stream is attached to before the call runs: over HTTP, too, the client gets the stream's URL before.
	if err := x.begin(stream.Cursor{Stream: stream.ID{Number: got.Number}}); err != nil {
		got.Call.Abort(msgs, jsonrpc.Errorf(jsonrpc.CodeServer, "not delivered: its stream cannot be read: %v", err))
		m.fail(msgs, err)
		return
	}
	got.Call.Deliver(values, msgs, header)
}

// callLight delivers a light call, and answers it or queues it to wait for its answer.
func (m *mux) callLight(x *carried, l *lightCall, msgs []jsonrpc.Message) {
	x.light = l
	if m.follows() {
		l.msgs = msgs
	}
	l.since = time.Now()
	l.call.Deliver(m.client.values, msgs, m.client.header)
	if answers, done, _ := l.call.Answers(); done && sizeOf(answers) <= budget.Uncounted {
		switch {
		case x.madeAgain():
		case len(answers) > 0: // a cancelled call has none
			m.queue.text(answering.Append(nil, answers, l.batch))
		}
		return
	}
	l.call.Notify(m.ready)
	if !m.queue.light(x) {
		l.call.ConnectionLost()
		l.call.Answered()
	}
}

// sizeOf returns the number of bytes in answers.
func sizeOf(answers [][]byte) (n int) {
	for _, a := range answers {
		n += len(a)
	}
	return n
}

// attach answers a request with the stream of a call that has begun before, from a cursor on.
func (m *mux) attach(s *session.Session, at stream.Cursor, msg *jsonrpc.Message) {
	one := []jsonrpc.Message{*msg}
	x := m.newExchange(s, stream.SessionKey(s.Name()), one)
	if x.Door = observe.DoorResume; msg.Method != protocol.MethodResume {
		x.Door = observe.DoorKey
	}
	err := x.begin(at)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		m.fail(one, errNothingLeft)
	case errors.Is(err, session.ErrMoved) && m.front.Nodes != nil && (s != m.session() || m.follows()):
		m.forward(&forwarded{x: m.newExchange(nil, stream.SessionKey(s.Name()), one), requests: requests{msgs: one}})
	default:
		m.fail(one, err)
	}
}

// callOfHome makes a request of a deferred call ([session.Session.Home]), or for another session
// than the connection's. It returns false for other requests.
func (m *mux) callOfHome(s *session.Session, msg *jsonrpc.Message, key string, pass *limit.Pass) bool {
	home, defers, err := s.Home(m.client.values, msg, m.client.header)
	switch {
	case err != nil:
		m.elsewhere([]jsonrpc.Message{*msg}, false, err)
	case home != s:
		m.callInHome(home, msg)
	case defers:
		m.callAnswered(s, msg, key, pass)
	default:
		return false
	}
	return true
}

// callAnswered begins a deferred call, or finds the call that the same request has begun before, and answers the request at once.
func (m *mux) callAnswered(s *session.Session, msg *jsonrpc.Message, key string, pass *limit.Pass) {
	one := []jsonrpc.Message{*msg}
	got, err := exchange.Begin(s, one, false, exchange.Once{Key: key}, m.origin(pass))
	if err != nil {
		if !errors.Is(err, session.ErrCancelled) && !m.callInTurn(s, one, false, err) {
			m.elsewhere(one, false, err)
		}
		return
	}
	m.queue.text(got.Session.Deferral(m.client.values, got.Number, msg))
	if got.Call != nil {
		got.Call.Deliver(m.client.values, one, m.client.header)
	}
}

// callInHome makes a request that is for another session on this node.
func (m *mux) callInHome(home *session.Session, msg *jsonrpc.Message) {
	one := []jsonrpc.Message{*msg}
	from := m.origin(nil)
	from.Guest = m.key
	call, err := home.Begin(one, false, from)
	if err != nil {
		m.elsewhere(one, false, err)
		return
	}
	at, _ := streaming.CursorAfter(m.client.values, home, call.Number(), "")
	m.attach(home, at, msg)
	call.Deliver(m.client.values, one, m.client.header)
}

// origin returns the origin of the connection's requests. pass may be nil.
func (m *mux) origin(pass *limit.Pass) session.Origin {
	return session.Origin{Address: m.client.address, Pass: pass}
}

// callInTurn makes a call that a limit has refused with err, once it is the call's turn. It does
// not wait for that. It returns false if err does not let the call wait.
func (m *mux) callInTurn(s *session.Session, msgs []jsonrpc.Message, batch bool, err error) bool {
	full, ok := exchange.Waits(err, msgs)
	if !ok {
		return false
	}
	ctx, over := s.AwaitTurn(m.ctx, msgs[0].ID)
	ok = m.await(func() func() {
		turn := full.Queue() // not in the goroutine: calls have their turns in the order in which they came
		return func() {
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
		}
	})
	if !ok {
		over()
	}
	return true
}

// callAdmitted makes a call that has waited for its turn.
func (m *mux) callAdmitted(msgs []jsonrpc.Message, batch bool, pass *limit.Pass) {
	var err error
	defer func() {
		pass.Release() // if the call has not taken it
		if err != nil {
			m.fail(msgs, err)
		}
	}()
	defer panics.Catch(&err, m.front.Logger, "a connection's request", "")
	m.call(msgs, batch, &forwarded{}, pass)
}

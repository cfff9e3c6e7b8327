package mux

import (
	"errors"
	"io"
	"slices"

	"holdfast/internal/feature/resume"
	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/rpc"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// receive takes the client's messages, one after the other, until the client sends no more or the connection ends.
func (m *mux) receive() {
	for {
		data, err := m.out.pipe.Read()
		var left *jsonrpc.Error
		switch {
		case errors.As(err, &left):
			m.queue.text(jsonrpc.AppendError(nil, nil, left))
		case errors.Is(err, io.EOF):
			m.become(stateFinished)
			m.stopListens()
			return
		case err != nil:
			m.stop(err)
			return
		case !m.take(data):
			return
		}
	}
}

// take handles a message, or in old revisions a batch. It returns false when the connection has ended.
func (m *mux) take(data []byte) bool {
	if !m.queue.begin() {
		return false // the client learns that the connection has ended
	}
	defer m.queue.done()
	m.touch()
	msgs, batch, err := exchange.Parse(data)
	switch {
	case errors.Is(err, jsonrpc.ErrParse):
		m.reject(data, jsonrpc.Errorf(jsonrpc.CodeParse, "%v", err))
	case err != nil:
		m.reject(data, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", err))
	case m.refuses(msgs):
	case m.isModern(msgs, batch):
		m.takeModern(&msgs[0])
	case m.front.Modern.Eras.RefusesLegacy():
		m.refuseLegacy(msgs, batch)
	default:
		m.takeLegacy(msgs, batch)
	}
	return true
}

// takeLegacy takes messages of revisions that have sessions.
func (m *mux) takeLegacy(msgs []jsonrpc.Message, batch bool) {
	if e := exchange.CheckClear(msgs, false); e != nil {
		if exchange.Requests(msgs) > 0 { // only requests are answered
			m.queue.text(e.Answer(msgs, batch))
		}
		return
	}
	if err := m.fits(msgs, batch); err != nil {
		m.fail(msgs, err)
		return
	}
	m.dispatch(msgs, batch, nil)
}

// refuses reports whether the client must not send messages. If so, it has answered the requests among them, as it would their POST.
func (m *mux) refuses(msgs []jsonrpc.Message) bool {
	var why error
	var not *jsonrpc.Message
	if denied := streaming.Denial(m.client.rights); denied != nil {
		why, not = denied, &msgs[0]
	} else if not, why = m.front.Permitted(m.client.values, msgs); why == nil {
		return false
	}
	status, e := m.front.Answers.Explain(why)
	m.front.Answers.TellDenied(nil, status, why, m.front.Answers.Denied(m.client.request(), not, m.front.Asker(m.client.request())))
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			m.queue.text(jsonrpc.AppendError(nil, msgs[i].ID, e))
		}
	}
	return true
}

// reject answers text that is not a message. The error has the request's id if that can be read.
func (m *mux) reject(data []byte, e *jsonrpc.Error) {
	if id, answered := rpc.RequestID(data); answered {
		m.queue.text(jsonrpc.AppendError(nil, id, e))
	}
}

// dispatch handles messages, and reuses the array of msgs. If they were to be forwarded but their session has come here,
// before is their forwarded exchange, else nil. If the application's code panics, they fail and the connection goes on.
func (m *mux) dispatch(msgs []jsonrpc.Message, batch bool, before *forwarded) {
	var err error
	calls := msgs[:0]
	defer func() {
		if err != nil {
			m.fail(calls, err)
		}
	}()
	defer panics.Catch(&err, m.front.Logger, "a connection's request", "")
	for i := range msgs {
		calls = append(calls, msgs[i]) // so that it fails if serves panics
		if last := len(calls) - 1; m.serves(&calls[last]) {
			calls = calls[:last]
		}
	}
	if len(calls) > 0 {
		m.call(calls, batch, before, nil)
	}
}

// fits checks the messages against the state of the session.
func (m *mux) fits(msgs []jsonrpc.Message, batch bool) error {
	s := m.session()
	if s == nil { // the session's owner knows its revision
		return exchange.Check(msgs, false, exchange.StageOpen, "")
	}
	at := exchange.StageOf(s)
	if at == exchange.StageNew && !exchange.Initializes(msgs) && !slices.ContainsFunc(msgs, func(msg jsonrpc.Message) bool { return !m.namesSession(&msg) }) {
		at = exchange.StageNone
	}
	return exchange.Check(msgs, batch, at, s.Revision())
}

// namesSession reports whether a message names its session itself, by a token. Such a
// message needs no session of the connection.
func (m *mux) namesSession(msg *jsonrpc.Message) bool {
	switch msg.Kind {
	case jsonrpc.Request:
		return protocol.Resumes(msg.Method)
	case jsonrpc.Response:
		return true
	}
	return resume.Cancels(msg)
}

// serves answers requests to Holdfast itself, and hands over notifications and responses. It returns false for a request that makes a call.
func (m *mux) serves(msg *jsonrpc.Message) bool {
	switch {
	case msg.Kind != jsonrpc.Request:
		m.send(*msg)
	case !protocol.Resumes(msg.Method):
		return false
	case msg.Method == protocol.MethodResume:
		m.resume(msg)
	default:
		m.status(msg)
	}
	return true
}

// resume answers a requests/resume with the rest of the call that it names.
func (m *mux) resume(msg *jsonrpc.Message) {
	one := []jsonrpc.Message{*msg}
	s, at, err := streaming.ResumedAt(m.client.values, m.front.Sessions, m.client.principal, msg, "")
	switch {
	case err != nil:
		m.elsewhere(one, false, err)
	case m.clashes(stream.SessionKey(s.Name()), msg.ID):
		m.fail(one, errClash)
	default:
		m.attach(s, at, msg)
	}
}

// status answers requests/getStatus, or requests/getStatus/all.
func (m *mux) status(msg *jsonrpc.Message) {
	m.remote.awaitOrder(m.ctx)
	x := m.exchangeFor(exchange.ForRequest, msg)
	answer, err := m.forwardHome(&x)
	if errors.Is(err, placement.ErrHere) {
		x.Session = m.session()
		answer, err = m.front.Ask(&x)
	}
	if err != nil {
		m.fail(x.Msgs, err)
		return
	}
	m.queue.text(answer)
}

// exchangeFor returns an exchange of its own for a message from the connection.
func (m *mux) exchangeFor(what exchange.Purpose, msg *jsonrpc.Message) exchange.Exchange {
	return exchange.Exchange{Purpose: what, HTTP: exchange.OwnPost(m.client.request()), Principal: m.client.principal, Msgs: []jsonrpc.Message{*msg}, Mine: m.key}
}

// errClash refuses a request that the client could not tell from one in flight.
var errClash = jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "a request of another session with this id is in flight on this connection: resume it on another")

// elsewhere fails requests with err, unless err says that another node has the
// session of their call, or has to begin the call: then it forwards them.
func (m *mux) elsewhere(msgs []jsonrpc.Message, batch bool, err error) {
	var away *session.Redirect
	switch {
	case errors.Is(err, session.ErrMoved) && m.follows():
		m.makeAgain(msgs, batch)
	case m.front.Nodes == nil || !errors.As(err, &away):
		m.fail(msgs, err)
	case away.Key == m.key && m.session() != nil && !m.follows():
		m.fail(msgs, session.ErrMoved)
	case m.clashes(away.Key, msgs[0].ID):
		m.fail(msgs, errClash)
	default:
		m.forward(&forwarded{x: m.newExchange(nil, away.Key, msgs[:1]), requests: requests{msgs: msgs, at: away.Remote}})
	}
}

// send hands over a notification or a response. The client is not told if the backend
// does not accept it, as neither kind has an answer: a response that is not taken now is tried again.
func (m *mux) send(msg jsonrpc.Message) {
	early := m.cancels(&msg, m.leftBehind())
	m.remote.awaitOrder(m.ctx)
	if early == nil {
		again, err := m.handOver(&msg)
		if !again {
			m.notHandedOver(&msg, err)
			return
		}
		early = m.cancels(&msg, m.leftBehind())
	}
	m.inBackground(&msg, early)
}

// inBackground hands over a message that was not taken, on a goroutine of its own, after early. If there is no room for one, it waits.
func (m *mux) inBackground(msg *jsonrpc.Message, early *delivery) {
	done, ok := m.front.Untaken.Hold(msg)
	if !ok {
		m.handOverLater(msg, early)
		return
	}
	if !m.await(func() func() { return func() { defer done(); m.handOverLater(msg, early) } }) {
		done() // the connection has ended
	}
}

// handOverLater hands over a response that was not taken, or a cancellation that would overtake its call: it waits for early, which may
// be nil, and for the call.
func (m *mux) handOverLater(msg *jsonrpc.Message, early *delivery) {
	early.wait(m.ctx, orderPatience)
	m.notHandedOver(msg, exchange.UntilTaken(m.ctx, func() (again bool, err error) {
		m.cancels(msg, false).wait(m.ctx, orderPatience)
		return m.handOver(msg)
	}))
}

// notHandedOver logs why a message was not taken; nil: it was.
func (m *mux) notHandedOver(msg *jsonrpc.Message, err error) {
	if err != nil {
		m.front.Logger.Warn("message not delivered", "session", m.key, "method", msg.Method, "error", err)
	}
}

// leftBehind reports whether the connection's session was here and has left, and the connection itself continues its calls.
func (m *mux) leftBehind() bool { return m.follows() && m.isMoved() }

// handOver hands over a notification or a response to the node that has the session. again says that it may be taken later.
func (m *mux) handOver(msg *jsonrpc.Message) (again bool, err error) {
	x := m.exchangeFor(exchange.ForMessages, msg)
	_, err = m.forwardHome(&x)
	if errors.Is(err, placement.ErrHere) {
		err = m.session().Send(m.client.values, *msg, m.client.header)
		if m.leftBehind() && (errors.Is(err, session.ErrMoved) || msg.Method == protocol.MethodCancelled) {
			return true, session.ErrMoved // since a moment: it may have no requests any more
		}
	}
	var away *session.Redirect
	if errors.As(err, &away) {
		if x.Session = m.session(); !x.MayBeGuest(m.front.Sessions) {
			x = m.exchangeFor(exchange.ForNamed, msg)
		}
		_, err = m.front.Ask(&x)
	}
	return msg.Kind == jsonrpc.Response && m.passes(err), err
}

// passes reports whether a response that was not taken because of err may be taken later.
func (m *mux) passes(err error) bool {
	return errors.Is(err, session.ErrNotDelivered) || errors.Is(err, placement.ErrUnreached) || errors.Is(err, errOfOwner) ||
		m.follows() && errors.Is(err, session.ErrMoved) // more often than a placement follows it
}

// later reports whether to leave requests unanswered, as the client makes them again on its next connection; it ends this
// connection for that, unless the node is being drained anyway. The client would take an error for the end of the call.
func (m *mux) later(msgs []jsonrpc.Message, err error) bool {
	if !m.client.returns || !m.resumes() {
		return false
	}
	// Without a shared store no session outlives its node.
	closing := errors.Is(err, session.ErrMoved) || errors.Is(err, session.ErrClosing) && m.front.Sessions.Shared()
	passes := closing || errors.Is(err, stream.ErrConflict) || session.StoreErrorText(err) != ""
	for i := range msgs {
		msg := &msgs[i]
		key, _ := exchange.MessageKey(msg)
		again := msg.Method == protocol.MethodResume && passes || key != "" && closing
		if msg.Kind != jsonrpc.Request || !again {
			return false
		}
	}
	if !m.front.Life.IsDraining() {
		m.comeBack()
	}
	return true
}

// fail answers the requests among msgs with an error that explains err.
func (m *mux) fail(msgs []jsonrpc.Message, err error) {
	switch {
	case m.later(msgs, err):
		return
	case !errors.Is(err, session.ErrMoved):
	case m.isMoved():
		reading.Wake(m.ready) // the connection ends, and the client makes the requests again where the session is
		return
	default:
		err = session.ErrClosing // the session is about to leave, and takes on no calls
	}
	var ids [][]byte
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			ids = append(ids, msgs[i].ID)
		}
	}
	if text := m.refusal(ids, err); len(text) > 0 {
		m.queue.text(text[:len(text)-1])
	}
}

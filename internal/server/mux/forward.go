package mux

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"holdfast/internal/feature/idempotency"
	"holdfast/internal/feature/resume"
	"holdfast/internal/panics"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A forwarded is an exchange of a [mux] that another node serves: the session of the connection is there, or the client has resumed
// a call there by its token, or made it again under its key. The request is forwarded to the session's node, like one over
// Streamable HTTP, and the answer is written among the connection's others. If that node is lost, the answer continues as over
// HTTP. A forwarded is the sink of an answer that is a stream.
type forwarded struct {
	got placement.Answer
	requests
	x    *carried
	ctx  context.Context
	stop context.CancelFunc

	standalone *remoteStandalone // nil but for the standalone stream
	delivery   *delivery         // nil if no message may wait for it
	wanted     wanted            // guarded by traffic.mu

	policies int  // how many resume policies were passed on: each request has one
	left     int  // how many requests were not answered
	done     bool // all were answered
}

// A requests has the forwarded messages of a [mux].
type requests struct {
	msgs   []jsonrpc.Message
	batch  bool
	at     *session.Remote // where the session was just now, or nil
	again  bool            // the call may have begun there before
	unsafe bool            // the client does not make the requests again, as they have no key
}

// wanted says whether the answer to forwarded requests is still wanted.
type wanted uint8

const (
	wantedByClient    wanted = iota
	wantedNoMore             // the client has cancelled the requests: an answer may not come
	wantedBySuccessor        // a newer exchange has the requests' ids: no answer is written
)

// forward forwards an exchange to another node, on a goroutine of its own.
func (m *mux) forward(s *forwarded) {
	s.left = len(s.x.ids)
	s.x.forward = s
	s.ctx, s.stop = context.WithCancel(m.ctx)
	if !m.carry(s.x, true, func() bool { return m.front.Nodes.Go(func() { s.over(s.read()) }) }) {
		s.stop()
		s.delivery.end() // no message waits for it any more
		m.comeBack()     // if the connection has not ended, this node does
	}
}

// read places the request, and returns when it was answered, or the error that it failed with.
func (s *forwarded) read() (err error) {
	m := s.x.m
	defer panics.Catch(&err, m.front.Logger, "a connection's request to another node", "")
	r := exchange.OwnPost(m.client.request()).WithContext(s.ordered(s.ctx))
	x := exchange.Exchange{Purpose: exchange.ForMessages, HTTP: r, Principal: m.client.principal, Msgs: s.msgs, Batch: s.batch, Muxed: true, MuxDoor: m.client.door, Unsafe: s.unsafe, Mine: m.key}
	if s.msgs[0].Kind == jsonrpc.Request && protocol.Resumes(s.msgs[0].Method) {
		x.Purpose = exchange.ForRequest
	}
	x.Once.Again = s.again
	s.got.Events = s
	p := m.front.Place(&s.got, &x)
	p.InSession(s.x.key, s.at)
	err = p.Run(placement.ErrNotHere)
	if !errors.Is(err, placement.ErrHere) {
		s.delivery.end() // the messages after it need not wait
	}
	moved := s.got.Ending == placement.EndsMoved
	if err == nil && moved {
		err = session.ErrMoved
	}
	begun := p.Begun() || moved // then the call may have run
	switch {
	case err != nil && begun && s.unsafe && m.client.returns && m.resumes():
		m.comeBack() // for the rest of the call, which has a token
		return nil
	case err != nil && begun && s.unsafe:
		return fmt.Errorf("%w: %w", placement.ErrUnknown, err)
	case err != nil:
		return err
	case !placement.IsEvents(s.got.Header()):
		text, err := s.got.Body()
		if err == nil && text == nil && s.got.Status() == http.StatusNoContent {
			err = errNothingLeft
		}
		if err == nil && text != nil {
			s.say(append(text, '\n'), true)
		}
		return err
	case s.got.Ending != placement.EndsItself, s.isCancelled(), p.Taken():
		return nil
	}
	return stream.ErrTrimmed // else the stream would have had its response
}

// follows reports whether the connection itself continues the calls of its session
// after that has left: its client can't connect to the session's new node.
func (m *mux) follows() bool { return !m.client.returns && m.front.Nodes != nil }

// madeAgain reports whether a light call was not answered, as its session has left, and
// is made again on the session's new node: by the client, which comes back there, or
// else by this connection.
func (x *carried) madeAgain() bool {
	m := x.m
	switch {
	case !m.client.returns && !m.follows() || !x.light.call.Retriable():
		return false
	case m.follows():
		m.makeAgain(x.light.msgs, x.light.batch)
	}
	return true
}

// makeAgain makes requests of the connection's own session on that session's new node. They did not begin here, or may be made again.
func (m *mux) makeAgain(msgs []jsonrpc.Message, batch bool) {
	m.forward(&forwarded{x: m.newExchange(nil, m.key, msgs), requests: requests{msgs: msgs, batch: batch, again: true}, delivery: newDelivery()})
}

// errNothingLeft answers a client that resumes a call after it has received the response.
var errNothingLeft = jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "all was said before this, the response too")

// over ends the exchange after [forwarded.read] returned err. It answers with an error if need be, or serves the requests here if
// their session has come here.
func (s *forwarded) over(err error) {
	m := s.x.m
	m.freeIDs(s.x)
	switch {
	case s.ctx.Err() != nil, err == nil: // if ctx is done, a newer exchange has superseded it or the connection has ended
	case errors.Is(err, placement.ErrHere):
		m.settle(s.x.key)
		m.dispatch(slices.Clone(s.msgs), s.batch, s)
	default:
		s.fail(err)
	}
	s.delivery.end()
	s.stop()
	m.drop(s.x)
}

// fail answers with an error, or ends the connection so that the client comes back for the rest.
func (s *forwarded) fail(err error) {
	m := s.x.m
	if errors.Is(err, session.ErrNotFound) && (s.x.key != m.key || s.again) {
		err = idempotency.ErrGone
		if s.msgs[0].Method == protocol.MethodResume {
			err = resume.ErrBadToken
		}
	}
	if status, _ := m.front.Answers.Explain(err); status == http.StatusServiceUnavailable && !s.unsafe && m.client.returns && m.resumes() {
		m.comeBack()
		return
	}
	s.write(m.refusal(s.x.ids, err))
}

// say writes messages to the client. done says that the last response is among them.
func (s *forwarded) say(lines []byte, done bool) {
	if done {
		s.got.Ending = max(s.got.Ending, placement.EndsAnswered)
		s.x.m.freeIDs(s.x) // before the client gets the response
	}
	s.write(lines)
}

// write writes messages to the client, unless a newer exchange has the ids. An error ends the connection.
func (s *forwarded) write(lines []byte) {
	m := s.x.m
	if m.remote != nil {
		select {
		case <-m.remote.serving:
		case <-s.ctx.Done():
			return
		}
	}
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	if m.wants(s) == wantedBySuccessor || m.out.err != nil {
		return
	}
	if m.out.err = m.out.pipe.Write(lines); m.out.err != nil {
		m.stop(m.out.err)
	}
}

// Open implements [placement.Sink].
func (s *forwarded) Open(head http.Header) {
	s.delivery.end()
	if s.standalone != nil {
		s.standalone.begin(head)
	}
}

// Append implements [placement.Sink].
func (s *forwarded) Append(text, id, data []byte) []byte {
	if s.standalone != nil && len(id) > 0 {
		s.standalone.last = string(id)
	}
	if len(data) == 0 {
		return text
	}
	s.done = s.answers(data) || s.done
	if jsonrpc.String(jsonrpc.Field(data, "method")) == protocol.MethodResumePolicy {
		if s.policies++; s.policies >= len(s.x.ids) {
			s.x.Announced.Store(true)
		}
	}
	return s.x.Append(text, id, data)
}

// Write implements [placement.Sink].
func (s *forwarded) Write(lines []byte) error {
	err := s.x.m.hears(s.ctx)
	if err == nil && len(lines) > 0 {
		s.say(lines, s.done)
	}
	return err
}

// answers reports whether a message is the response to the last unanswered request.
func (s *forwarded) answers(data []byte) bool {
	id := jsonrpc.Field(data, "id")
	if id == nil || jsonrpc.Field(data, "method") != nil {
		return false
	}
	for _, mine := range s.x.ids {
		if string(jsonrpc.Key(mine)) == string(jsonrpc.Key(id)) {
			s.left--
			return s.left == 0
		}
	}
	return false
}

// isCancelled reports whether the client has cancelled the requests.
func (s *forwarded) isCancelled() bool { return s.x.m.wants(s) == wantedNoMore }

// forwardRest continues an exchange after its session has left this node: it forwards a
// request to resume the call, or answers outcome unknown if the call has no token. It
// returns false if the connection must end with the session.
func (x *carried) forwardRest() bool {
	m := x.m
	if m.front.Nodes == nil || x.Session == m.session() && !m.follows() {
		return false
	}
	if other := m.foreignWith(x.ids[0]); other != nil && other.forward != nil {
		return true // the client has resumed the call again
	}
	at := x.Reader.Cursor()
	token, ok := x.Session.Resumes().Token(at.Stream.Number, x.ids[0])
	if !ok {
		m.freeIDs(x)
		err := jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "outcome unknown: %v", session.ErrMoved)
		m.say(m.refusal(x.ids, err))
		return true
	}
	params := jsonrpc.Object("resumeToken", token)
	if at.Seq > 0 {
		name, tail := x.Session.StreamName(at.Stream.Number)
		id := append(ticket.AppendEvent(nil, name, at.Epoch, at.Seq), tail...)
		params, _ = jsonrpc.Set(params, jsonrpc.Quote(string(id)), "_meta", protocol.MetaLastEventID)
	}
	raw := jsonrpc.AppendRequest(nil, x.ids[0], protocol.MethodResume, params)
	msg := jsonrpc.Message{Kind: jsonrpc.Request, ID: x.ids[0], Method: protocol.MethodResume, Params: params, Raw: raw}
	to := &carried{m: m, key: x.key, ids: x.ids}
	m.forward(&forwarded{x: to, requests: requests{msgs: []jsonrpc.Message{msg}}})
	return true
}

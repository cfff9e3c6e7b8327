package session

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"holdfast/backend"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/ownprogress"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Emit implements [backend.Sink].
func (l *link) Emit(of backend.Call, m jsonrpc.Message) {
	if !l.repair(&m) {
		return
	}
	call, ours := of.(*Call)
	if of != nil && (!ours || call != nil && call.s != l.s) {
		l.s.m.logger.Error("message dropped: the backend sent it in a call that is not one of its session", "session", l.s.Name(), "method", m.Method)
		return
	}
	l.take(call, &m)
}

// take takes a message of the backend, of a call or of none (nil). A request with the name of a notification is
// refused, and a notification with the name of a request is dropped.
func (l *link) take(call *Call, m *jsonrpc.Message) {
	switch why := protocol.CheckKind(m); {
	case m.Kind == jsonrpc.Response:
		l.responded(call, m)
	case why != nil && m.Kind == jsonrpc.Request:
		l.reply(jsonrpc.AppendError(nil, m.ID, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "%s", why.Message)))
	case why != nil:
		l.s.m.logger.Warn("message dropped", "session", l.s.Name(), "error", why)
	case m.Kind == jsonrpc.Request:
		l.request(call, m)
	default:
		l.notified(call, m)
	}
}

// EmitUnrelated implements [backend.Sink].
func (l *link) EmitUnrelated(m jsonrpc.Message) {
	if !l.repair(&m) {
		return
	}
	call := l.s.standalone
	if m.Kind == jsonrpc.Response {
		call = nil // it is matched by its id
	}
	l.take(call, &m)
}

// repair makes sure that a message of the backend has a text, in one line: else it would
// break a transport. A response that cannot be repaired becomes an error; for other
// messages repair returns false. That a text of one line is JSON is the backend's business.
func (l *link) repair(m *jsonrpc.Message) bool {
	if len(m.Raw) > 0 && bytes.IndexByte(m.Raw, '\n') < 0 && bytes.IndexByte(m.Raw, '\r') < 0 &&
		(m.ID != nil || m.Kind == jsonrpc.Notification) {
		return true
	}
	raw := bytes.Clone(m.Raw)
	switch {
	case len(raw) > 0:
	case m.Kind == jsonrpc.Notification:
		raw = jsonrpc.AppendRequest(nil, nil, m.Method, m.Params)
	default:
		raw = m.WithID(m.ID)
	}
	mended, err := jsonrpc.Parse(raw)
	if err == nil && mended.Kind != m.Kind {
		err = fmt.Errorf("%w: it is no %v", jsonrpc.ErrInvalid, m.Kind)
	}
	if err == nil {
		*m = mended
		return true
	}
	l.s.m.logger.Error("what the backend said is no message", "session", l.s.Name(), "error", err)
	if m.Kind != jsonrpc.Response || m.ID == nil {
		return false
	}
	id := m.ID // a client waits for this response
	*m, err = jsonrpc.Parse(jsonrpc.AppendError(nil, id, jsonrpc.Errorf(jsonrpc.CodeInternal, "internal error: the server's answer is no JSON-RPC message")))
	return err == nil
}

// responded takes the backend's response to its call. A response for another call than the one in flight under its id
// is too late. Rare cases have functions of their own: the goroutine that answers a call has a stack of 4 KiB (see
// growStack in backend/sdk), and to move it takes a fifth of the call's time.
func (l *link) responded(call *Call, m *jsonrpc.Message) {
	s := l.s
	if l.asksInRounds(call, m) {
		return
	}
	s.mu.Lock()
	if l.over {
		s.mu.Unlock()
		return
	}
	l.spoke = true
	if s.backend.own.answer(m) {
		s.mu.Unlock()
		return
	}
	rq := s.requests.take(m.ID, call)
	if rq == nil {
		s.mu.Unlock()
		return // the request was cancelled
	}
	s.lateProgress = s.lateProgress || mayGoOn(rq.call, m.Result)
	list := s.Tools.Version()
	var initialize []byte // the client's, if the session begins with this answer
	if rq.call.method == protocol.MethodInitialize {
		initialize = s.initialized(m)
	}
	s.mu.Unlock()
	if initialize != nil {
		s.begun(initialize)
	}
	adds := rq.call.method == protocol.MethodToolsList && s.listed(rq, m.Result, list)
	data := m.Raw
	if string(m.ID) != rq.id {
		data = m.WithID([]byte(rq.id)) // as its client spelled it
	}
	if m.Result != nil {
		data = s.changed(rq.call.method, data)
	}
	if adds {
		data = s.addTools(data)
	}
	if refusal := s.carrier.checkInput([]byte(rq.id), m); refusal != nil {
		data = refusal
	}
	rq.answer(data)
}

// initialized takes in the answer to the client's initialize, and returns the initialize if the session has begun with it. s.mu is held.
func (s *Session) initialized(m *jsonrpc.Message) (initialize []byte) {
	s.revision = jsonrpc.String(jsonrpc.Field(m.Result, "protocolVersion"))
	if s.revision != "" {
		initialize = s.backend.initialize
	} else if m.Error == nil {
		*m = noRevision(*m)
	}
	s.noteOffer(m.Result)
	return initialize
}

// begun notes that the session has begun with an initialize. It is called before the client gets the answer: from then on the
// client finds the session on any node, and after a loss of power: as it is, or, if it could not be stored, not at all.
func (s *Session) begun(initialize []byte) {
	s.m.Kinds.Spoke(s.m.logger, time.Now(), jsonrpc.Field(initialize, "params", "clientInfo"), s.Revision())
	if s.m.shared != nil {
		s.noteStored(true)
		_ = s.m.sync()
	}
}

// listed takes in the answer to a tools/list, which was given at a version of the list, and reports whether our tools have to be added.
func (s *Session) listed(rq *inflight, result []byte, at int32) (adds bool) {
	listed := s.Tools.Learn(result, at, rq.list == at)
	s.events.toolsPage(result)
	if listed && s.m.shared != nil { // the next owner cannot ask before it opens a backend
		s.noteSession(nil, true)
		s.flushInBackground()
	}
	return rq.adds && !s.Tools.Clashes() && result != nil
}

// addTools adds our tools to an answer to tools/list.
func (s *Session) addTools(data []byte) []byte {
	var host hosts.Host
	locked(s, func() {
		host = s.patience.host
		s.patience.hears(s)
	})
	return s.m.added.Add(s, data, host)
}

// changed returns the answer to a request of a method as our own services change it.
func (s *Session) changed(method string, data []byte) []byte {
	if protocol.Opens(method) && !s.single && !s.m.opts.Stateless {
		data = idempotency.Advertise(data)
	}
	for f := range s.offered {
		data = f.Change(method, data)
	}
	return data
}

// noRevision returns the error that replaces an answer to initialize without a revision: no client takes such an
// answer, and no session begins with it.
func noRevision(m jsonrpc.Message) jsonrpc.Message {
	e := jsonrpc.Errorf(jsonrpc.CodeServer, "the server has answered initialize with a result that has no protocolVersion: is it an MCP server?")
	return protocol.Parsed(jsonrpc.AppendError(nil, m.ID, e), m)
}

// request takes a request of the backend to the client, under an id that is
// unique in the session for as long as it lives. A ping is answered here, whether or not the client is connected. See
// docs/decisions/0033-pings-of-servers.md.
func (l *link) request(call *Call, m *jsonrpc.Message) {
	s := l.s
	if m.Method == protocol.MethodPing {
		l.reply(jsonrpc.AppendResult(nil, m.ID, nil))
		return
	}
	call, id, refusal := l.admit(call, m)
	if refusal != nil {
		l.reply(jsonrpc.AppendError(nil, m.ID, refusal))
	}
	if call == nil {
		return
	}
	heir := false
	locked(s, func() { heir = call.isHeir() })
	data := m.WithID(s.askedID(call, id))
	switch {
	case call.emit(data, true):
		if heir {
			call.record.inherits.heir.Asked(data)
		}
	case s.modern == "":
		s.standalone.emit(data, true)
	default:
		s.asked.take(id)
		l.refuse(*m, "the request that it belongs to is over")
	}
}

// admit puts a request of the backend on record, and returns the call of the client that is asked, and the request's number; no call: it is
// refused, or the link is over.
func (l *link) admit(of *Call, m *jsonrpc.Message) (call *Call, id int64, refusal *jsonrpc.Error) {
	s := l.s
	refused := func(why string) (*Call, int64, *jsonrpc.Error) { return nil, 0, refusalOf(m, why) }
	s.mu.Lock()
	defer s.mu.Unlock()
	if refusal = s.doesNotKnow(s.backend.initialize, m.Method); refusal != nil {
		return nil, 0, refusal
	}
	switch {
	case s.m.opts.Stateless: // there is no session in which an answer could come
		return refused("a stateless endpoint cannot ask its client")
	case len(m.ID) > jsonrpc.MaxName:
		return refused("its id is too long")
	case l.over:
		return nil, 0, nil
	case s.asked.len() >= mostServerRequests:
		return refused("too many requests wait for the client's answer")
	}
	guessed := false
	if of == nil {
		call, guessed = s.guessCall(true)
		guessed = guessed || m.Method == protocol.MethodListRoots // no call needs the roots: the end of that one does not answer it
	} else {
		call = heirOf(of, nil)
	}
	switch {
	case call.isHeir() && s.use.isLeft():
		return refused("its client has left")
	case call == s.standalone && s.modern != "":
		return refused("no request is in flight whose client could be asked")
	}
	if refusal = s.mayNotAsk(s.backend.initialize, call.method, m); refusal != nil {
		return nil, 0, refusal
	}
	return call, s.asked.add(serverRequest{link: l, id: bytes.Clone(m.ID), method: m.Method, call: call, guessed: guessed}, s.lease.Epoch), nil
}

// refuse answers a request of the backend in the client's place.
func (l *link) refuse(m jsonrpc.Message, why string) {
	l.reply(jsonrpc.AppendError(nil, m.ID, refusalOf(&m, why)))
}

func refusalOf(m *jsonrpc.Message, why string) *jsonrpc.Error {
	return jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%s: %s", m.Method, why)
}

// reply gives the backend our own response to a request of it. A backend that is still being opened gets the response when it is open.
func (l *link) reply(response []byte) {
	s := l.s
	m, err := jsonrpc.Parse(response)
	if err != nil {
		return
	}
	waits := false
	locked(s, func() {
		if waits = l.conn == nil && !l.over; waits && len(l.replies) < mostServerRequests {
			l.replies = append(l.replies, m)
		}
	})
	if !waits {
		s.m.work.Go(func() { l.replyNow(m) }) // the backend may be in the middle of its own writing
	}
}

// replyNow delivers our own response to an open backend.
func (l *link) replyNow(m jsonrpc.Message) {
	if err := l.deliver(backend.Inbound{Message: m}); err != nil {
		l.s.m.logger.Debug("response of ours not delivered", "session", l.s.Name(), "error", err)
	}
}

// notified takes a notification of the backend to the client.
func (l *link) notified(call *Call, m *jsonrpc.Message) {
	s := l.s
	s.mu.Lock()
	if l.over {
		s.mu.Unlock()
		return
	}
	data := m.Raw
	switch m.Method {
	case protocol.MethodToolsListChanged, protocol.MethodResourcesListChanged, protocol.MethodPromptsListChanged:
		s.m.sleepers.relisted(s.Server())
	}
	switch m.Method {
	case protocol.MethodCancelled:
		// It names a request of the backend's, which the client knows by our id,
		// and goes where that one went.
		id, c := s.asked.takeCancelled(l, jsonrpc.Field(m.Params, "requestId"))
		if c == nil {
			s.mu.Unlock()
			return
		}
		c.client.answered()
		call, data = c, cancelled(s.askedID(c, id), m.Params)
		if c.isHeir() && s.modern == "" {
			defer s.standalone.emit(data, false) // the client may have been asked there, or by one of our tools
		}
	case protocol.MethodToolsListChanged:
		s.Tools.Forget()
		if call == nil || s.modern == "" { // else the call listens to it
			call = s.standalone
		}
	case protocol.MethodResourcesListChanged, protocol.MethodPromptsListChanged,
		protocol.MethodResourceUpdated, "notifications/elicitation/complete":
		if call == nil {
			call = s.standalone
		}
	case protocol.MethodAcknowledged:
		if s.requests.acknowledgedAgain(call) {
			s.mu.Unlock()
			return
		}
	case protocol.MethodProgress:
		if call == nil || call == s.standalone {
			call = s.callByToken(jsonrpc.Field(m.Params, "progressToken"))
		} else {
			call = heirOf(call, m.Params)
		}
		if call == nil {
			s.mu.Unlock()
			s.m.logger.Debug("progress of no call in flight not told", "session", s.Name())
			return
		}
		var p *ownprogress.Pulse
		if r := call.record; r != nil {
			if r.progress != nil && !r.progress.passes(m.Params) {
				s.mu.Unlock()
				return
			}
			p = ownprogress.Of(r.pulses, m.Params)
		}
		if p != nil {
			call.tell(p.Hear(m, s.m.clock()), false)
			s.mu.Unlock()
			s.log.Flush()
			call.pace.Await(&s.m.pace, paced{call})
			return
		}
	default:
		if call == nil {
			call, _ = s.guessCall(false)
		} else {
			call = heirOf(call, nil)
		}
	}
	s.mu.Unlock()
	if s.modern != "" {
		if call != s.standalone { // else no client listens
			call.emit(data, false)
		}
		return
	}
	if !call.emit(data, false) && m.Method != protocol.MethodProgress {
		// The call is over, but the notification may still be of use.
		s.standalone.emit(data, false)
	}
}

func cancelled(id, params []byte) []byte {
	params, _ = jsonrpc.Set(params, id, "requestId")
	return jsonrpc.AppendRequest(nil, nil, protocol.MethodCancelled, params)
}

// callByToken returns the call that gave a progress token, or nil: the call has ended, or never was, and no client waits for
// its progress (2025-11-25, Progress). If several clients of a carrier have chosen one token, it is no call's. s.mu is held.
func (s *Session) callByToken(token []byte) *Call {
	if len(token) == 0 || string(token) == "null" {
		return s.standalone // no client takes it for the progress of a call
	}
	key := string(jsonrpc.Key(token))
	if call := s.requests.withToken(s.modern != "", func(t string) bool { return t == key }); call != nil {
		return call
	}
	// Some servers make a text of a number, and some clients a number of that.
	key = strings.Trim(key, `"`)
	if call := s.requests.withToken(s.modern != "", func(t string) bool { return strings.Trim(t, `"`) == key }); call != nil {
		return call
	}
	if s.lateProgress {
		return s.standalone // it may be the progress of a task, after its call has ended
	}
	return nil
}

// mayGoOn reports whether a result says that its call has become a task of the backend: its progress goes on under the call's token.
func mayGoOn(c *Call, result []byte) bool {
	return len(c.tokens) > 0 && bytes.Contains(result, []byte(`"task"`)) && jsonrpc.Field(result, "task") != nil
}

// guessCall returns the call of a message for which the backend names none: the only call in flight. If there are several,
// the message goes to the standalone stream; but a request (asks), which needs an answer, goes to one of the calls, a
// tool's if there is one, if the standalone stream has no reader. guessed says that it may be of another. s.mu is held.
func (s *Session) guessCall(asks bool) (call *Call, guessed bool) {
	var only *Call
	many := false
	for rq := range s.requests.each {
		c := rq.call
		if rq.ours || c.method == protocol.MethodInitialize || s.owner(c.method) != nil {
			continue // no backend has it
		}
		many = many || only != nil && only != c
		only = c
	}
	switch {
	case only == nil:
		return s.standalone, false
	case !many:
		return only, false
	case asks && !s.streams.IsRead(standalone):
		for rq := range s.requests.each {
			if rq.call.method == "tools/call" && !rq.ours {
				return rq.call, true
			}
		}
		return only, true
	}
	return s.standalone, false
}

package session

import (
	"bytes"
	"context"
	"math"
	"net/http"
	"slices"
	"time"

	"holdfast/backend"
	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/handoff"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows hands calls off: a request that takes longer than hosts wait is answered with a
// handle, and its call ends with that. Another call, an heir, goes on with the request. What
// the backend says is the heir's from then on, and so is the response. See
// docs/decisions/0027-hand-off.md.

// sealHandOff is what the mark of a handle is for.
const sealHandOff = "holdfast hand-off"

// A handOff is what is known of a call whose requests may be handed off, or of an heir. It is
// written with Session.mu and Call.mu held.
type handOff struct {
	began time.Time // when the call began; zero for an heir
	heirs []*Call   // that go on with requests of the call

	isHeir bool
	of     *Call  // whose request the heir goes on with; nil if that was on another node
	from   uint64 // the number of that one's stream, or of its journal; 0: it had none
	tool   string // that was called
	questions
}

// questions are requests of the backend that an heir's client has yet to be told. Guarded by
// Call.mu.
type questions struct {
	waiting  [][]byte
	attended int // how many of our tools wait for the heir in its session
}

// handOffRetry is how long a call that could not be handed off goes on as it was before it is
// tried again.
const handOffRetry = time.Second

// handsOff reports whether calls are handed off here.
func (m *Manager) handsOff() bool { return m.opts.HandOffAfter != nil && !m.opts.Stateless }

// takesHandOffs reports whether the client of a request is handed calls off: one that knows
// tasks is given tasks. s.mu is held.
func (s *Session) takesHandOffs(m *jsonrpc.Message, host hosts.Host) bool {
	host.Heard = true
	return s.m.handsOff() && s.m.opts.HandOffAfter(s.Server(), handoff.ToolWait, host) > 0 && !polls(s, m)
}

// polls reports whether the client of a modern request is given a task, and asks for that.
func polls(s *Session, m *jsonrpc.Message) bool {
	return s.modern != "" && s.m.opts.Tasks &&
		jsonrpc.Field(m.Params, "_meta", protocol.MetaClientCapabilities, "extensions", protocol.ExtensionTasks) != nil
}

// isPolled reports whether a request is a task, or may become one: of revision 2025-11-25 by the param "task".
func (c *Call) isPolled(m *jsonrpc.Message) bool {
	return c.deferred() != nil || jsonrpc.Field(m.Params, "task") != nil || m.Method == protocol.MethodCallTool && polls(c.s, m)
}

// handOffAfter returns after which time a request is handed off; 0: never. The client of one whose _meta says so waits
// for as long as it takes. s.mu is held.
func (s *Session) handOffAfter(c *Call, m *jsonrpc.Message, host hosts.Host) time.Duration {
	if m.Method != protocol.MethodCallTool || c.isHeir() || !s.takesHandOffs(m, host) {
		return 0
	}
	tool := toolOf(m)
	if handoff.IsTool(tool) || c.isPolled(m) || string(jsonrpc.Field(m.Params, "_meta", handoff.Meta)) == "false" {
		return 0
	}
	return s.m.opts.HandOffAfter(s.Server(), tool, host)
}

// notHandedOff returns a request as the backend gets it, if that hands calls off, which its tools say, and is not to do so: if the
// request is a task, or may become one, which would end with a handle; or if the backend's tools have other names here, so that
// its handle is of no use to the client.
func (c *Call) notHandedOff(m jsonrpc.Message) jsonrpc.Message {
	if m.Method != protocol.MethodCallTool {
		return m
	}
	mayBecome := c.s.modern != "" && c.s.m.opts.Tasks
	nested := c.s.patience.nested.Load()
	if !nested && c.deferred() == nil && !mayBecome {
		return m // as nearly always
	}
	c.s.mu.Lock()
	clash := c.s.tools.clash && !handoff.IsTool(toolOf(&m)) && (c.deferred() != nil || polls(c.s, &m))
	nested = nested && c.s.takesHandOffs(&m, c.s.patience.hostOf(c.s, &m))
	c.s.mu.Unlock()
	if !clash && !nested {
		return m
	}
	params, ok := jsonrpc.Set(m.Params, []byte("false"), "_meta", handoff.Meta)
	if !ok {
		return m
	}
	changed, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, m.ID, m.Method, params))
	if err != nil {
		return m
	}
	return changed
}

// mostWait returns how long one of our tools waits, for a host, for a call of a tool.
func (s *Session) mostWait(tool string, host hosts.Host) time.Duration {
	host = host.MayAsk()
	after := s.m.opts.HandOffAfter(s.Server(), handoff.ToolWait, host)
	if own := s.m.opts.HandOffAfter(s.Server(), tool, host); own > 0 && tool != "" {
		after = min(after, own)
	}
	return handoff.Most(after)
}

// addLate has a request handed off when it has taken long, and its client sent progress meanwhile. s.mu is held.
func (s *Session) addLate(c *Call, rq *inflight, m *jsonrpc.Message) {
	switch m.Method {
	case protocol.MethodCallTool, protocol.MethodToolsList, protocol.MethodGetPrompt, protocol.MethodReadResource:
	default:
		return
	}
	host := s.patience.hostOf(s, m)
	every, kept := c.keeps(m, host)
	host.Kept = kept
	after := s.handOffAfter(c, m, host)
	rq.adds = m.Method == protocol.MethodToolsList && s.takesHandOffs(m, host)
	if after <= 0 && every <= 0 || c.isHeir() {
		return
	}
	l := &lateRequest{s: s, rq: rq, tool: toolOf(m)}
	now := s.m.clock()
	if every > 0 {
		l.pulse = &pulse{every: every, due: now + every, token: bytes.Clone(jsonrpc.Field(m.Params, "_meta", "progressToken"))}
		of := c.recorded()
		of.pulses = append(of.pulses, l.pulse)
		s.patience.wake(s, l.pulse.due)
	}
	if after > 0 {
		took := time.Duration(0)
		if s.m.shared != nil { // the note of the call has when it began, and that of its heir the request
			if c.recorded().handOff == nil {
				c.record.handOff = &handOff{}
			}
			if c.record.handOff.began.IsZero() {
				c.record.handOff.began = time.Now()
			}
			took = time.Since(c.record.handOff.began)
			l.msgs = []jsonrpc.Message{*m}
		}
		if token := jsonrpc.Field(m.Params, "_meta", "progressToken"); token != nil {
			l.tokens = []string{string(jsonrpc.Key(token))}
		}
		l.after(max(after-took, 1))
	}
	rq.late = l
}

// A lateRequest is a request that is to be handed off, if it is still in flight when its time
// has come, or whose client is sent progress.
type lateRequest struct {
	s      *Session
	rq     *inflight
	tool   string
	tokens []string
	msgs   []jsonrpc.Message // the request, where the store is shared
	due    time.Duration     // when it is handed off, by the manager's clock; 0: it is not; guarded by Session.mu
	pulse  *pulse            // nil if no progress is sent; guarded by Session.mu
}

// after has it handed off after a time. s.mu is held.
func (l *lateRequest) after(d time.Duration) {
	l.due = l.s.m.clock() + d
	l.s.patience.wake(l.s, l.due)
}

// again has it tried again, if the request is still in flight.
func (l *lateRequest) again(d time.Duration) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.inFlight[string(jsonrpc.Key([]byte(l.rq.id)))] == l.rq {
		l.after(max(d, 1))
	}
}

// tendLate looks at the requests of a session that take long.
func tendLate(s *Session) {
	if !s.m.startWork() {
		return
	}
	defer s.m.work.Done()
	var late []*lateRequest
	s.mu.Lock()
	now := s.m.clock()
	s.patience.at = 0
	next := time.Duration(math.MaxInt64)
	for _, rq := range s.inFlight {
		l := rq.late
		if l == nil {
			continue
		}
		if l.due > 0 && l.due <= now {
			l.due = 0
			late = append(late, l)
		}
		if p := l.pulse; p != nil && p.due <= now {
			p.due = now + p.every
			rq.call.tell(p.beat(rq.sent || rq.ours, rq.call.record.progress))
		}
		if l.due > 0 {
			next = min(next, l.due)
		}
		if l.pulse != nil {
			next = min(next, l.pulse.due)
		}
	}
	if next != math.MaxInt64 {
		s.patience.wake(s, next)
	}
	s.mu.Unlock()
	s.log.Flush()
	for _, l := range late {
		if s.m.startWork() {
			go func() {
				defer s.m.work.Done()
				l.handOff()
			}()
		}
	}
}

// handOff hands the request off. The store has the heir before the client is told of it.
func (l *lateRequest) handOff() {
	s := l.s
	s.mu.Lock()
	c, sent, server, host := l.rq.call, l.rq.sent, s.Server(), s.patience.host
	s.mu.Unlock()
	form, ok := s.formFor(l.tool)
	if !ok {
		return
	}
	if asking, _ := c.AwaitsInput(); asking && s.modern != "" || !sent {
		// A modern client that is asked does not wait for an answer. What the backend does not
		// have yet has not begun.
		wait := handOffRetry
		if after := s.m.opts.HandOffAfter(server, l.tool, host); asking && after > 0 || !asking && after > 0 && after < wait {
			wait = after
		}
		l.again(wait)
		return
	}
	if c.recovery != nil && !s.single {
		c.Promote()
	}
	h := l.heir(c)
	if err := h.awaitStored(); err != nil {
		s.m.logger.Warn("call not handed off", "session", s.Name(), "error", err)
		h.abandon()
		l.again(handOffRetry)
		return
	}
	if !l.passOn(c, h, form) {
		h.abandon()
	}
}

// heir makes the call that is to go on with the request of c, and has the store told of it.
func (l *lateRequest) heir(c *Call) *Call {
	s := l.s
	h := &Call{s: s, method: c.method, tokens: l.tokens}
	h.record = &record{handOff: &handOff{isHeir: true, of: c, from: c.storedAs(), tool: l.tool}}
	h.number = s.streams.Add(writer{h})
	h.become(callStored)
	if c.recovery != nil {
		h.recovery = &recovery{retry: c.recovery.retry, repeat: c.recovery.repeat, msgs: l.msgs, stored: make(chan struct{})}
		h.recovery.become(recoveryDelivered)
	}
	t := s.addWatched(h, h.number)
	message := ""
	if n := c.Number(); n != 0 && len(l.tokens) > 0 {
		message = s.progressMessage(n, l.tokens)
	}
	t.of.mu.Lock()
	t.tool, t.message = l.tool, message
	t.of.mu.Unlock()
	h.mu.Lock()
	h.note(h.number)
	h.mu.Unlock()
	s.log.Flush()
	return h
}

// storedAs returns the number of the stream that says how the call ends, 0 if there is none.
func (c *Call) storedAs() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recovery != nil && c.recovery.journal != 0 {
		return c.recovery.journal
	}
	return c.number
}

// passOn makes the request the heir's, and has its client told the handle, unless it has ended.
func (l *lateRequest) passOn(c, h *Call, form handoff.Form) (ok bool) {
	s := l.s
	text := s.Seal(sealHandOff, h.number, nil)
	s.mu.Lock()
	host := s.patience.host
	s.mu.Unlock()
	answer := handoff.Answer(handoff.State{Handle: text, Status: handoff.Working, Tool: l.tool}, s.mostWait(l.tool, host), form)
	defer s.log.Flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.inFlight[string(jsonrpc.Key([]byte(l.rq.id)))] != l.rq || l.rq.call != c || c.isOver() || !slices.Contains(c.pending, l.rq) {
		return false
	}
	h.mu.Lock()
	h.pending = []*inflight{l.rq}
	if len(c.pending) == 1 { // else nobody knows whose they are
		h.asking, c.asking = c.asking, 0
		s.asked.passOn(c, h)
		h.record.untold = c.untold().PassOn()
	}
	h.mu.Unlock()
	l.rq.call = h
	h.watch = c.watch.HandOff(c.number, l.rq.id, h.number)
	l.pulse = nil // no client listens to the heir
	if c.recorded().handOff == nil {
		c.record.handOff = &handOff{}
	}
	c.record.handOff.heirs = append(c.record.handOff.heirs, h)
	s.hold(s.m.KeepEnded())
	c.respondLocked(l.rq, jsonrpc.AppendResult(nil, []byte(l.rq.id), answer))
	return true
}

// passOn makes the requests of one call another's.
func (q *serverRequests) passOn(from, to *Call) {
	for id, r := range q.pending {
		if r.call == from {
			r.call = to
			q.pending[id] = r
		}
	}
}

// abandon ends an heir that goes on with nothing. Nobody has its handle.
func (c *Call) abandon() {
	c.mu.Lock()
	c.push(nil, true)
	c.end()
	c.mu.Unlock()
	c.s.log.Flush()
	all := c.s.watchedTable()
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.all, c.number)
}

// isHeir reports whether the call goes on with a request of another one. Call.mu or Session.mu
// is held.
func (c *Call) isHeir() bool {
	return c.record != nil && c.record.handOff != nil && c.record.handOff.isHeir
}

// sharesStream reports whether what the call says goes to the standalone stream, as all does in
// its session. c.mu is held.
func (c *Call) sharesStream() bool { return c.s.single && c != c.s.standalone && !c.isHeir() }

// goesOn reports whether the call goes on with requests of another one, which may be nil.
// Session.mu is held.
func (c *Call) goesOn(with *Call) bool {
	return with != nil && c.isHeir() && c.record.handOff.of == with
}

// heir returns the call that a message is about which the backend says is about c: one of its
// heirs, if that call or the request with the progress token was handed off. progress are the params
// of a progress notification, or nil; a call that was not handed off does not parse them, as each event
// of a stream comes this way. c may be nil. s.mu is held.
func (s *Session) heir(c *Call, progress []byte) *Call {
	if c == nil || c.record == nil || c.record.handOff == nil || len(c.record.handOff.heirs) == 0 {
		return c
	}
	heirs := c.record.handOff.heirs
	if token := jsonrpc.Field(progress, "progressToken"); token != nil {
		key := string(jsonrpc.Key(token))
		for _, h := range heirs {
			if slices.Contains(h.tokens, key) {
				return h
			}
		}
	}
	if !c.isOver() {
		return c
	}
	for _, h := range slices.Backward(heirs) {
		if !h.isOver() {
			return h
		}
	}
	return c
}

// formFor returns what the answer to a call of a tool looks like that is handed off. It is false
// if the server has a tool of the name of one of ours: nobody could ask for the call.
func (s *Session) formFor(tool string) (f handoff.Form, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shaped, known := s.tools.shaped[tool]
	if !known && !s.tools.complete && s.backend.link != nil && s.backend.link.conn != nil && s.revision != "" {
		if learning := s.learnTools(backend.Inbound{Context: s.m.ctx, Header: http.Header{}}); learning != nil {
			s.mu.Unlock()
			awaitTools(s.m.ctx, learning, headersWait)
			s.mu.Lock()
			shaped, known = s.tools.shaped[tool]
		}
	}
	if s.tools.clash {
		s.m.logger.Warn("calls are not handed off: the server has a tool of that name", "session", s.Name(),
			"tools", handoff.ToolWait+", "+handoff.ToolCancel)
		return f, false
	}
	return handoff.Form{Modern: s.modern != "", Bare: shaped || !known}, true
}

// hasAnswered reports whether a call has answered a request that an heir goes on with, so that its
// client has the heir's handle.
func (s *Session) hasAnswered(ctx context.Context, of *shared.Stream, msgs []jsonrpc.Message) bool {
	if of.Ended || len(msgs) == 0 {
		return true
	}
	_, ok := s.answers(ctx, of.Number, s.single)[string(jsonrpc.Key(msgs[0].ID))]
	return ok
}

// restoreHeir takes in an heir. One whose handle nobody has is for nothing: the call that it
// was made for goes on by itself.
func (s *Session) restoreHeir(ctx context.Context, st *shared.Stream, n callNote, msgs []jsonrpc.Message, handedOff, notified bool, f *restored) {
	s.hold(s.m.KeepEnded())
	all, tool := s.watchedTable(), ""
	if len(msgs) > 0 {
		tool = toolOf(&msgs[0])
	}
	if st.Ended {
		now := time.Now()
		all.all[st.Number] = &watched{of: all, tool: tool, updated: now, ended: now}
		if handedOff && !notified && s.m.opts.OnEnded != nil {
			f.tell(&Call{s: s, number: st.Number}, st.Number, msgs, s.answers(ctx, st.Number, false))
		}
		return
	}
	safe := handedOff && len(msgs) > 0 && s.stillSafe(&n, msgs)
	c := &Call{s: s, recovery: &recovery{repeat: safe}, number: st.Number, said: st.Next - 1}
	c.track.Resume(c.said)
	if safe {
		c.recovery.retry = retrySafe
	}
	c.become(callStored)
	c.record = &record{handOff: &handOff{isHeir: true, from: n.Of, tool: tool}}
	s.streams.SetCall(st.Number, writer{c})
	if !handedOff {
		f.lost = append(f.lost, c)
		return
	}
	c.restoreSpans(&n, msgs)
	s.restoreRequests(c, st.Number, msgs)
	if h := c.untold(); h != nil {
		f.untold[st.Number] = h
	}
	t := s.addWatched(c, st.Number)
	t.tool = tool
	if safe && len(c.pending) > 0 {
		f.retry = append(f.retry, retryCall{call: c, msgs: msgs})
	} else {
		f.lost = append(f.lost, c)
	}
}

package session

import (
	"math"
	"time"

	"holdfast/internal/ownprogress"
	"holdfast/internal/protocol"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// This file is for requests that take long.

// addLate arranges that the [Addition] is told when a request has taken long, and that the client gets progress meanwhile. s.mu is held.
func (s *Session) addLate(c *Call, rq *inflight, m *jsonrpc.Message) {
	switch m.Method {
	case protocol.MethodCallTool, protocol.MethodToolsList, protocol.MethodGetPrompt, protocol.MethodReadResource:
	default:
		return
	}
	host := s.patience.hostOf(s, m)
	every, token := time.Duration(0), protocol.ProgressToken(m.Params)
	if s.m.opts.ProgressEvery != nil && m.Method != protocol.MethodToolsList && c.guestOf() == "" && !c.IsPolled(m) && token != nil {
		every = s.m.opts.ProgressEvery(host)
		host.Kept = host.IsKept(every)
	}
	after := time.Duration(0)
	if !c.isHeir() {
		after = s.m.added.Patience(c, m, host)
	}
	rq.adds = m.Method == protocol.MethodToolsList && s.m.added.Offers(s, m, host)
	if after <= 0 && every <= 0 || c.isHeir() {
		return
	}
	l := &Late{s: s, rq: rq, tool: tools.Called(m)}
	if every > 0 {
		l.pulse = ownprogress.New(every, s.m.clock(), token)
		of := c.recorded()
		of.pulses = append(of.pulses, l.pulse)
		s.patience.wake(s, l.pulse.Due())
	}
	if after > 0 {
		took := time.Duration(0)
		if s.m.shared != nil { // the note of the call says when it began, and that of its heir has the request
			in := c.inherits()
			if in.began.IsZero() {
				in.began = time.Now()
			}
			took = time.Since(in.began)
			l.msgs = []jsonrpc.Message{*m}
		}
		if token != nil {
			l.tokens = []string{string(jsonrpc.Key(token))}
		}
		l.after(max(after-took, 1))
	}
	rq.late = l
}

// A Late is a request that the [Addition] is told of if it is still in flight when its time has come, or that gets progress of our own.
type Late struct {
	s      *Session
	rq     *inflight
	tool   string
	tokens []string
	msgs   []jsonrpc.Message  // the request, where the store is shared
	due    time.Duration      // when the addition is told, by the manager's clock; 0: it is not; guarded by Session.mu
	pulse  *ownprogress.Pulse // nil if no progress is sent; guarded by Session.mu
}

// after has the addition told after a time. s.mu is held.
func (l *Late) after(d time.Duration) {
	l.due = l.s.m.clock() + d
	l.s.patience.wake(l.s, l.due)
}

// Again has the addition told again after a time, if the request is in flight.
func (l *Late) Again(d time.Duration) {
	locked(l.s, func() {
		if l.s.requests.at(l.rq.call.guestOf(), []byte(l.rq.id)) == l.rq {
			l.after(max(d, 1))
		}
	})
}

// Session returns the session of the request.
func (l *Late) Session() *Session { return l.s }

// Tool returns the tool that the request calls.
func (l *Late) Tool() string { return l.tool }

// State reports whether the request's call waits for an answer of its client, and whether the backend has the request.
func (l *Late) State() (asking, sent bool) {
	var c *Call
	l.s.requests.locked(func() { c, sent = l.rq.call, l.rq.sent })
	asking, _ = c.AwaitsInput()
	return asking, sent
}

// tendLate tells the addition of the session's requests that are late, and sends progress that is due.
func tendLate(s *Session) {
	var late []*Late
	locked(s, func() { late = s.patience.takeLate(s) })
	s.log.Flush()
	for _, l := range late {
		s.m.work.Go(func() { s.m.added.Late(l) })
	}
}

// takeLate returns the requests that are late, sends the progress that is due, and sets the time of the next look. s.mu is held; the log must be flushed after.
func (p *patience) takeLate(s *Session) (late []*Late) {
	now := s.m.clock()
	p.at = 0
	next := time.Duration(math.MaxInt64)
	for rq := range s.requests.each {
		l := rq.late
		if l == nil {
			continue
		}
		if l.due > 0 && l.due <= now {
			l.due = 0
			late = append(late, l)
		}
		if l.pulse.Due() <= now {
			rq.call.tell(l.pulse.Beat(now, rq.sent || rq.ours, rq.call.record.progress), false)
		}
		if l.due > 0 {
			next = min(next, l.due)
		}
		next = min(next, l.pulse.Due())
	}
	if next != math.MaxInt64 {
		p.wake(s, next)
	}
	return late
}

package session

import (
	"context"
	"slices"
	"time"

	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// This file is for heirs. An heir is a call that goes on with a request of another call, which has answered its client already. From
// then on the heir gets the backend's messages about the request, and its response. An [Addition] decides when a request passes to an
// heir, and with which answer for the client.

// An inheritance is the state of an heir, or of a call that may pass requests to heirs. It is written with Session.mu and Call.mu held.
type inheritance struct {
	began time.Time // when the call began; zero for an heir
	heirs []*Call   // that go on with requests of the call

	isHeir bool
	of     *Call  // the call that had the heir's request; nil if it was on another node
	from   uint64 // the number of the stream of that call, or of its journal; 0: it had none
	tool   string // the tool that was called
	heir   Heir   // nil for a call that is no heir
}

// An inheritanceNote is the part of a call's note about its inheritance.
type inheritanceNote struct {
	Of    uint64 `json:"of"`    // of an heir: the stream, or the journal, of the call that had its request
	Began int64  `json:"began"` // of another call: when it began, in milliseconds since 1970
}

// apply sets the inheritance of a call, which no other goroutine knows, from the note.
func (n *inheritanceNote) apply(c *Call) {
	switch {
	case n.Of != 0:
		i := c.inherits()
		if i.isHeir, i.from, i.heir = true, n.Of, c.s.m.added.Heir(c); len(c.recovery.msgs) > 0 {
			i.tool = tools.Called(&c.recovery.msgs[0])
		}
	case n.Began != 0 && c.s.m.added.IsOn() && !c.IsOver():
		c.inherits().began = time.UnixMilli(n.Began)
	}
}

// heir makes the call that will go on with the request of c, and queues its note.
func (l *Late) heir(c *Call) *Call {
	s := l.s
	h := &Call{s: s, method: c.method, tokens: l.tokens, watch: c.watch} // observers hear of the heir once it has the request
	h.record = &record{inherits: &inheritance{isHeir: true, of: c, from: c.storedAs(), tool: l.tool, heir: s.m.added.Heir(h)}}
	h.number = s.streams.Add(writer{h})
	h.become(callStored)
	if c.recovery != nil {
		h.recovery = &recovery{retry: c.recovery.retry, repeat: c.recovery.repeat, msgs: l.msgs, stored: make(chan struct{})}
		h.recovery.become(recoveryDelivered)
	}
	message := ""
	if n := c.Number(); n != 0 && len(l.tokens) > 0 {
		message = s.Watched.Progress(n, l.tokens)
	}
	s.Watched.Record(h, h.number).Inherit(l.tool, message)
	h.mu.Lock()
	h.note(h.number)
	h.mu.Unlock()
	s.log.Flush()
	return h
}

// storedAs returns the number of the call's stream, or of its journal, in the store; 0: it has none.
func (c *Call) storedAs() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recovery != nil && c.recovery.journal != 0 {
		return c.recovery.journal
	}
	return c.number
}

// PassOn has an heir go on with the request. The client gets the result that answer returns for the number of the heir's stream,
// unless the request has ended. The heir is stored before: the error is that of the store.
func (l *Late) PassOn(answer func(number uint64) []byte) error {
	var c *Call
	locked(l.s, func() { c = l.rq.call })
	if c.recovery != nil && !l.s.single {
		c.Promote()
	}
	h := l.heir(c)
	if err := h.awaitStored(); err != nil {
		h.abandon()
		return err
	}
	if !l.passOn(c, h, answer(h.number)) {
		h.abandon()
	}
	return nil
}

// passOn moves the request from c to the heir h, and answers the client. It returns false if the request has ended.
func (l *Late) passOn(c, h *Call, answer []byte) (ok bool) {
	s := l.s
	defer s.log.Flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.requests.all[string(jsonrpc.Key([]byte(l.rq.id)))] != l.rq || l.rq.call != c || c.IsOver() || !slices.Contains(c.pending, l.rq) {
		return false
	}
	h.mu.Lock()
	h.pending = []*inflight{l.rq}
	if len(c.pending) == 1 { // else the questions may be of other requests
		c.client.passTo(&h.client)
		s.asked.passOn(c, h)
		h.record.untold = c.untold().PassOn()
	}
	h.mu.Unlock()
	l.rq.call = h
	h.watch = c.watch.HandOff(c.number, l.rq.id, h.number)
	l.pulse = nil // no client listens to the heir
	in := c.inherits()
	in.heirs = append(in.heirs, h)
	s.use.hold(s.m.KeepEnded())
	c.respondLocked(l.rq, jsonrpc.AppendResult(nil, []byte(l.rq.id), answer))
	return true
}

// passOn moves the backend's requests from one call to another.
func (q *serverRequests) passOn(from, to *Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, r := range q.pending {
		if r.call == from {
			r.call = to
			q.pending[id] = r
		}
	}
}

// abandon ends an heir that got no request. No client was told of it.
func (c *Call) abandon() {
	c.mu.Lock()
	c.push(nil, true)
	c.end()
	c.mu.Unlock()
	c.s.log.Flush()
	c.s.Watched.Drop(c.number)
}

// inherits returns the call's inheritance, and makes it if need be. Session.mu and Call.mu are held, or no other goroutine knows the call.
func (c *Call) inherits() *inheritance {
	r := c.recorded()
	if r.inherits == nil {
		r.inherits = &inheritance{}
	}
	return r.inherits
}

// Heir returns the [Heir] of a call that is an heir; nil for other calls.
func (c *Call) Heir() Heir {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isHeir() {
		return nil
	}
	return c.record.inherits.heir
}

// isHeir reports whether the call goes on with a request of another call. Call.mu or Session.mu is held.
func (c *Call) isHeir() bool {
	return c.record != nil && c.record.inherits != nil && c.record.inherits.isHeir
}

// sharesStream reports whether the call's messages go to the standalone stream, as those of all calls but
// heirs do in a session with a single stream. c.mu is held.
func (c *Call) sharesStream() bool { return c.s.single && c != c.s.standalone && !c.isHeir() }

// heirOf returns the call that gets a message of the backend about c: the heir with the progress token; else c, or
// its last heir in flight, if c is over. progress are the params of a progress notification, or nil; they are not
// parsed for a call without heirs, as each event of a stream comes this way. c may be nil. Session.mu is held.
func heirOf(c *Call, progress []byte) *Call {
	if c == nil || c.record == nil || c.record.inherits == nil || len(c.record.inherits.heirs) == 0 {
		return c
	}
	heirs := c.record.inherits.heirs
	if token := jsonrpc.Field(progress, "progressToken"); token != nil {
		key := string(jsonrpc.Key(token))
		for _, h := range heirs {
			if slices.Contains(h.tokens, key) {
				return h
			}
		}
	}
	if !c.IsOver() {
		return c
	}
	for _, h := range slices.Backward(heirs) {
		if !h.IsOver() {
			return h
		}
	}
	return c
}

// knowsHeir reports whether the client may have been told of the heir h. If it was not, h is not needed: the call that h was made for goes on by itself.
func (f *restored) knowsHeir(ctx context.Context, h *Call) bool {
	from := h.record.inherits.from
	i := slices.IndexFunc(f.calls, func(c *Call) bool { return c.storedAs() == from })
	if i < 0 || f.calls[i].IsOver() || len(h.recovery.msgs) == 0 {
		return true
	}
	_, ok := f.answers(ctx, from, f.s.single)[string(jsonrpc.Key(h.recovery.msgs[0].ID))]
	return ok
}

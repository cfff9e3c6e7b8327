package session

import (
	"context"
	"net/http"

	"holdfast/internal/again"
	"holdfast/internal/caller"
	"holdfast/internal/clientkind"
	"holdfast/internal/likeness"
	"holdfast/internal/observe"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
)

// This file gives internal/again the sessions and calls that it needs for calls that clients make again.

// openFlights makes the record of the calls that may come again.
func (m *Manager) openFlights() {
	m.flights = again.New(again.Options{
		AttachWithin: m.opts.AttachWithin, Keep: max(m.opts.AttachWithin, m.KeepEnded()), CallIDs: m.opts.CallIDs,
		Store: m.store, Timeout: storeTimeout, Logger: m.logger, Work: &m.work,
	})
}

// Flights returns the calls that may come again, for other nodes.
func (m *Manager) Flights() *again.Calls { return m.flights }

// compare looks for calls like c, which has the one request rq. The locks of s and of its requests are held.
func (c *Call) compare(rq *inflight, m *jsonrpc.Message) {
	s := c.s
	if s.single || s.m.opts.Stateless || c.isHeir() || c.record != nil && c.record.watched != nil {
		return
	}
	if s.modern == "" && c.expected { // the call is held in memory alone, and need not be found if its tool may run twice
		if name := jsonrpc.Field(m.Params, "name"); len(name) > 2 && s.Tools.SaysRepeatable(name[1:len(name)-1]) {
			return
		}
	}
	if all := s.m.flights; all.Liken(&c.standing, m, rq.sum) {
		if in := s.requests.all; len(in) <= again.MostCompared {
			for _, other := range in {
				all.Meets(&c.standing, flightCall{other.call})
			}
		}
		all.Compared(flightCall{c})
	}
}

// A flightSession makes a session an [again.Session].
type flightSession struct{ *Session }

func (f flightSession) IsAnonymous() bool { return f.principal.IsAnonymous() }
func (f flightSession) IsClosed() bool    { return f.isClosed() }

func (f flightSession) Call(number uint64) again.Call {
	if c := f.CallAt(number); c != nil {
		return flightCall{c}
	}
	return nil
}

// Places implements [again.Session]. Anonymous clients are told apart by their session or, in carriers, by their credential and address.
func (f flightSession) Places() (talk, client likeness.Digest) {
	own := likeness.PlaceOf("session", f.Name())
	if f.modern == "" {
		if f.principal.IsAnonymous() {
			return own, own
		}
		var kind clientkind.Kind
		locked(f.Session, func() { kind = clientkind.Of(jsonrpc.Field(f.backend.initialize, "params", "clientInfo")) })
		return own, likeness.PlaceOf("client", f.principal.Text(), kind.Name, kind.Version)
	}
	if f.carrier == nil { // the carrier was taken over, and gets no other requests
		return own, own
	}
	key := &f.carrier.key
	who := []string{f.principal.Text(), f.carrier.kind.Name, f.carrier.kind.Version}
	if f.principal.IsAnonymous() {
		who = append(who, key.tenant)
	}
	if key.credential != (caller.Credential{}) {
		who = append(who, string(key.credential[:]))
	}
	client = likeness.PlaceOf("client", who...)
	return client, client
}

// A flightCall makes a call an [again.Call].
type flightCall struct{ *Call }

func (f flightCall) Standing() *again.Standing { return &f.standing }
func (f flightCall) In() again.Session         { return flightSession{f.s} }
func (f flightCall) Writer() reading.Call      { return writer(f) }

func (f flightCall) Stored() uint64 {
	f.Promote()
	if number := f.Number(); !f.IsOver() {
		return number
	}
	return 0
}

// MayLeave implements [again.Call]: a client may leave that has a task, waits for a webhook, or can come back with a key or a token.
func (f flightCall) MayLeave() (may bool) {
	locked(f.s, func() {
		r := f.record
		may = r != nil && (r.untold != nil || r.watched != nil || r.resume != nil || r.key.IsClients())
	})
	return may
}

func (f flightCall) Attached(reason likeness.Reason, to string) {
	f.s.m.logger.Info("a request came again after its connection broke: its client gets the result of the first one",
		"reason", reason.String(), "session", f.s.Name(), "first", to, "method", f.method)
	if f.watch != nil {
		f.watch.Happened(observe.Attached{Reason: reason.String()})
	}
}

func (f flightCall) Attach(id []byte, stop func()) (ok bool) {
	f.with(id, func(rq *inflight) {
		if ok = f.s.m.work.Start(); ok {
			rq.stop, rq.ours = stop, true
		}
	})
	return ok
}

func (f flightCall) Deliver(ctx context.Context, m jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error) {
	f.with(m.ID, func(rq *inflight) { rq.stop, rq.ours = nil, false })
	f.deliverOne(ctx, m, header, failed)
}

// with calls do for the call's request with the id, if that has no response yet. The request may have passed to an heir.
func (f flightCall) with(id []byte, do func(*inflight)) {
	q := &f.s.requests
	q.locked(func() {
		if rq := q.of(f.Call, id); rq != nil {
			do(rq)
		}
	})
}

func (f flightCall) Begins(id []byte) { f.with(id, (*inflight).delivered) }

// Say implements [again.Call]. If the request has passed to an heir, the heir says the message. A question of a request that has ended
// stays one of the other call.
func (f flightCall) Say(id, data, asks []byte) {
	s := f.s
	var to, from *Call
	s.requests.locked(func() {
		rq := s.requests.of(f.Call, id)
		if rq == nil {
			return
		}
		if to = rq.call; asks != nil {
			number, _ := s.parseAskedID(asks)
			from = s.asked.redirect(number, to)
		}
	})
	if to == nil || asks != nil && from == nil { // the request has ended, or the question was answered, meanwhile
		return
	}
	if from != nil && from != to {
		from.client.answered()
	}
	if !to.emit(data, asks != nil) && asks != nil {
		s.asked.refuseOf(to)
	}
}

func (f flightCall) Answer(id, response []byte) { f.AnswerOwn(id, response) }

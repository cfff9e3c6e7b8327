package session

import (
	"holdfast/internal/deferred"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/feature/resume"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/ownprogress"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A record has the data of features about a call, beside its stream. Most calls have none.
type record struct {
	key      *idempotency.Record // nil if the call was begun without an idempotency key
	untold   *webhook.Call       // the outcomes for its webhooks; nil if it has no webhooks
	watched  *deferred.Call      // nil if the client has no name for the call; written with Session.mu and Call.mu held
	inherits *inheritance        // nil if the call is no heir, and none of its requests may pass to one
	rounds   *rounds             // nil if the request is not kept to be made again; guarded by Session.mu
	resume   *resume.Call        // nil if the client can't resume the call (SEP-975); it does not change after Begin
	// guest is the session that the requests came from; "": the call's own. It does not change after Begin.
	guest stream.SessionKey

	pulses []*ownprogress.Pulse // of the requests that get progress of our own; guarded by Session.mu

	// The progress that was sent before the session was taken over, if the call was made again then; guarded by Session.mu.
	progress progress
}

// recorded returns the call's record, and makes it if need be. Session.mu and the lock of its requests are
// held, or no other goroutine knows the call.
func (c *Call) recorded() *record {
	if c.record == nil {
		c.record = &record{}
	}
	return c.record
}

// A feature keeps its own record of a call, which it makes when a request begins ([Session.addRequests]), and
// is told how the call goes on. Call.mu is held.
type feature interface {
	// stored is called when a light call is given a stream. The responses that it has follow in the stream.
	stored(c *Call)
	// answered is called when a request is answered. The response is, or will be, the
	// entry seq of the call's stream, of a light call's responses, or of the stream that
	// all calls of the session share.
	answered(c *Call, rq *inflight, failed bool, seq uint64)
	// cancelled is called when the client cancels a request.
	cancelled(c *Call, rq *inflight)
	// refused is called when the store has refused the entries after seq. The requests with the ids get an error for a response.
	refused(c *Call, ids [][]byte, seq uint64)
	// left is called when the call ends here, as its session has left this node.
	left(c *Call)
}

// begins has features make their records of a request of a new call. Session.mu is held, or no other goroutine knows the call.
func (c *Call) begins(id string, m *jsonrpc.Message) {
	if all := c.s.Resumes(); all != nil && m.Method != protocol.MethodInitialize && !c.isHeir() && c.deferred() == nil {
		r := c.recorded()
		r.resume = all.Begin(r.resume, resumable{c}, id, m.Method)
	}
	if c.s.m.untold.Wants(m.Params) {
		r := c.recorded()
		r.untold = c.s.untold.Begin(r.untold, id, m.Params)
	}
}

// replay has features make their records of the requests of a restored call that have ended: those with a response in said and, if the call is
// over, the others, which were cancelled. No other goroutine knows the call.
func (c *Call) replay(msgs []jsonrpc.Message, said map[string]outcome, over bool) {
	for i := range msgs {
		a, ok := said[string(jsonrpc.Key(msgs[i].ID))]
		if !ok && !over {
			continue
		}
		rq := &inflight{call: c, id: string(msgs[i].ID)}
		c.begins(rq.id, &msgs[i])
		for f := range c.features {
			if ok {
				f.answered(c, rq, a.failed, a.seq)
			} else {
				f.cancelled(c, rq)
			}
		}
	}
}

// features calls yield for each feature that has a record of the call. The record of a resumable call comes first.
func (c *Call) features(yield func(feature) bool) {
	r := c.record
	if r == nil || r.resume != nil && !yield(resumed{r.resume}) {
		return
	}
	if r.untold != nil && !yield(untold{r.untold}) {
		return
	}
	if r.watched != nil {
		yield(watching{r.watched})
	}
}

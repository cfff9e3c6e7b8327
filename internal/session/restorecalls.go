package session

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file fills a session that was taken over with its streams and notes in the store.

// restored has the calls of a session as they were found in the store.
type restored struct {
	s          *Session
	calls      []*Call         // in the order of their streams, while they are restored
	read, rung map[uint64]bool // streams that were read to their end, and those with outcomes that webhooks were told

	retry  []retryCall // to be made again
	lost   []*Call     // to be ended
	untold map[uint64]*webhook.Call
	cut    []*Call // calls with clients that were connected to the node that is lost

	// In a session with a single stream, once they are known.
	progress progress
	said     map[string]outcome
}

// retryCall is a call with those of its requests that were not answered.
type retryCall struct {
	call   *Call
	msgs   []jsonrpc.Message
	unsent bool // not again, but for the first time
}

// restore fills a session that was taken over, and that no other goroutine knows yet.
func (s *Session) restore(ctx context.Context, streams []shared.Stream) restored {
	f := restored{s: s, read: make(map[uint64]bool), rung: make(map[uint64]bool), untold: make(map[uint64]*webhook.Call)}
	// Streams that the store has dropped had numbers, too: each epoch has its own.
	s.streams.Resume((s.lease.Epoch - 1) << 32)
	for i := range streams {
		st := &streams[i]
		s.streams.Resume(st.Number)
		if st.Number != standalone {
			f.calls = append(f.calls, f.noted(ctx, st))
			continue
		}
		var n sessionNote
		if err := n.apply(s, st.Note, st.Next-1); err != nil {
			s.m.logger.Error("session not restored", "session", s.Name(), "error", err)
		}
		f.take(&n.news)
	}
	for _, c := range f.calls {
		switch known := !c.isHeir() || f.knowsHeir(ctx, c); {
		case c.IsOver():
			f.ended(ctx, c, known)
		case known:
			f.runs(ctx, c)
		default:
			s.streams.SetCall(c.number, writer{c})
			f.lost = append(f.lost, c)
		}
	}
	if h := s.standalone.untold(); h != nil {
		h.Hold()
		f.untold[standalone] = h
	}
	f.calls = nil
	return f
}

// take takes in the news of a note: they are about other calls.
func (f *restored) take(n *news) {
	for _, number := range n.Read {
		f.read[number] = true
	}
	for _, number := range n.Notified {
		f.rung[number] = true
	}
}

// noted returns the call of a stream as its note says. Without a note that can be read, the call's requests are not known.
func (f *restored) noted(ctx context.Context, st *shared.Stream) *Call {
	s := f.s
	var n callNote
	var err error
	if len(st.Note) > 0 {
		err = json.Unmarshal(st.Note, &n)
	} else if f.endsUnanswered(ctx, st) {
		s.m.logger.Error("call lost: the store has no note of it any more", "session", s.Name(), "stream", st.Number)
		s.streams.SetBlind(st.Number)
	}
	c := &Call{s: s, recovery: &recovery{}}
	c.track.Resume(st.Next - 1)
	if s.single && n.Of == 0 {
		c.recovery.journal = st.Number
	} else {
		c.number, c.said = st.Number, st.Next-1
		c.become(callStored)
	}
	if st.Ended {
		c.end()
	}
	if err == nil {
		err = n.recoveryNote.apply(c.recovery)
	}
	if err != nil {
		s.m.logger.Error("call not restored", "session", s.Name(), "error", fmt.Errorf("note of stream %d: %w", st.Number, err))
	}
	c.cameAsGuest(n.Guest)
	n.inheritanceNote.apply(c)
	if k := n.Record(); k != nil && !c.isHeir() {
		c.recorded().key = k
		s.m.keys.Restore(k, s.beginner(), st.Number)
	}
	if !c.IsOver() {
		s.events.restored(c, &n, c.recovery.msgs)
	}
	c.restoreDeferred(st.Note)
	f.take(&n.news)
	if n.Of != 0 && !s.single { // the heir tells the outcome
		f.rung[n.Of] = true
	}
	if n.Direct && !s.single && !c.IsOver() {
		f.cut = append(f.cut, c)
	}
	return c
}

// endsUnanswered reports whether a stream without a note does not, or will not, end with an answer. Without
// the note the requests are not known: a reader must hear that, and not only that the stream has ended.
func (f *restored) endsUnanswered(ctx context.Context, st *shared.Stream) bool {
	if f.s.single {
		return false // no client reads the stream
	}
	if !st.Ended || st.Next <= st.Oldest {
		return !st.Ended
	}
	end, err := f.s.streams.End(ctx, st.Number)
	return err == nil && end != nil && len(end.Data) == 0
}

// runs takes in a call that has not ended.
func (f *restored) runs(ctx context.Context, c *Call) {
	s, k, number, shares := c.s, c.recovery, c.storedAs(), c.sharesStream()
	unsent, msgs := k.takeUp(s), k.msgs
	var said map[string]outcome
	if len(msgs) > 1 {
		said = f.answers(ctx, number, shares)
	}
	open := slices.DeleteFunc(slices.Clone(msgs), func(m jsonrpc.Message) bool {
		_, ok := said[string(jsonrpc.Key(m.ID))]
		return ok
	})
	s.restoreWatched(c)
	if !shares {
		c.replay(msgs, said, false)
	}
	s.mu.Lock()
	pass := s.holdLimits(open)
	err := s.addRequests(c, open, pass)
	s.mu.Unlock()
	if err != nil {
		pass.Release()
		s.m.logger.Error("call not restored", "session", s.Name(), "stream", number, "error", err)
		c.pending = nil
		c.replay(open, nil, true)
	}
	s.use.calls.Add(int32(len(c.pending)))
	s.m.count(s, int32(len(c.pending)))
	if !shares {
		s.streams.SetCall(number, writer{c})
		f.found(c, true, true)
	}
	if (k.isSafe() || unsent) && len(c.pending) > 0 {
		f.progressOf(ctx, c)
		f.retry = append(f.retry, retryCall{c, open, !k.isSafe()})
	} else {
		f.lost = append(f.lost, c)
	}
}

// ended takes in a call that has ended, as far as clients may ask for it. known says that its client knows of it.
func (f *restored) ended(ctx context.Context, c *Call, known bool) {
	s, msgs, number, shares := c.s, c.recovery.msgs, c.storedAs(), c.sharesStream()
	read := f.read[number]
	tells := known && !read && !f.rung[number] && s.m.opts.OnEnded != nil
	if read {
		c.pace.Reach(&s.m.pace, c.said, c.said)
	}
	if !shares {
		s.restoreWatched(c)
	}
	switch {
	case !tells && s.Resumes() == nil:
	case !shares:
		c.replay(msgs, f.answers(ctx, number, false), true)
	default:
		if f.said == nil {
			f.said = f.answers(ctx, standalone, false)
		}
		c.replay(msgs, f.said, true)
	}
	if !shares {
		young := len(msgs) > 0 && msgs[0].Method == protocol.MethodInitialize // a client that lost the answer to initialize begins anew
		f.found(c, !read && !young, tells)
	}
	c.recovery = nil // it is not made again
}

// found makes a call with a stream of its own known to readers, resume tokens and webhooks. lost says that its client may have lost the stream, and
// tells that webhooks may be told its outcomes.
func (f *restored) found(c *Call, lost, tells bool) {
	if lost && !c.isHeir() && c.deferred() == nil {
		c.s.streams.Restored(c.number, c.IsOver())
	}
	if r := c.resume(); r != nil {
		resumed{r}.stored(c)
	}
	if h := c.untold(); h != nil && tells {
		if c.IsOver() {
			h.End(c.number)
		}
		f.untold[c.number] = h // held until awaitReturn releases it
	}
}

// outcome is the response to a request: where it is in the stream, and whether it is an error.
type outcome struct {
	seq    uint64
	failed bool
}

// answers returns the responses in a stream, by the keys of their ids; of two with one id the later one. named says that the entries
// are the ids alone, as in the journal of a call of a single session.
func (f *restored) answers(ctx context.Context, number uint64, named bool) map[string]outcome {
	all := make(map[string]outcome)
	_ = f.s.streams.Each(ctx, number, math.MaxUint64, func(e *stream.Entry) {
		id := jsonrpc.Field(e.Data, "id")
		switch {
		case len(e.Data) == 0:
		case named:
			all[string(jsonrpc.Key(e.Data))] = outcome{seq: e.Seq}
		case id != nil && jsonrpc.Field(e.Data, "method") == nil:
			all[string(jsonrpc.Key(id))] = outcome{e.Seq, jsonrpc.Field(e.Data, "error") != nil}
		}
	})
	return all
}

// endLost ends calls that are not made again, in one append.
func (s *Session) endLost(calls []*Call) {
	s.log.InOneAppend(func() {
		for _, c := range calls {
			c.mu.Lock()
			ids := c.pending.ids()
			if len(ids) == 0 && !c.IsOver() { // no request waits for an answer
				c.end()
				if s.single && !c.isHeir() {
					c.appendJournal("", true)
				} else {
					c.push(nil, true)
				}
			}
			c.mu.Unlock()
			for _, id := range ids {
				s.requests.fail([]byte(id), c, errLost)
			}
		}
	})
}

package session

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows fills a session that was taken over with what the store has of it.

// restored is what was found of a session.
type restored struct {
	retry  []retryCall // to be made again
	lost   []*Call     // to be ended
	untold map[uint64]*webhook.Call
	cut    []*Call // whose clients were connected to the node that is lost

	progress progress // in a single session, once it is known
}

// retryCall is a call with those of its requests that were not answered.
type retryCall struct {
	call   *Call
	msgs   []jsonrpc.Message
	unsent bool // not again, but for the first time: only this once
}

// restore fills a session that was taken over, and that nobody knows yet.
func (s *Session) restore(ctx context.Context, streams []shared.Stream) restored {
	f := restored{untold: make(map[uint64]*webhook.Call)}
	// What ended and is kept no longer had numbers, too: each epoch has its own.
	s.streams.Resume((s.lease.Epoch - 1) << 32)
	read, notified := make(map[uint64]bool), make(map[uint64]bool)
	type parsed struct {
		callNote
		msgs []jsonrpc.Message
	}
	notes := make([]parsed, len(streams))
	for i := range streams {
		st := &streams[i]
		s.streams.Resume(st.Number)
		if st.Number == standalone {
			s.restoreStandalone(st, read, notified)
			continue
		}
		n, msgs, err := parseNote(st)
		if err != nil {
			s.m.logger.Error("call not restored", "session", s.Name(), "error", err)
		}
		mark(read, n.Read)
		mark(notified, n.Notified)
		notes[i] = parsed{n, msgs}
	}
	inherited := make(map[uint64]bool) // the streams whose outcomes heirs tell
	for i := range notes {
		inherited[notes[i].Of] = true
	}
	var said map[string]outcome // in a single session, once it is known
	for i := range streams {
		st, n := &streams[i], &notes[i]
		if st.Number == standalone {
			continue
		}
		if n.Of != 0 {
			i := slices.IndexFunc(streams, func(of shared.Stream) bool { return of.Number == n.Of })
			s.restoreHeir(ctx, st, n.callNote, n.msgs, i < 0 || s.hasAnswered(ctx, &streams[i], n.msgs), notified[st.Number], &f)
			continue
		}
		if len(st.Note) == 0 && s.endsUnanswered(ctx, st) {
			s.m.logger.Error("call lost: the store has no note of it any more", "session", s.Name(), "stream", st.Number)
			s.streams.SetBlind(st.Number)
		}
		if k := n.Record(); k != nil {
			s.m.keys.Restore(k, s.beginner(), st.Number)
		}
		switch {
		case !st.Ended:
			s.restoreCall(ctx, st, n.callNote, n.msgs, &f)
		case !s.single:
			s.restoreEnded(ctx, st, n.msgs, read[st.Number], notified[st.Number] || inherited[st.Number], &f)
		case s.standalone.untold() != nil && !notified[st.Number]:
			if said == nil {
				said = s.answers(ctx, standalone, false)
			}
			f.tell(&Call{s: s, number: st.Number}, standalone, n.msgs, said)
		}
	}
	if h := s.standalone.untold(); h != nil {
		h.Hold()
		f.untold[standalone] = h
	}
	return f
}

// endsUnanswered reports whether a stream that has no note does not, or will not, end with an
// answer. Without the note nobody knows what to answer: whoever reads it must hear
// that, and not only its end.
func (s *Session) endsUnanswered(ctx context.Context, st *shared.Stream) bool {
	if s.single {
		return false // nobody reads it
	}
	if !st.Ended || st.Next <= st.Oldest {
		return !st.Ended
	}
	var end [1]stream.Entry
	got, err := s.m.store.Read(ctx, stream.Cursor{Stream: stream.ID{Session: s.key, Number: st.Number}, Seq: st.Next - 2}, end[:0])
	return err == nil && len(got) == 1 && len(got[0].Data) == 0
}

func mark(set map[uint64]bool, numbers []uint64) {
	for _, number := range numbers {
		set[number] = true
	}
}

// restoreStandalone takes in what is known of the standalone stream, and of the session.
func (s *Session) restoreStandalone(st *shared.Stream, read, notified map[uint64]bool) {
	var n sessionNote
	if len(st.Note) > 0 {
		if err := json.Unmarshal(st.Note, &n); err != nil {
			s.m.logger.Error("session not restored", "session", s.Name(), "error", err)
		}
	}
	mark(read, n.Read)
	mark(notified, n.Notified)
	s.standalone.said = st.Next - 1
	s.standalone.track.Resume(s.standalone.said)
	s.standalone.delivery.told = min(n.Delivered, s.standalone.said)
	s.noted = s.standalone.delivery.told
	s.use.left.Store(n.Left)
	s.rung = n.Notified
	if n.Initialize == nil {
		return
	}
	m, err := jsonrpc.Parse(slices.Clone([]byte(n.Initialize)))
	if err != nil {
		s.m.logger.Error("session not restored", "session", s.Name(), "error", err)
		return
	}
	s.backend.initialize, s.revision, s.backend.initialized = m.Raw, n.Revision, true
	s.offers.Store(offers(s.m, func(f Service) bool { return string(jsonrpc.Field(st.Note, f.Member())) == "true" }))
	s.Tools.Restore(n.Safe)
	if s.events.areTold() {
		s.events.tools(s.Tools.Names())
	}
	s.takeCapabilities(m.Params)
}

// restoreCall takes in a call that has not ended.
func (s *Session) restoreCall(ctx context.Context, st *shared.Stream, n callNote, msgs []jsonrpc.Message, f *restored) {
	safe := len(msgs) > 0 && s.stillSafe(&n, msgs)
	c := &Call{s: s, recovery: &recovery{repeat: safe}}
	c.track.Resume(st.Next - 1)
	if safe {
		c.recovery.retry = retryAllowed
	}
	if s.single {
		c.recovery.journal = st.Number
	} else {
		c.number, c.said = st.Number, st.Next-1
		c.become(callStored)
	}
	if n.Began != 0 && s.m.added.IsOn() {
		c.inherits().began = time.UnixMilli(n.Began)
	}
	c.cameAsGuest(n.Guest)
	var answered map[string]outcome
	if len(msgs) > 1 {
		answered = s.answers(ctx, st.Number, s.single)
	}
	open := slices.DeleteFunc(slices.Clone(msgs), func(m jsonrpc.Message) bool {
		_, ok := answered[string(jsonrpc.Key(m.ID))]
		return ok
	})
	s.restoreWatched(c, msgs, st.Note)
	c.restoreSpans(&n, msgs)
	s.restoreRequests(c, st.Number, open)
	if k := n.Record(); k != nil {
		c.recorded().key = k
	}
	if !s.single {
		s.streams.SetCall(st.Number, writer{c})
		if c.deferred() == nil {
			s.streams.Restored(c.number, c.isOver())
		}
	}
	if h := c.untold(); h != nil && !s.single {
		f.untold[st.Number] = h // held until then
	}
	if n.Direct && !s.single {
		f.cut = append(f.cut, c)
	}
	c.restoreResume(msgs, answered)
	if (safe || n.Unsent) && len(c.pending) > 0 {
		c.restoreProgress(ctx, st, f)
		f.retry = append(f.retry, retryCall{c, open, !safe})
	} else {
		f.lost = append(f.lost, c)
	}
}

// restoreRequests has the requests of a call, which is the one of a stream, be in flight again.
func (s *Session) restoreRequests(c *Call, number uint64, msgs []jsonrpc.Message) {
	s.mu.Lock()
	pass := s.holdLimits(msgs)
	if err := s.addRequests(c, msgs, pass); err != nil {
		pass.Release()
		s.m.logger.Error("call not restored", "session", s.Name(), "stream", number, "error", err)
		c.pending = nil
	}
	s.mu.Unlock()
	s.use.calls.Add(int32(len(c.pending)))
	s.m.count(s, int32(len(c.pending)))
}

// stillSafe reports whether the requests of a call may be made again. A tool is safe if the
// call's note says so, or the session's: the tools may have been listed after the call
// began. What a note says of other methods is not heard: nodes of earlier builds took all
// of them for safe.
func (s *Session) stillSafe(n *callNote, msgs []jsonrpc.Message) (safe bool) {
	var err error // then nobody has called them safe
	defer panics.Catch(&err, s.m.logger, "Options.Safe", "")
	return tools.Repeatable(msgs, func(m *jsonrpc.Message) bool { return n.Safe || s.Tools.IsRepeatable(tools.Called(m)) })
}

// restoreEnded takes in what may be asked of a call that has ended. read says that
// its client has read the end, notified that its outcome was told besides; else they may have.
func (s *Session) restoreEnded(ctx context.Context, st *shared.Stream, msgs []jsonrpc.Message, read, notified bool, f *restored) {
	c := &Call{s: s, number: st.Number, said: st.Next - 1}
	c.track.Resume(c.said)
	c.become(callStored)
	c.become(callEnded)
	s.restoreWatched(c, msgs, st.Note)
	if young := len(msgs) > 0 && msgs[0].Method == protocol.MethodInitialize; !read && !young && c.deferred() == nil { // who lost that begins anew
		s.streams.Restored(c.number, c.isOver())
	}
	if read {
		c.delivery.told = c.said
	}
	tell := !read && !notified && s.m.opts.OnEnded != nil
	if c.record == nil && !tell && s.Resumes() == nil {
		return
	}
	answered := s.answers(ctx, st.Number, s.single)
	c.restoreResume(msgs, answered)
	if tell {
		f.tell(c, st.Number, msgs, answered)
	}
}

// tell has the outcome of a call that has ended told besides, unless its client comes back for it. The responses are in the
// stream with a number, which is the standalone one in a session that has no other.
func (f *restored) tell(c *Call, number uint64, msgs []jsonrpc.Message, answered map[string]outcome) {
	for i := range msgs {
		id := string(msgs[i].ID)
		c.tellsBesides(id, msgs[i].Params)
		if a, ok := answered[string(jsonrpc.Key(msgs[i].ID))]; ok {
			c.untold().Answered(id, a.failed, a.seq, c.number)
		}
	}
	if h := c.untold(); h != nil && number != standalone {
		h.End(number)
		f.untold[number] = h
	}
}

// outcome is what is known of the response to a request.
type outcome struct {
	seq    uint64
	failed bool
}

// answers returns the responses in a stream, or those that it names, by the keys of their ids; of two with one id the later one. The
// stream that a call of a single session has names its responses.
func (s *Session) answers(ctx context.Context, number uint64, named bool) map[string]outcome {
	all := make(map[string]outcome)
	_ = s.streams.Each(ctx, number, math.MaxUint64, func(e *stream.Entry) {
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

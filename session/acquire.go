package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is how a session goes on that another node began: see
// docs/decisions/0014-take-over.md.

// taken waits for all sessions that are being taken over.
func (m *Manager) taken(ctx context.Context) {
	m.mu.RLock()
	all := slices.Collect(maps.Values(m.taking))
	m.mu.RUnlock()
	for _, t := range all {
		select {
		case <-t.done:
		case <-ctx.Done():
			return
		}
	}
}

// taking is a session that is being taken over.
type taking struct {
	done chan struct{} // closed when it is
	s    *Session
	err  error
}

// wait returns what came of it.
func (t *taking) wait(ctx context.Context) (*Session, error) {
	select {
	case <-t.done:
		return t.s, t.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TakeOver opens here a session whose owner is gone, or that is nobody's. Calls in
// it that have not ended are made again where that does no harm; others end, with
// their outcome unknown. Several that want the same session at the same time are
// given the same one. The error is [stream.ErrConflict] where another node was
// faster, and the session is to be located again; [ErrNotFound], [ErrClosing],
// [ErrBusy], or that of the store. Backends are shown ctx's values.
func (m *Manager) TakeOver(ctx context.Context, at *Away) (*Session, error) {
	if m.shared == nil {
		return nil, ErrNotFound
	}
	m.mu.Lock()
	old := m.sessions[at.Key]
	t := m.taking[at.Key]
	switch {
	case t != nil:
		m.mu.Unlock()
		return t.wait(ctx)
	case m.closing || m.closed || m.handing:
		m.mu.Unlock()
		return nil, ErrClosing
	case len(m.sessions) >= m.opts.MaxSessions:
		m.mu.Unlock()
		return nil, fmt.Errorf("%w: %d sessions are open", ErrBusy, m.opts.MaxSessions)
	}
	t = &taking{done: make(chan struct{})}
	if m.taking == nil {
		m.taking = make(map[stream.SessionKey]*taking)
	}
	m.taking[at.Key] = t
	m.work.Add(1)
	m.mu.Unlock()
	values := context.WithoutCancel(ctx)
	go func() { // others may wait for it when the caller no longer does
		defer m.work.Done()
		t.s, t.err = m.takeOver(values, at, old)
		m.mu.Lock()
		delete(m.taking, at.Key)
		m.mu.Unlock()
		close(t.done)
	}()
	return t.wait(ctx)
}

// takeOver is TakeOver, for one caller at a time. old is what is here of the session.
func (m *Manager) takeOver(values context.Context, at *Away, old *Session) (*Session, error) {
	was := at.was
	if was.Key == "" {
		was = at.Session
	}
	if old != nil {
		switch {
		case old.isClosed():
			return nil, stream.ErrConflict // it is leaving
		case was.Epoch <= old.leased().Epoch:
			return old, nil // it came just now
		}
		m.lose(old, 0) // without having noticed
	}
	ctx, stop := context.WithTimeout(m.ctx, patience)
	defer stop()
	taken, err := m.shared.Acquire(ctx, was)
	switch {
	case errors.Is(err, stream.ErrNotFound):
		return nil, ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("session not taken over: %w", err)
	}
	s := m.session(at.ID, at.Principal, at.Single)
	s.lease, s.taken = taken.Lease, true
	s.renewed.Store(time.Now().UnixNano())
	s.ongoing.Store(1) // not idle, until it is done
	found := s.restore(ctx, taken.Streams)
	m.mu.Lock()
	m.sessions[s.key] = s
	m.mu.Unlock()
	if s.Resumable() {
		m.resumer(s)
	}
	level := slog.LevelDebug
	if len(found.again)+len(found.lost) > 0 {
		level = slog.LevelInfo
	}
	m.logger.Log(ctx, level, "session taken over", "session", s.Name(), "from", was.Owner,
		"again", len(found.again), "unknown", len(found.lost))
	s.settleLost(found.lost)
	m.attend(s, found)
	s.Touch()
	s.ongoing.Add(-1)
	if len(found.again) > 0 && m.enter() {
		go func() {
			defer m.work.Done()
			for _, r := range found.again {
				r.call.Deliver(values, r.msgs, http.Header{})
			}
		}()
	}
	if s.moved.Load() {
		return nil, fmt.Errorf("session not taken over: %w", stream.ErrUnavailable)
	}
	return s, nil
}

// errLost ends a call of which nobody knows how far it came.
var errLost = jsonrpc.Errorf(jsonrpc.CodeServer,
	"outcome unknown: the node that ran this call was lost before it finished")

// settleLost ends calls that are not made again, in one append.
func (s *Session) settleLost(calls []*Call) {
	s.log.hold()
	for _, c := range calls {
		c.mu.Lock()
		var ids []string
		for _, rq := range c.pending {
			ids = append(ids, rq.id)
		}
		if len(ids) == 0 && !c.ended { // there is nobody to be told
			c.ended = true
			c.push(nil, true)
		}
		c.mu.Unlock()
		for _, id := range ids {
			s.fail(c, []byte(id), errLost)
		}
	}
	s.log.let()
}

// returnIn is how long a client whose node was lost has to come back, before the
// webhooks of calls that have ended meanwhile are told.
const returnIn = 5 * time.Second

// attend tells the webhooks of calls that have ended, unless their clients come
// back, and forgets to hold back those of calls that go on.
func (m *Manager) attend(s *Session, f found) {
	if len(f.hooks) == 0 || !m.enter() {
		return
	}
	go func() {
		defer m.work.Done()
		late := time.NewTimer(returnIn)
		defer late.Stop()
		select {
		case <-late.C:
		case <-m.quit:
		}
		for number, h := range f.hooks {
			s.streams.mu.Lock()
			h.held = false
			s.streams.mu.Unlock()
			s.dispatch(number, h)
		}
	}()
}

// found is what was found of a session.
type found struct {
	again []repeat // to be made again
	lost  []*Call  // to be ended
	hooks map[uint64]*hooks
}

// repeat is a call with those of its requests that were not answered.
type repeat struct {
	call *Call
	msgs []jsonrpc.Message
}

// restore fills a session that was taken over, and that nobody knows yet.
func (s *Session) restore(ctx context.Context, streams []stream.Stream) found {
	f := found{hooks: make(map[uint64]*hooks)}
	// What ended and is kept no longer had numbers, too: each epoch has its own.
	s.streams.last = (s.lease.Epoch - 1) << 32
	read, rung := make(map[uint64]bool), make(map[uint64]bool)
	type parsed struct {
		callNote
		msgs []jsonrpc.Message
	}
	notes := make([]parsed, len(streams))
	for i := range streams {
		st := &streams[i]
		s.streams.last = max(s.streams.last, st.Number)
		if st.Number == standalone {
			s.restoreAside(st, read, rung)
			continue
		}
		n, msgs, err := parseNote(st)
		if err != nil {
			s.m.logger.Error("call not restored", "session", s.Name(), "error", err)
		}
		mark(read, n.Read)
		mark(rung, n.Rung)
		notes[i] = parsed{n, msgs}
	}
	for i := range streams {
		st, n := &streams[i], &notes[i]
		if st.Number == standalone {
			continue
		}
		if len(n.Key) == len(keyID{}) && len(n.Sum) == len(keySum{}) {
			s.m.keys.restore(keyID(n.Key), keySum(n.Sum), s, st.Number)
		}
		switch {
		case !st.Ended:
			s.restoreCall(ctx, st, n.callNote, n.msgs, &f)
		case !s.single:
			s.restoreEnded(ctx, st, n.msgs, read[st.Number], rung[st.Number], &f)
		}
	}
	if h := s.aside.hooks(); h != nil {
		h.held = true
		f.hooks[standalone] = h
	}
	return f
}

func mark(set map[uint64]bool, numbers []uint64) {
	for _, number := range numbers {
		set[number] = true
	}
}

// restoreAside takes in what is known of the standalone stream, and of the session.
func (s *Session) restoreAside(st *stream.Stream, read, rung map[uint64]bool) {
	var n sessionNote
	if len(st.Note) > 0 {
		if err := json.Unmarshal(st.Note, &n); err != nil {
			s.m.logger.Error("session not restored", "session", s.Name(), "error", err)
		}
	}
	mark(read, n.Read)
	mark(rung, n.Rung)
	s.aside.seq, s.aside.said = st.Next-1, st.Next-1
	s.aside.told = min(n.Told, s.aside.said)
	s.noted = s.aside.told
	if n.Initialize == nil {
		return
	}
	m, err := jsonrpc.Parse(slices.Clone([]byte(n.Initialize)))
	if err != nil {
		s.m.logger.Error("session not restored", "session", s.Name(), "error", err)
		return
	}
	s.initialize, s.revision, s.ready = m.Raw, n.Revision, true
	for _, tool := range n.Safe {
		if s.hints.safe == nil {
			s.hints.safe = make(map[string]bool)
		}
		s.hints.safe[tool] = true
	}
	s.able(m.Params)
}

// restoreCall takes in a call that has not ended.
func (s *Session) restoreCall(ctx context.Context, st *stream.Stream, n callNote, msgs []jsonrpc.Message, f *found) {
	c := &Call{s: s, kept: &kept{safe: n.Safe}, seq: st.Next - 1}
	if s.single {
		c.kept.journal = st.Number
	} else {
		c.number, c.said = st.Number, c.seq
	}
	var answered map[string]outcome
	if len(msgs) > 1 {
		answered = s.answers(ctx, st)
	}
	open := slices.DeleteFunc(slices.Clone(msgs), func(m jsonrpc.Message) bool {
		_, ok := answered[string(jsonrpc.Key(m.ID))]
		return ok
	})
	s.mu.Lock()
	if err := s.enter(c, open); err != nil {
		s.m.logger.Error("call not restored", "session", s.Name(), "stream", st.Number, "error", err)
		c.pending = nil
	}
	s.mu.Unlock()
	s.ongoing.Add(int32(len(c.pending)))
	s.m.calls.Add(int64(len(c.pending)))
	if len(n.Key) == len(keyID{}) && len(n.Sum) == len(keySum{}) {
		if c.record == nil {
			c.record = &record{}
		}
		id := keyID(n.Key)
		c.record.key, c.record.sum = &id, keySum(n.Sum)
	}
	if !s.single {
		s.streams.mu.Lock()
		if s.streams.calls == nil {
			s.streams.calls = make(map[uint64]*Call)
		}
		s.streams.calls[st.Number] = c
		s.streams.doubt(st.Number)
		s.streams.mu.Unlock()
	}
	if h := c.hooks(); h != nil && !s.single {
		f.hooks[st.Number] = h // held until then
	}
	c.restoreResume(msgs, answered)
	if n.Safe && len(c.pending) > 0 {
		f.again = append(f.again, repeat{c, open})
	} else {
		f.lost = append(f.lost, c)
	}
}

// restoreEnded takes in what may be asked of a call that has ended. read says that
// its client has read the end, rung that its webhooks were told; else they may have.
func (s *Session) restoreEnded(ctx context.Context, st *stream.Stream, msgs []jsonrpc.Message, read, rung bool, f *found) {
	if young := len(msgs) > 0 && msgs[0].Method == "initialize"; !read && !young { // who lost that begins anew
		s.streams.mu.Lock()
		s.streams.doubt(st.Number)
		s.streams.mu.Unlock()
	}
	c := &Call{s: s, number: st.Number, ended: true, seq: st.Next - 1, said: st.Next - 1}
	if read {
		c.told = c.said
	}
	s.mu.Lock()
	for i := range msgs {
		rq := &inflight{call: c, id: string(msgs[i].ID)}
		s.remember(c, rq.id, msgs[i].Method)
		if !read && !rung {
			s.watch(c, rq, &msgs[i])
		}
	}
	s.mu.Unlock()
	if c.record == nil {
		return
	}
	answered := s.answers(ctx, st)
	c.restoreResume(msgs, answered)
	h := c.hooks()
	if h == nil {
		return
	}
	for i := range h.list {
		k := &h.list[i]
		if a, ok := answered[string(jsonrpc.Key(k.ID))]; ok {
			k.seq, k.Time, k.Failed = a.seq, time.Now(), a.failed
		}
	}
	s.streams.mu.Lock()
	f.hooks[st.Number] = s.streams.over(c, st.Number)
	s.streams.mu.Unlock()
}

// restoreResume has the call found by its tokens. answered are those of its
// requests that have ended; of a call that has ended, all others were cancelled.
func (c *Call) restoreResume(msgs []jsonrpc.Message, answered map[string]outcome) {
	all := c.s.resumes.Load()
	if all == nil || len(msgs) == 0 || msgs[0].Method == "initialize" {
		return
	}
	if c.record == nil {
		c.record = &record{}
	}
	r := &resume{heard: time.Now()}
	c.record.resume = r
	for i := range msgs {
		q := resumable{id: string(msgs[i].ID), method: msgs[i].Method, status: StatusProcessing}
		a, ok := answered[string(jsonrpc.Key(msgs[i].ID))]
		switch {
		case ok && !a.failed:
			q.status = StatusCompleted
		case ok, c.ended:
			q.status = StatusFailed
		}
		r.requests = append(r.requests, q)
	}
	all.mu.Lock()
	all.calls[c.number] = c
	all.mu.Unlock()
	if c.ended {
		return
	}
	if most := c.s.m.opts.MaxWait; most > 0 {
		r.timer = time.AfterFunc(most, c.lookAfter)
	}
	// What tells the client how to resume is the first that is said: it may not have
	// come to that.
	for i := int(c.said); i < len(r.requests); i++ {
		c.push(c.s.policy(c.number, r.requests[i].id), false)
	}
}

// doubt notes that the client of a stream may have lost it with the node that it
// was connected to. t.mu is held.
func (t *table) doubt(number uint64) { t.lost(broken{number: number, since: time.Now()}, false) }

// outcome is what is known of the response to a request.
type outcome struct {
	seq    uint64
	failed bool
}

// answers returns the responses in a stream, by the keys of their ids: of the
// stream that a call of a single session has, those that it names.
func (s *Session) answers(ctx context.Context, st *stream.Stream) map[string]outcome {
	all := make(map[string]outcome)
	at := stream.Cursor{Stream: stream.ID{Session: s.key, Number: st.Number}, Seq: st.Oldest - 1}
	buf := make([]stream.Entry, 0, 64)
	for {
		got, err := s.m.store.Read(ctx, at, buf[:0])
		if err != nil || len(got) == 0 {
			return all // io.EOF, as a rule
		}
		for i := range got {
			e := &got[i]
			at.Seq, at.Epoch = e.Seq, e.Epoch
			id := jsonrpc.Field(e.Data, "id")
			switch {
			case len(e.Data) == 0:
			case s.single:
				all[string(jsonrpc.Key(e.Data))] = outcome{seq: e.Seq}
			case id != nil && jsonrpc.Field(e.Data, "method") == nil:
				all[string(jsonrpc.Key(id))] = outcome{e.Seq, jsonrpc.Field(e.Data, "error") != nil}
			}
		}
	}
}

const (
	// sweepOften bounds how many sessions a sweep takes over: one each.
	sweepOften = 5 * time.Millisecond

	// sweepers is how many it takes over at a time.
	sweepers = 4
)

// Sweep takes over those sessions, of those that mine says, that have calls which
// have not ended and nobody to look after them: their owner is gone, as gone says
// of its name, or gave them up. It takes its time. The error is that of the store,
// ctx's, or [ErrClosing].
func (m *Manager) Sweep(ctx context.Context, gone func(node string) bool, mine func(stream.SessionKey) bool) error {
	if m.shared == nil {
		return nil
	}
	var all []stream.Session
	err := m.shared.Sessions(ctx, func(was stream.Session) bool {
		if was.Owner == m.shared.Node() || (was.Owner != "" || was.Open) && mine(was.Key) {
			all = append(all, was)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("sessions not swept: %w", err)
	}
	left := map[string]bool{"": true}
	pace := time.NewTicker(sweepOften)
	defer pace.Stop()
	var group sync.WaitGroup
	defer group.Wait()
	places := make(chan struct{}, sweepers)
	for _, was := range all {
		if was.Owner == m.shared.Node() {
			if m.has(was.Key) {
				continue
			}
		} else if _, known := left[was.Owner]; !known {
			left[was.Owner] = gone(was.Owner)
		}
		if was.Owner != m.shared.Node() && !left[was.Owner] {
			continue
		}
		at, err := away(was)
		if err != nil {
			m.logger.Error("session not swept", "error", err)
			continue
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.quit:
			return ErrClosing
		}
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			m.adopt(ctx, at)
		})
	}
	return nil
}

// adopt takes over a session for a sweep.
func (m *Manager) adopt(ctx context.Context, at *Away) {
	_, err := m.TakeOver(ctx, at)
	switch {
	case err == nil, errors.Is(err, stream.ErrConflict), errors.Is(err, ErrNotFound), errors.Is(err, ErrClosing):
	default:
		m.logger.Warn("session not swept", "session", at.Key, "error", err)
	}
}

// has says whether a session is here, or about to be, or about to end.
func (m *Manager) has(key stream.SessionKey) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, ending := m.ending[key]
	return m.sessions[key] != nil || m.taking[key] != nil || ending
}

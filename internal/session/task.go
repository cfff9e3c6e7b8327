package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for tasks: calls whose clients were given a task's id in the place of the
// response (the extension io.modelcontextprotocol/tasks). All that there is of a task is in the
// stream of its call. What is kept beside it saves reading the stream, and is made again from
// it where the session is taken over.

// A task is what is known of a call that may be asked for by a task's id. Guarded by tasks.mu.
type task struct {
	of      *tasks
	message string    // of the last progress, or ""
	updated time.Time // when anything of it changed
	ended   time.Time // zero while the call runs
	read    bool      // what was said before there was the record
	stopped bool      // its client has cancelled it
	// askedFor: its client has its id. Any call of a tool may be a task that was taken over.
	askedFor bool
	tool     string // of a call that was handed off; else ""
	watch    []chan<- struct{}
	rounds   *rounds   // nil if its request is not kept; guarded by Session.mu
	since    time.Time // when its client was first told that it is a task; zero for one of 2025-11-25

	// Of tasks of 2025-11-25.
	created time.Time   // zero for others; it does not change
	status  *waker      // tells of it on the standalone stream
	waits   []*taskWait // tasks/result that wait for it
	copied  uint64      // how much of the stream they have told
}

// tasks are those of a session, by the numbers of their streams.
type tasks struct {
	mu       sync.Mutex // taken last
	all      map[uint64]*task
	answered map[uint64]uint64 // calls whose questions the client has answered, through which sequence
}

// keepUnknown is how long an ended task is kept at the least where it is not known how long
// the store keeps an ended call.
const keepUnknown = 10 * time.Minute

// KeepTask is how long a task can be asked for after its end.
func (m *Manager) KeepTask() time.Duration {
	if m.opts.Keep > 0 {
		return m.opts.Keep
	}
	return keepUnknown
}

// taskTable returns the session's tasks.
func (s *Session) taskTable() *tasks {
	for {
		if t := s.tasks.Load(); t != nil {
			return t
		}
		s.tasks.CompareAndSwap(nil, &tasks{all: make(map[uint64]*task)})
	}
}

// MakeTask has the call of a stream be a task: who knows its number can ask for it until some
// time after its end, on any node. The store has by then what another owner needs for that. since
// is when that was first done of the call, as far as this node knows. The error is [ErrNotFound]
// if the call has ended, or that of the store.
func (s *Session) MakeTask(number uint64) (since time.Time, err error) {
	c := s.streams.call(number)
	if c == nil || c.isOver() {
		return since, ErrNotFound
	}
	if err := c.awaitStored(); err != nil {
		return since, err
	}
	s.hold(s.m.KeepTask())
	t := s.addTask(c, number)
	t.of.mu.Lock()
	if t.since.IsZero() {
		t.since = time.Now()
	}
	since = t.since
	t.of.mu.Unlock()
	c.observeTask()
	return since, nil
}

// awaitStored waits until the store has the call's note, if there is to be one.
func (c *Call) awaitStored() error {
	if c.recovery == nil {
		return nil
	}
	c.mu.Lock()
	stored := c.recovery.stored
	c.mu.Unlock()
	if stored == nil {
		return ErrNotFound
	}
	t := time.NewTimer(storeTimeout)
	defer t.Stop()
	select {
	case <-stored:
	case <-t.C:
		return fmt.Errorf("task not noted: %w", stream.ErrUnavailable)
	}
	if c.recovery.failed != nil {
		return c.recovery.failed
	}
	return c.s.m.sync()
}

// addTask makes the record of a task, if there is none, and returns it.
func (s *Session) addTask(c *Call, number uint64) *task {
	all := s.taskTable()
	s.mu.Lock()
	c.mu.Lock()
	r := c.recorded()
	made := r.task == nil
	if made {
		r.task = &task{of: all, updated: time.Now()}
		if c.isOver() {
			r.task.ended = r.task.updated
		}
	}
	t := r.task
	c.mu.Unlock()
	s.mu.Unlock()
	if made {
		all.mu.Lock()
		all.all[number] = t
		all.mu.Unlock()
	}
	return t
}

// restoreTask makes the record of what may be a task, of a session that was taken over and that
// nobody knows yet.
// since is when it was made a task of 2025-11-25, in milliseconds, or 0.
func (s *Session) restoreTask(c *Call, msgs []jsonrpc.Message, since int64) {
	if s.modern == "" && since == 0 || len(msgs) == 0 || msgs[0].Method != protocol.MethodCallTool {
		return
	}
	s.hold(s.m.KeepTask())
	if s.modern == "" {
		t := s.newLegacyTask(time.UnixMilli(since))
		if t.updated = time.Now(); c.isOver() {
			t.ended = t.updated
		}
		c.recorded().task = t
		t.addLegacy(c)
		return
	}
	if !c.isOver() {
		s.addTask(c, c.number).rounds = newRounds(&msgs[0], http.Header{})
		return
	}
	now, all := time.Now(), s.taskTable()
	all.all[c.number] = &task{of: all, updated: now, ended: now}
}

// lastMessage returns the message of the last progress. What the call had said before there was
// the record is read.
func (s *Session) lastMessage(t *task, number uint64) string {
	t.of.mu.Lock()
	known := t.read || t.message != ""
	t.of.mu.Unlock()
	message := ""
	if !known {
		message = s.progressMessage(number, nil)
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.read = true; t.message == "" {
		t.message = message
	}
	return t.message
}

// progressMessage returns the message of the last progress in a stream, or "". If there are tokens
// it is that of requests with one of them: a batch has the progress of several.
func (s *Session) progressMessage(number uint64, tokens []string) (message string) {
	_ = s.eachEntry(s.m.ctx, number, math.MaxUint64, func(e *stream.Entry) {
		text, ok := progressText(e.Data)
		if ok && (tokens == nil || slices.Contains(tokens, string(jsonrpc.Key(jsonrpc.Field(e.Data, "params", "progressToken"))))) {
			message = text
		}
	})
	return message
}

// progressText returns the message of a progress notification.
func progressText(data []byte) (text string, ok bool) {
	if jsonrpc.String(jsonrpc.Field(data, "method")) != protocol.MethodProgress {
		return "", false
	}
	text = jsonrpc.String(jsonrpc.Field(data, "params", "message"))
	return text, text != "" && text != stillRunning
}

// eachEntry calls do with the entries of a stream up to one, as far as they are kept. The error
// is that of the store.
func (s *Session) eachEntry(ctx context.Context, number, seq uint64, do func(*stream.Entry)) error {
	at := stream.Cursor{Stream: stream.ID{Session: s.key, Number: number}, Seq: s.OldestOf(ctx, number)}
	buf := make([]stream.Entry, 0, 64)
	for at.Seq < seq {
		got, err := s.m.store.Read(ctx, at, buf[:0])
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for i := range got {
			if got[i].Seq <= seq {
				do(&got[i])
			}
			at.Seq, at.Epoch = got[i].Seq, got[i].Epoch
		}
		if err != nil || len(got) == 0 {
			break
		}
	}
	return nil
}

// said takes in what the call has said beside its response. Call.mu is held.
func (t *task) said(data []byte) {
	text, ok := progressText(data)
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.updated = time.Now(); ok {
		t.message = text
	}
}

// end notes that the call has ended.
func (t *task) end(c *Call) {
	c.s.hold(c.s.m.KeepTask())
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.updated = time.Now()
	t.ended = t.updated
}

// wakeTask tells those who watch a task that what it says was stored, or that its client has
// answered.
func (s *Session) wakeTask(number uint64) {
	all := s.tasks.Load()
	if all == nil {
		return
	}
	all.mu.Lock()
	var wakers []*waker
	if t := all.all[number]; t != nil {
		for _, ready := range t.watch {
			Wake(ready)
		}
		for _, w := range t.waits {
			wakers = append(wakers, &w.waker)
		}
		if t.status != nil && s.streams.read(standalone) {
			wakers = append(wakers, t.status)
		}
	}
	all.mu.Unlock()
	for _, w := range wakers {
		w.wake()
	}
}

func (t *task) stored(c *Call) {
	if !t.created.IsZero() {
		t.addLegacy(c)
	}
}
func (t *task) answered(c *Call, _ *inflight, _ bool, _ uint64) { t.end(c) }
func (t *task) refused(c *Call, _ [][]byte, _ uint64)           { t.end(c) }
func (t *task) left(c *Call)                                    { c.s.wakeTask(c.number) }

func (t *task) cancelled(c *Call, _ *inflight) {
	t.end(c)
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.stopped = true
}

// A TaskState is what there is to tell of a task.
type TaskState struct {
	Running  bool
	Message  string            // of the last progress, or ""
	Updated  time.Time         // zero: not known
	Ended    time.Time         // zero if it runs, or it is not known
	Asked    []jsonrpc.Message // requests of the backend that wait for the client
	Response []byte            // of a call that has ended; nil if it was cancelled
}

// errTaskLost ends a task of which the store has no response.
var errTaskLost = outcomeUnknown("what became of the call is not kept")

// Task returns the state of the call of a stream. The error is [ErrNotFound] if nothing is
// kept of it, [ErrMoved], or that of the store.
func (s *Session) Task(ctx context.Context, number uint64) (st TaskState, err error) {
	c := s.streams.call(number)
	if c == nil {
		return s.endedTask(ctx, number)
	}
	t := s.addTask(c, number)
	st = TaskState{Running: true, Message: s.lastMessage(t, number)}
	t.of.mu.Lock()
	t.askedFor = true
	st.Updated = t.updated
	if t.stopped { // its end may not be stored yet
		st.Running, st.Ended = false, t.ended
	}
	t.of.mu.Unlock()
	if !st.Running {
		return st, nil
	}
	if end := c.unstoredEnd(); end != nil {
		st.Running, st.Response, st.Ended = false, end, st.Updated
		return st, nil
	}
	if asking, said := c.AwaitsInput(); asking {
		st.Asked, err = s.OpenRequests(ctx, number, said)
	}
	if errors.Is(err, stream.ErrNotFound) { // nothing is stored yet
		err = nil
	}
	return st, err
}

// unstoredEnd returns how the call has ended, if the store has not taken that, or nil.
func (c *Call) unstoredEnd() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.unstored); n > 0 {
		return c.unstored[n-1].Data
	}
	return nil
}

// endedTask is Task for a call that has ended.
func (s *Session) endedTask(ctx context.Context, number uint64) (st TaskState, err error) {
	all := s.taskTable()
	all.mu.Lock()
	if t := all.all[number]; t != nil {
		st.Message, st.Updated, st.Ended = t.message, t.updated, t.ended
	}
	all.mu.Unlock()
	id := stream.ID{Session: s.key, Number: number}
	_, next, err := s.m.store.Bounds(ctx, id)
	var end [1]stream.Entry
	got := end[:0]
	if err == nil && next > 1 {
		got, err = s.m.store.Read(ctx, stream.Cursor{Stream: id, Seq: next - 2}, end[:0])
	}
	lost := len(got) == 0 || !got[0].Last || s.streams.isBlind(number)
	switch {
	case err != nil && !errors.Is(err, io.EOF) && s.Moved():
		return st, ErrMoved
	case errors.Is(err, stream.ErrNotFound) || errors.Is(err, stream.ErrTrimmed):
		return st, ErrNotFound
	case err != nil && !errors.Is(err, io.EOF):
		return st, fmt.Errorf("task not read: %w", err)
	case lost && s.Moved():
		return st, ErrMoved
	case lost:
		st.Response = jsonrpc.AppendError(nil, []byte("0"), errTaskLost)
	case len(got[0].Data) > 0:
		st.Response = got[0].Data
	}
	return st, nil
}

// WatchTask has ready be told when anything of a task changes, until stop is called.
func (s *Session) WatchTask(number uint64, ready chan<- struct{}) (stop func()) {
	all := s.taskTable()
	c := s.streams.call(number)
	if c == nil {
		Wake(ready)
		return func() {}
	}
	t := s.addTask(c, number)
	all.mu.Lock()
	defer all.mu.Unlock()
	t.watch = append(t.watch, ready)
	return func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		if i := slices.Index(t.watch, ready); i >= 0 {
			t.watch = slices.Delete(t.watch, i, i+1)
		}
	}
}

// sweepTasks forgets tasks that ended long ago.
func (s *Session) sweepTasks(now time.Time) {
	all := s.tasks.Load()
	if all == nil {
		return
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	for number, t := range all.all {
		if !t.ended.IsZero() && now.Sub(t.ended) > s.m.KeepTask()+time.Minute {
			delete(all.all, number)
		}
	}
}

package session

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"holdfast/internal/feature/tasktext"
	"holdfast/internal/protocol"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for the experimental tasks of revision 2025-11-25 (Tasks). Holdfast offers
// them to the clients of a session whose backend has none: a tools/call that asks for a task
// is a call as others, but for what its client is told at once. It is found by the task's id,
// from any session of the same principal. How its client waits for it is in taskresult.go.

// sealLegacyTask is what the mark of such a task's id is for.
const sealLegacyTask = "holdfast task of 2025-11-25"

// offerTasks notes that the session offers tasks, if the backend's answer to initialize has
// none of its own. s.mu is held.
func (s *Session) offerTasks(result []byte) {
	offered := s.m.opts.Tasks && !s.m.opts.Stateless && !s.single && s.revision == protocol.V20251125 &&
		jsonrpc.Field(result, "capabilities", "tasks") == nil
	s.offersTasks.Store(offered)
}

// AsksForTask reports whether a request of the session's client is to become a task of
// 2025-11-25, which [Session.Begin] makes of it.
func (s *Session) AsksForTask(m *jsonrpc.Message) bool {
	return s.offersTasks.Load() && tasktext.AsksForTask(m)
}

// legacyTask returns the task that the call was begun as, or nil. It does not change.
func (c *Call) legacyTask() *task {
	if c.s.modern != "" || c.record == nil || c.record.task == nil || c.record.task.created.IsZero() {
		return nil
	}
	return c.record.task
}

// newLegacyTask returns the task of a call that nobody else knows yet.
func (s *Session) newLegacyTask(created time.Time) *task {
	t := &task{of: s.taskTable(), created: created.Truncate(time.Millisecond), updated: created}
	t.status = &waker{m: s.m}
	return t
}

// addLegacy has a task found by its number.
func (t *task) addLegacy(c *Call) {
	number, told := c.number, protocol.TaskWorking
	t.status.step = func() bool { return c.s.notifyTaskStatus(number, &told) }
	t.of.mu.Lock()
	t.of.all[number] = t
	t.of.mu.Unlock()
	c.s.m.resumer(c.s)
}

// legacyTaskID returns the id of a task.
func (s *Session) legacyTaskID(number uint64) string { return s.Seal(sealLegacyTask, number, nil) }

// TaskHome returns the session that a request of the session's client is for: another one of
// the same principal if it is about a task of that one. The error is a [*Redirect], that of a
// store which can't tell, or [ErrDuplicate].
func (s *Session) TaskHome(m *jsonrpc.Message) (*Session, error) {
	if !s.offersTasks.Load() || m.Kind != jsonrpc.Request || !tasktext.IsLegacyMethod(m.Method) || m.Method == protocol.MethodTaskList {
		return s, nil
	}
	id := jsonrpc.String(jsonrpc.Field(m.Params, "taskId"))
	t, ok := ticket.Parse(id)
	if !ok || t.Session == s.Name() {
		return s, nil
	}
	if s.CallOf(m.ID) != nil {
		return nil, ErrDuplicate
	}
	home, _, err := s.m.FindSeal(sealLegacyTask, id, nil, s.principal)
	if errors.Is(err, ErrNotFound) {
		return s, nil // which says so
	}
	if m.Method == protocol.MethodTaskResult { // all others are answered at once
		s.goesAbroad(m.ID, stream.SessionKey(t.Session))
	}
	return home, err
}

// notifyLegacyTask returns what the client is told of a task.
func (s *Session) notifyLegacyTask(number uint64, created time.Time, st *TaskState) *tasktext.Legacy {
	t := tasktext.NewLegacy(s.legacyTaskID(number), created, st.Updated, st.Ended, s.m.KeepTask())
	switch t.Message = st.Message; {
	case !st.Running:
		t.End(st.Response)
	case len(st.Asked) > 0:
		t.Status = protocol.TaskInputRequired
	}
	return t
}

// errNoTask refuses the id of a task.
var errNoTask = jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "task not found: its id is not valid here, or it is no longer kept")

// TaskCreated returns the response that tells the client of a request that its call, whose
// stream this is, is a task.
func (s *Session) TaskCreated(ctx context.Context, number uint64, id []byte) []byte {
	created, st, err := s.legacyTaskState(ctx, number)
	if err != nil {
		return taskFailure(id, err)
	}
	if c := s.streams.call(number); c != nil {
		c.releaseWebhooks(number) // nobody waits for it on this connection
	}
	text, _ := json.Marshal(map[string]any{"task": s.notifyLegacyTask(number, created, &st)})
	return jsonrpc.AppendResult(nil, id, text)
}

// taskFailure answers a request about a task with an error.
func taskFailure(id []byte, err error) []byte {
	var e *jsonrpc.Error
	switch {
	case errors.Is(err, ErrNotFound):
		e = errNoTask
	case !errors.As(err, &e):
		e = jsonrpc.Errorf(jsonrpc.CodeInternal, "the task cannot be read: try again later")
	}
	return jsonrpc.AppendError(nil, id, e)
}

// legacyTaskState returns the state of a task of the session. The error is that of
// [Session.Task].
func (s *Session) legacyTaskState(ctx context.Context, number uint64) (created time.Time, st TaskState, err error) {
	all := s.taskTable()
	all.mu.Lock()
	t := all.all[number]
	gone := t == nil || t.created.IsZero() || !t.ended.IsZero() && time.Since(t.ended) > s.m.KeepTask()
	all.mu.Unlock()
	if gone {
		return created, st, ErrNotFound
	}
	st, err = s.Task(ctx, number)
	return t.created, st, err
}

// answerTask answers a request of the client about tasks, which is the call's. It returns
// before that is done.
func (s *Session) answerTask(c *Call, m jsonrpc.Message) {
	if !s.m.startWork() {
		return // all calls end now
	}
	go func() {
		defer s.m.work.Done()
		ctx, stop := context.WithTimeout(s.m.ctx, storeTimeout)
		defer stop()
		if answer := s.taskAnswer(ctx, c, &m); answer != nil {
			s.answerOwn(c, m.ID, answer)
		}
	}()
}

// answerOwn answers a request of a client in the backend's place, if it is still unanswered.
func (s *Session) answerOwn(c *Call, id, answer []byte) {
	s.mu.Lock()
	rq := s.takeRequest(id, c)
	s.mu.Unlock()
	if rq != nil {
		c.respond(rq, answer)
		s.requestEnded(rq)
	}
}

// taskAnswer returns the answer to a request about tasks, or nil if it comes later.
func (s *Session) taskAnswer(ctx context.Context, c *Call, m *jsonrpc.Message) []byte {
	if m.Method == protocol.MethodTaskList {
		return s.listTasks(ctx, m)
	}
	t, ok := ticket.Parse(jsonrpc.String(jsonrpc.Field(m.Params, "taskId")))
	if !ok || !s.sealed(t, sealLegacyTask) {
		return taskFailure(m.ID, errNoTask)
	}
	number := t.Number
	created, st, err := s.legacyTaskState(ctx, number)
	switch {
	case err != nil:
		return taskFailure(m.ID, err)
	case m.Method == protocol.MethodTaskResult && st.Running:
		s.awaitTask(c, m.ID, number)
		return nil
	case m.Method == protocol.MethodTaskResult:
		return s.taskResult(m.ID, number, &st)
	case m.Method == protocol.MethodTaskCancel:
		if err := s.cancelTask(ctx, number, &st); err != nil {
			return taskFailure(m.ID, err)
		}
	}
	text, _ := json.Marshal(s.notifyLegacyTask(number, created, &st))
	return jsonrpc.AppendResult(nil, m.ID, text)
}

// cancelTask cancels a task that runs. st is its state, which changes.
func (s *Session) cancelTask(ctx context.Context, number uint64, st *TaskState) (err error) {
	if c := s.streams.call(number); c != nil && st.Running && c.Withdraw("the client cancelled the task") {
		*st = TaskState{Updated: time.Now(), Ended: time.Now()}
		return nil
	}
	if st.Running { // it has ended just now
		if *st, err = s.Task(ctx, number); err != nil {
			return err
		}
	}
	return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "cannot cancel the task: it has ended, and is %q", s.notifyLegacyTask(number, time.Now(), st).Status)
}

package session

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"holdfast/internal/feature/tasktext"
	"holdfast/internal/protocol"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for the experimental tasks of revision 2025-11-25 (Tasks). Holdfast offers
// them to the clients of a session whose backend has none: a tools/call that asks for a task
// is a deferred call. It is found by the task's id, from any session of the same principal. How
// its client waits for it is in taskresult.go.

// sealLegacyTask is what the mark of such a task's id is for.
const sealLegacyTask = "holdfast task of 2025-11-25"

// legacyTasks are the tasks of a session, as a [service].
type legacyTasks struct{ s *Session }

func (l legacyTasks) member() string          { return "tasks" }
func (l legacyTasks) isOn() bool              { return l.s.m.opts.Tasks }
func (l legacyTasks) owns(method string) bool { return tasktext.IsLegacyMethod(method) }
func (l legacyTasks) isForHome(method string) bool {
	return l.owns(method) && method != protocol.MethodTaskList
}
func (l legacyTasks) defers(m *jsonrpc.Message) bool { return tasktext.AsksForTask(m) }

// suits reports whether the backend has no tasks of its own.
func (l legacyTasks) suits(result []byte) bool {
	return !l.s.m.opts.Stateless && !l.s.single && l.s.revision == protocol.V20251125 &&
		jsonrpc.Field(result, "capabilities", "tasks") == nil
}

func (l legacyTasks) change(method string, response []byte) []byte {
	switch method {
	case protocol.MethodInitialize, protocol.MethodDiscover:
		response, _ = jsonrpc.Set(response, tasktext.Capability, "result", "capabilities", "tasks")
	case protocol.MethodToolsList:
		response = tasktext.Support(response)
	}
	return response
}

func (l legacyTasks) home(m *jsonrpc.Message) (*Session, error) {
	s, id := l.s, jsonrpc.String(jsonrpc.Field(m.Params, "taskId"))
	t, ok := ticket.Parse(id)
	if !ok || t.Session == s.Name() {
		return s, nil
	}
	if s.CallFrom("", m.ID) != nil {
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

func (l legacyTasks) begun(at time.Time) *watched {
	w := &watched{of: l.s.watchedTable(), updated: at}
	w.deferred = &legacyTask{legacyTasks: l, watched: w, created: at.Truncate(time.Millisecond), status: &waker{m: l.s.m}}
	return w
}

func (l legacyTasks) restored(note []byte) *watched {
	created, err := strconv.ParseInt(string(jsonrpc.Field(note, "task")), 10, 64)
	if err != nil {
		return nil
	}
	return l.begun(time.UnixMilli(created))
}

func (l legacyTasks) deferral(ctx context.Context, number uint64, id []byte) []byte {
	t, st, err := l.state(ctx, number)
	if err != nil {
		return taskFailure(id, err)
	}
	if c := l.s.CallAt(number); c != nil {
		c.untold().Release(number) // no client waits for it on this connection
	}
	text, _ := json.Marshal(map[string]any{"task": l.text(number, t.created, &st)})
	return jsonrpc.AppendResult(nil, id, text)
}

// A legacyTask is what is known of a task beside what is of each watched call. It is [deferred]. Guarded by watchedCalls.mu.
type legacyTask struct {
	legacyTasks
	*watched
	created time.Time   // it does not change
	status  *waker      // tells of it on the standalone stream
	waits   []*taskWait // tasks/result that wait for it
	copied  uint64      // how much of the stream they have told
}

func (t *legacyTask) stored(c *Call) {
	number, told := c.number, protocol.TaskWorking
	t.status.step = func() bool { return t.notifyStatus(number, &told) }
	t.s.m.resumer(t.s)
}

func (t *legacyTask) appendNote(dst []byte) []byte {
	return strconv.AppendInt(append(dst, `,"task":`...), t.created.UnixMilli(), 10)
}

func (t *legacyTask) plain(m jsonrpc.Message) jsonrpc.Message { return tasktext.Plain(m) }

func (t *legacyTask) changed() (wakers []*waker) {
	for _, w := range t.waits {
		wakers = append(wakers, &w.waker)
	}
	if t.s.streams.IsRead(standalone) {
		wakers = append(wakers, t.status)
	}
	return wakers
}

// at returns the task whose call has a stream, or nil.
func (l legacyTasks) at(number uint64) (t *legacyTask) {
	if w := l.s.watchedAt(number); w != nil {
		t, _ = w.deferred.(*legacyTask)
	}
	return t
}

// id returns the id of a task.
func (l legacyTasks) id(number uint64) string { return l.s.Seal(sealLegacyTask, number, nil) }

// text returns what the client is told of a task.
func (l legacyTasks) text(number uint64, created time.Time, st *Standing) *tasktext.Legacy {
	t := tasktext.NewLegacy(l.id(number), created, st.Updated, st.Ended, l.s.m.KeepEnded())
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

// state returns a task of the session, and how its call stands. The error is that of [Session.Standing].
func (l legacyTasks) state(ctx context.Context, number uint64) (t *legacyTask, st Standing, err error) {
	if t = l.at(number); t == nil || t.isGone(l.s.m.KeepEnded()) {
		return nil, st, ErrNotFound
	}
	st, err = l.s.Standing(ctx, number)
	return t, st, err
}

func (l legacyTasks) serve(c *Call, m jsonrpc.Message) {
	if !l.s.m.startWork() {
		return // all calls end now
	}
	go func() {
		defer l.s.m.work.Done()
		ctx, stop := context.WithTimeout(l.s.m.ctx, storeTimeout)
		defer stop()
		if answer := l.answer(ctx, c, &m); answer != nil {
			c.answerOwn(m.ID, answer)
		}
	}()
}

// answer returns the answer to a request about tasks, or nil if it comes later.
func (l legacyTasks) answer(ctx context.Context, c *Call, m *jsonrpc.Message) []byte {
	if m.Method == protocol.MethodTaskList {
		return l.list(ctx, m)
	}
	id, ok := ticket.Parse(jsonrpc.String(jsonrpc.Field(m.Params, "taskId")))
	if !ok || !l.s.sealed(id, sealLegacyTask) {
		return taskFailure(m.ID, errNoTask)
	}
	t, st, err := l.state(ctx, id.Number)
	switch {
	case err != nil:
		return taskFailure(m.ID, err)
	case m.Method == protocol.MethodTaskResult && st.Running:
		l.await(c, m.ID, id.Number)
		return nil
	case m.Method == protocol.MethodTaskResult:
		return l.result(m.ID, id.Number, &st)
	case m.Method == protocol.MethodTaskCancel:
		if err := l.cancel(ctx, id.Number, &st); err != nil {
			return taskFailure(m.ID, err)
		}
	}
	text, _ := json.Marshal(l.text(id.Number, t.created, &st))
	return jsonrpc.AppendResult(nil, m.ID, text)
}

// cancel cancels a task that runs. st is how its call stands, which changes.
func (l legacyTasks) cancel(ctx context.Context, number uint64, st *Standing) (err error) {
	if c := l.s.CallAt(number); c != nil && st.Running && c.Withdraw("the client cancelled the task") {
		*st = Standing{Updated: time.Now(), Ended: time.Now()}
		c.awaitEndStored(ctx)
		return nil
	}
	if st.Running { // it has ended just now
		if *st, err = l.s.Standing(ctx, number); err != nil {
			return err
		}
	}
	return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "cannot cancel the task: it has ended, and is %q", l.text(number, time.Now(), st).Status)
}

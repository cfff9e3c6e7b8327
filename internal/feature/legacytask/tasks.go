// Package legacytask has the experimental tasks of revision 2025-11-25 (Tasks). Holdfast offers them to the clients of a
// session if its backend has none: a tools/call that asks for a task is a deferred call. The task is found by its id, from any
// session of the same principal. result.go lets clients wait for it.
package legacytask

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"holdfast/internal/deferred"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// tasks is the [session.Service] for the tasks of a manager.
type tasks struct {
	sessions *session.Manager
	logger   *slog.Logger
}

// New returns the tasks of a manager: for [session.Options].
func New(m *session.Manager, o *session.Options) session.Service {
	return &tasks{sessions: m, logger: o.Logger}
}

// seal is the purpose that is sealed into a task's id.
const seal = "holdfast task of 2025-11-25"

func (*tasks) Member() string { return "tasks" }

// Suits reports whether the backend has no tasks of its own.
func (*tasks) Suits(s *session.Session, revision string, result []byte) bool {
	return !s.SingleStream() && revision == protocol.V20251125 && jsonrpc.Field(result, "capabilities", "tasks") == nil
}

func (*tasks) Change(method string, response []byte) []byte {
	switch method {
	case protocol.MethodInitialize, protocol.MethodDiscover:
		response, _ = jsonrpc.Set(response, capability, "result", "capabilities", "tasks")
	case protocol.MethodToolsList:
		response = support(response)
	}
	return response
}

func (*tasks) Owns(method string) bool {
	switch method {
	case protocol.MethodTaskGet, protocol.MethodTaskResult, protocol.MethodTaskList, protocol.MethodTaskCancel:
		return true
	}
	return false
}

// About returns the task that a request is about. All requests but tasks/result are answered at once.
func (t *tasks) About(m *jsonrpc.Message) (purpose, text string, waits bool) {
	if !t.Owns(m.Method) || m.Method == protocol.MethodTaskList {
		return "", "", false
	}
	return seal, jsonrpc.String(jsonrpc.Field(m.Params, "taskId")), m.Method == protocol.MethodTaskResult
}

func (*tasks) Defers(m *jsonrpc.Message) bool {
	if m.Kind != jsonrpc.Request || m.Method != protocol.MethodCallTool {
		return false
	}
	asks := jsonrpc.Field(m.Params, "task")
	return len(asks) > 0 && asks[0] == '{'
}

func (t *tasks) Begun(s *session.Session) deferred.Deferred { return t.begun(s, time.Now()) }

func (t *tasks) begun(s *session.Session, at time.Time) *task {
	is := &task{of: t, s: s, created: at.Truncate(time.Millisecond), status: protocol.TaskWorking}
	is.teller = waker{sessions: t.sessions, step: is.notifyStatus}
	return is
}

func (t *tasks) Restored(s *session.Session, note []byte) deferred.Deferred {
	created, err := strconv.ParseInt(string(jsonrpc.Field(note, "task")), 10, 64)
	if err != nil {
		return nil
	}
	return t.begun(s, time.UnixMilli(created))
}

func (t *tasks) Deferral(id []byte, d deferred.Deferred, st *deferred.Standing, err error) []byte {
	if err != nil {
		return failure(id, err)
	}
	text, _ := json.Marshal(map[string]any{"task": d.(*task).text(st)})
	return jsonrpc.AppendResult(nil, id, text)
}

// A task has the state of a task that its session does not keep with the call: a [deferred.Deferred].
type task struct {
	of      *tasks
	s       *session.Session
	created time.Time // never changes
	number  uint64    // of the call's stream; never changes once the stream exists
	teller  waker     // reports its status on the standalone stream
	status  string    // last reported there; only the teller uses it

	mu     sync.Mutex
	waits  []*wait // tasks/result that wait for it
	copied uint64  // the last sequence of the stream that they have copied
}

func (t *task) Stored(number uint64) { t.number = number }

func (t *task) AppendNote(dst []byte) []byte {
	return strconv.AppendInt(append(dst, `,"task":`...), t.created.UnixMilli(), 10)
}

func (*task) Plain(m jsonrpc.Message) jsonrpc.Message {
	return protocol.Parsed(jsonrpc.AppendRequest(nil, m.ID, m.Method, protocol.Without(m.Params, "task")), m)
}

func (t *task) Changed() {
	t.mu.Lock()
	waits := slices.Clone(t.waits)
	t.mu.Unlock()
	for _, w := range waits {
		w.wake()
	}
	if t.s.Hears() {
		t.teller.wake()
	}
}

// id returns the task's id.
func (t *task) id() string { return t.s.Tickets().Make(seal, t.number, nil) }

// text returns the task as its client sees it.
func (t *task) text(st *deferred.Standing) *told {
	is := newTold(t.id(), t.created, st.Updated, st.Ended, t.of.sessions.KeepEnded())
	switch is.Message = st.Message; {
	case !st.Running:
		is.end(st.Response)
	case len(st.Asked) > 0:
		is.Status = protocol.TaskInputRequired
	}
	return is
}

// errNoTask refuses the id of a task.
var errNoTask = jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "task not found: its id is not valid here, or it is no longer kept")

// failure answers a request about a task with an error.
func failure(id []byte, err error) []byte {
	var e *jsonrpc.Error
	switch {
	case errors.Is(err, session.ErrNotFound):
		e = errNoTask
	case !errors.As(err, &e):
		e = jsonrpc.Errorf(jsonrpc.CodeInternal, "the task cannot be read: try again later")
	}
	return jsonrpc.AppendError(nil, id, e)
}

// find returns a task of a session, and the standing of its call. The error is that of [deferred.Calls.Standing].
func find(ctx context.Context, s *session.Session, number uint64) (t *task, st deferred.Standing, err error) {
	d, st, err := s.Watched.Deferred(ctx, number)
	t, ok := d.(*task)
	if err == nil && !ok {
		err = session.ErrNotFound
	}
	return t, st, err
}

// Answer returns the answer to a request about tasks, or nil if the answer comes later.
func (t *tasks) Answer(ctx context.Context, c *session.Call, m *jsonrpc.Message, number uint64) []byte {
	if m.Method == protocol.MethodTaskList {
		return t.list(ctx, c.Session(), m)
	}
	is, st, err := find(ctx, c.Session(), number)
	switch {
	case err != nil:
		return failure(m.ID, err)
	case m.Method == protocol.MethodTaskResult && st.Running:
		is.await(c, m.ID)
		return nil
	case m.Method == protocol.MethodTaskResult:
		return is.result(m.ID, &st)
	case m.Method == protocol.MethodTaskCancel:
		if err := is.cancel(ctx, &st); err != nil {
			return failure(m.ID, err)
		}
	}
	text, _ := json.Marshal(is.text(&st))
	return jsonrpc.AppendResult(nil, m.ID, text)
}

// cancel cancels the task, if it runs. It updates st, the standing of the task's call.
func (t *task) cancel(ctx context.Context, st *deferred.Standing) (err error) {
	if c := t.s.CallAt(t.number); c != nil && st.Running && c.Withdraw("the client cancelled the task") {
		_, _ = t.s.Watched.Standing(ctx, t.number) // wait until the store has the end; the task is cancelled in any case
		*st = deferred.Standing{Updated: time.Now(), Ended: time.Now()}
		return nil
	}
	if st.Running { // the task has ended just now
		if *st, err = t.s.Watched.Standing(ctx, t.number); err != nil {
			return err
		}
	}
	return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "cannot cancel the task: it has ended, and is %q", t.text(st).Status)
}

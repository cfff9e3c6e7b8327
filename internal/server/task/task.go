// Package task has the tasks of revision 2026-07-28 (the extension io.modelcontextprotocol/tasks): a call that is not answered
// soon becomes a task, if its client knows tasks. A task's status is read from the call's log, as its answer would have been.
package task

import (
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/deferred"
	"holdfast/internal/feature/tasktext"
	"holdfast/internal/protocol"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// Tasks serves the tasks of a handler. Its methods may be called concurrently.
type Tasks struct {
	sessions *session.Manager
	after    time.Duration // the age at which a call becomes a task; 0: never
	logger   *slog.Logger
}

// New returns the tasks of a handler. after is the age at which a call becomes a task; 0 or less: no call does.
func New(sessions *session.Manager, after time.Duration, logger *slog.Logger) *Tasks {
	return &Tasks{sessions: sessions, after: max(after, 0), logger: logger}
}

// sealTask is the purpose of a task id's ticket.
const sealTask = "holdfast task"

// A taskID is a parsed task id: the seal names the call, and since is when it became a task.
type taskID struct {
	text    string
	seal    string
	since   string    // created, as text
	created time.Time // whole milliseconds
}

// newTaskID returns the id of the task that a session's call becomes.
func newTaskID(s *session.Session, number uint64, now time.Time) taskID {
	id := taskID{created: now.Truncate(time.Millisecond)}
	id.since = strconv.FormatInt(id.created.UnixMilli(), 36)
	id.seal = s.Tickets().Make(sealTask, number, id.bound())
	id.text = id.seal + "." + id.since
	return id
}

// parseTaskID parses a task's id. ok is false for an id that is not Holdfast's. It does not
// check the seal.
func parseTaskID(text string) (id taskID, ok bool) {
	i := strings.LastIndexByte(text, '.')
	if i < 0 || len(text) > 128 || !ticket.Is(text[:i]) {
		return id, false
	}
	ms, err := strconv.ParseInt(text[i+1:], 36, 64)
	id = taskID{text: text, seal: text[:i], since: text[i+1:], created: time.UnixMilli(ms)}
	var since [16]byte
	return id, err == nil && id.since == string(strconv.AppendInt(since[:0], ms, 36))
}

// bound returns the time that the id is bound to beside the call, as a JSON string.
func (id *taskID) bound() []byte {
	return append(append(append(make([]byte, 0, 16), '"'), id.since...), '"')
}

// isTaskMethod reports whether a method is of the tasks extension.
func isTaskMethod(method string) bool {
	return method == protocol.MethodTaskGet || method == protocol.MethodTaskUpdate || method == protocol.MethodTaskCancel
}

// errNoTask refuses the id of a task that is not kept.
var errNoTask = jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "task not found: its id is not valid here, or it is no longer kept")

// knows reports whether the client of a request has declared the extension.
func knows(q *modern.Request) bool { return q.Declares("extensions", protocol.ExtensionTasks) }

// Ref returns the id of the task that a request is about, if that is Holdfast's. It begins with the name of the session.
func (*Tasks) Ref(q *modern.Request) string {
	if isTaskMethod(q.Method) {
		if id, ours := parseTaskID(q.Name); ours {
			return id.text
		}
	}
	return ""
}

// Serve serves a request about a task. ours is false if the task is the backend's.
func (t *Tasks) Serve(q *modern.Request, m *jsonrpc.Message) (result []byte, ours bool, err error) {
	if !isTaskMethod(q.Method) {
		return nil, false, nil
	}
	id, ours := parseTaskID(q.Name)
	if !knows(q) && (ours || t.after > 0) {
		return nil, true, modern.Missing(protocol.ExtensionTasks)
	}
	if !ours {
		return nil, false, nil
	}
	result, err = t.result(q, m, &id)
	return result, true, err
}

// result serves a request about a task of Holdfast's, and returns the result.
func (t *Tasks) result(q *modern.Request, m *jsonrpc.Message, id *taskID) (result []byte, err error) {
	s, number, err := t.sessions.FindSeal(sealTask, id.seal, id.bound(), q.Principal)
	if err != nil {
		return nil, err
	}
	st, err := s.Watched.Standing(q.Values(), number)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Method == protocol.MethodTaskGet:
		return t.text(id, &st, protocol.ResultComplete).JSON(), nil
	case m.Method == protocol.MethodTaskUpdate:
		_, err = modern.Respond(q.Values(), s, m, st.Asked)
	case st.Running:
		if c := s.CallAt(number); c != nil {
			c.Withdraw("the client cancelled the task")
		}
	}
	return []byte(`{"resultType":"` + protocol.ResultComplete + `"}`), err
}

// NotFound returns the error for a request about a task in a session that is not found; nil: the method is not about tasks.
func (*Tasks) NotFound(method string) *jsonrpc.Error {
	if !isTaskMethod(method) {
		return nil
	}
	return errNoTask
}

// text returns a task as the client gets it.
func (t *Tasks) text(id *taskID, st *deferred.Standing, resultType string) *tasktext.Text {
	now := time.Now()
	end := st.Ended
	if end.IsZero() {
		end = now
	}
	updated := st.Updated
	if updated.Before(id.created) {
		updated = id.created
	}
	age := end.Sub(id.created)
	is := &tasktext.Text{
		ResultType: resultType,
		ID:         id.text,
		Status:     protocol.TaskWorking,
		Message:    st.Message,
		Created:    tasktext.Time(id.created),
		Updated:    tasktext.Time(updated),
		TTL:        (max(age, 0) + t.sessions.KeepEnded()).Milliseconds(),
		Poll:       tasktext.PollAfter(age).Milliseconds(),
	}
	switch {
	case st.Running && len(st.Asked) > 0:
		is.Status, is.Asked = protocol.TaskInputRequired, []byte{'{'}
		for i := range st.Asked {
			is.Asked = modern.AppendInput(is.Asked, st.Asked[i].ID, &st.Asked[i])
		}
		is.Asked = append(is.Asked, '}')
	case st.Running:
	case st.Response == nil:
		is.Status = protocol.TaskCancelled
	default:
		is.End(st.Response)
	}
	return is
}

// Patience returns the age at which the call of a request becomes a task; 0: it never does.
func (t *Tasks) Patience(q *modern.Request) time.Duration {
	if t.after == 0 || q.Method != protocol.MethodCallTool || !knows(q) {
		return 0
	}
	return t.after
}

// Answer makes the call of a request a task, and returns the result that says so; nil if the call
// can't become one.
func (t *Tasks) Answer(q *modern.Request, m *jsonrpc.Message, s *session.Session, number uint64) []byte {
	since, err := s.NameCall(number, m, q.HTTP.Header)
	if err != nil {
		if !errors.Is(err, session.ErrNotFound) {
			t.logger.Warn("call did not become a task", "session", s.Name(), "error", err)
		}
		return nil
	}
	id := newTaskID(s, number, since)
	st, err := s.Watched.Standing(q.Values(), number)
	if err != nil || !st.Running {
		return nil // the call's end answers the request
	}
	is := t.text(&id, &st, protocol.ResultTask)
	is.Asked = nil // tasks/get returns them
	return is.JSON()
}

// Own adds the extension to the result of server/discover, and calls notMethod for the response to a request about a task.
func (t *Tasks) Own(q *modern.Request, response []byte) []byte {
	switch {
	case t.after == 0:
	case q.Method == protocol.MethodDiscover:
		return modern.Offer(response, protocol.ExtensionTasks)
	case isTaskMethod(q.Method):
		return notMethod(response)
	}
	return response
}

// notMethod replaces method not found, from a backend without tasks, by errNoTask: the task
// is neither Holdfast's nor the backend's.
func notMethod(response []byte) []byte {
	if string(jsonrpc.Field(response, "error", "code")) != strconv.Itoa(jsonrpc.CodeMethodNotFound) {
		return response
	}
	return jsonrpc.AppendError(nil, jsonrpc.Field(response, "id"), errNoTask)
}

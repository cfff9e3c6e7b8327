package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/feature/tasktext"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// What follows is for tasks (the extension io.modelcontextprotocol/tasks): a call that is not
// answered soon becomes one, if its client knows tasks. A task's status is read from the
// call's log, as its answer would have been.

// sealTask is what the mark of a task's id is for.
const sealTask = "holdfast task"

// A taskID is what a task's id says: which call it is, and since when it has been a task.
type taskID struct {
	text    string
	seal    string
	since   string    // when it was made, as text
	created time.Time // whole milliseconds
}

// newTaskID returns the id of a task of a session.
func newTaskID(s *session.Session, number uint64, now time.Time) taskID {
	id := taskID{created: now.Truncate(time.Millisecond)}
	id.since = strconv.FormatInt(id.created.UnixMilli(), 36)
	id.seal = s.Seal(sealTask, number, id.bound())
	id.text = id.seal + "." + id.since
	return id
}

// parseTaskID reads a task's id. It is false for one that is not of Holdfast. The seal is still
// to be checked.
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

// bound returns what the id is bound to beside the call, as a JSON string.
func (id *taskID) bound() []byte {
	return append(append(append(make([]byte, 0, 16), '"'), id.since...), '"')
}

// isTaskMethod reports whether a method is of the tasks extension.
func isTaskMethod(method string) bool {
	return method == protocol.MethodTaskGet || method == protocol.MethodTaskUpdate || method == protocol.MethodTaskCancel
}

// errNoTask refuses a task's id.
var errNoTask = errf(jsonrpc.CodeInvalidParams, "task not found: its id is not valid here, or it is no longer kept")

// errNoCapability refuses a request of a client that does not say that it knows tasks.
func errNoCapability() *jsonrpc.Error {
	e := errf(protocol.CodeMissingCapability, "missing required client capability: the extension %s", protocol.ExtensionTasks)
	e.Data = json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + protocol.ExtensionTasks + `":{}}}}`)
	return e
}

// knowsTasks reports whether the client of a request has declared the extension.
func (q *modern) knowsTasks() bool { return q.declares("extensions", protocol.ExtensionTasks) }

// mayBeTask reports whether the call of a modern request becomes a task, if it takes long.
func (x *exchange) mayBeTask() bool {
	return x.modern.tasks && x.method() == protocol.MethodCallTool && x.modern.knowsTasks()
}

// hasTasks reports whether calls become tasks here.
func (h *Handler) hasTasks() bool { return h.opts.TaskAfter > 0 && !h.opts.Stateless }

// serveTask serves a request about a task, unless the task is the backend's: then it is
// false. An error says that nothing was answered.
func (h *Handler) serveTask(w http.ResponseWriter, x *exchange) (ours bool, err error) {
	m, id := &x.msgs[0], &x.modern.task
	ours = id.text != ""
	if !x.modern.knowsTasks() && (ours || h.hasTasks()) {
		h.rejectModern(w, x, http.StatusBadRequest, errNoCapability())
		return true, nil
	}
	if !ours {
		return false, nil
	}
	result, err := h.taskResult(x, m, id)
	if errors.Is(err, session.ErrNotFound) {
		err = errNoTask
	}
	if errors.Is(err, errNoTask) {
		h.rejectModern(w, x, http.StatusOK, errNoTask)
		return true, nil
	}
	if err != nil {
		return true, err
	}
	response := make([]byte, 0, len(result)+len(x.modern.id)+40)
	h.writeModern(w, x, jsonrpc.AppendResult(response, x.modern.id, result))
	return true, nil
}

// taskResult does what a request about a task asks for, and returns the result.
func (h *Handler) taskResult(x *exchange, m *jsonrpc.Message, id *taskID) (result []byte, err error) {
	s, number, err := h.sessions.FindSeal(sealTask, id.seal, id.bound(), x.principal)
	if err != nil {
		return nil, err
	}
	st, err := s.Standing(x.values(), number)
	if err != nil {
		return nil, err
	}
	switch {
	case m.Method == protocol.MethodTaskGet:
		return h.tellTask(id, &st, protocol.ResultComplete).JSON(), nil
	case m.Method == protocol.MethodTaskUpdate:
		_, err = respond(x.values(), s, m, st.Asked)
	case st.Running:
		if c := s.CallAt(number); c != nil {
			c.Withdraw("the client cancelled the task")
		}
	}
	return []byte(`{"resultType":"` + protocol.ResultComplete + `"}`), err
}

// tellTask returns what the client is told of a task.
func (h *Handler) tellTask(id *taskID, st *session.Standing, resultType string) *tasktext.Text {
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
	t := &tasktext.Text{
		ResultType: resultType,
		ID:         id.text,
		Status:     protocol.TaskWorking,
		Message:    st.Message,
		Created:    tasktext.Time(id.created),
		Updated:    tasktext.Time(updated),
		TTL:        (max(age, 0) + h.sessions.KeepEnded()).Milliseconds(),
		Poll:       tasktext.PollAfter(age).Milliseconds(),
	}
	switch {
	case st.Running && len(st.Asked) > 0:
		t.Status, t.Asked = protocol.TaskInputRequired, []byte{'{'}
		for i := range st.Asked {
			t.Asked = appendInput(t.Asked, st.Asked[i].ID, &st.Asked[i])
		}
		t.Asked = append(t.Asked, '}')
	case st.Running:
	case st.Response == nil:
		t.Status = protocol.TaskCancelled
	default:
		t.End(st.Response)
	}
	return t
}

// becomesTask reports whether the call is to become a task now.
func (p *reply) becomesTask(a *alarm) bool {
	if !p.tasks || !a.due(p.began.Add(p.h.opts.TaskAfter)) {
		return false
	}
	p.ends = p.createTask
	return true
}

// createTask has the call be a task, and returns the response that says so; nil if it can't be
// one.
func (p *reply) createTask() []byte {
	p.tasks = false
	if p.x.r.Context().Err() != nil { // nobody would learn of the task, and the call is cancelled
		return nil
	}
	number := p.r.Cursor().Stream.Number
	since, err := p.s.NameCall(number, &p.x.msgs[0], p.x.r.Header)
	if err != nil {
		if !errors.Is(err, session.ErrNotFound) {
			p.h.logger.Warn("call did not become a task", "session", p.s.Name(), "error", err)
		}
		return nil
	}
	id := newTaskID(p.s, number, since)
	st, err := p.s.Standing(p.x.values(), number)
	if err != nil || !st.Running {
		return nil // its end comes
	}
	p.goesOn = true
	t := p.h.tellTask(&id, &st, protocol.ResultTask)
	t.Asked = nil // tasks/get has them
	return jsonrpc.AppendResult(nil, p.x.modern.id, t.JSON())
}

// withTasks adds to the result of server/discover that calls become tasks.
func withTasks(response []byte) []byte {
	if jsonrpc.Field(response, "result") == nil {
		return response
	}
	response, _ = jsonrpc.Set(response, []byte(`{}`), "result", "capabilities", "extensions", protocol.ExtensionTasks)
	return response
}

// notMethod has the id of a task that is nobody's refused as such, where the backend knows no
// tasks.
func notMethod(response []byte) []byte {
	if string(jsonrpc.Field(response, "error", "code")) != strconv.Itoa(jsonrpc.CodeMethodNotFound) {
		return response
	}
	return jsonrpc.AppendError(nil, jsonrpc.Field(response, "id"), errNoTask)
}

package bridge

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"holdfast/client"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file makes tasks (extension io.modelcontextprotocol/tasks) where the server has none: a
// call that is not answered soon becomes a task, if its host knows tasks. The task's id names
// the call's record, so that a task outlives its process.

// taskPrefix begins the id of each task of a bridge; a task without it is the server's. The rest
// is the call's id at the server.
const taskPrefix = "holdfast-connect."

// metaTask is the member of _meta that names the task which a request continues, between
// [modernHost] and the server's side of the bridge.
const metaTask = "holdfast/connectTask"

// taskOf returns the id of the task that a request continues, or "".
func taskOf(m jsonrpc.Message) string {
	if m.Method != protocol.MethodCallTool {
		return ""
	}
	return jsonrpc.String(jsonrpc.Field(m.Params, "_meta", metaTask))
}

// offersTasks reports whether calls become tasks here: a server with sessions has no tasks.
func (h *modernHost) offersTasks() bool { return h.taskAfter > 0 && h.b.serverEra() == legacyEra }

// patience starts the timer that makes the call of an exchange a task. h.mu is held.
func (h *modernHost) patience(x *exchange) {
	if x.state == waiting {
		x.timer = time.AfterFunc(h.taskAfter, func() { h.b.start(func() { h.handOff(x) }) })
	}
}

// knowsTasks reports whether the host of a request has declared the extension.
func knowsTasks(m jsonrpc.Message) bool {
	raw := jsonrpc.Field(m.Params, "_meta", protocol.MetaClientCapabilities, "extensions", protocol.ExtensionTasks)
	return len(raw) > 0 && raw[0] == '{'
}

// handOff makes the call of an exchange a task, if the host still waits for it.
func (h *modernHost) handOff(x *exchange) {
	switch h.b.serverEra() {
	case unknownEra: // a session may still begin
		h.mu.Lock()
		h.patience(x)
		h.mu.Unlock()
		return
	case modernEra:
		return // a modern server makes tasks itself
	}
	now := time.Now().Truncate(time.Millisecond)
	id, since, ok := h.b.makeTask(x, now) // before the host is told
	h.mu.Lock()
	if !ok { // the server does not have the call yet, or has just answered it
		h.patience(x)
	}
	if !ok || !x.move(handedOff) {
		h.mu.Unlock()
		return
	}
	h.release(x)
	x.task = &task{id: id, found: true, created: since, updated: now}
	h.tasks[id] = x
	hostID := x.hostID
	told := without(x.tell(protocol.ResultTask), "inputRequests") // tasks/get has them
	h.mu.Unlock()
	h.b.host.write(jsonrpc.AppendResult(nil, hostID, told))
}

// Errors about tasks.
var errNoTask = jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "task not found: its id is not valid here, or it is no longer kept")

// errNoCapability refuses a request of a host that has not declared the extension.
func errNoCapability() *jsonrpc.Error {
	e := jsonrpc.Errorf(protocol.CodeMissingCapability, "missing required client capability: the extension %s", protocol.ExtensionTasks)
	e.Data = json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + protocol.ExtensionTasks + `":{}}}}`)
	return e
}

// aboutTask handles a request about a task. It returns false if the task is the server's.
func (h *modernHost) aboutTask(m jsonrpc.Message) bool {
	id := jsonrpc.String(jsonrpc.Field(m.Params, "taskId"))
	ours := strings.HasPrefix(id, taskPrefix)
	switch {
	case !ours && !h.offersTasks():
		return false
	case !knowsTasks(m):
		h.b.host.fail(m.ID, errNoCapability())
		return true
	case !ours:
		h.b.host.fail(m.ID, errNoTask)
		return true
	}
	h.mu.Lock()
	x := h.tasks[id]
	known := x != nil
	switch {
	case !known:
		h.count++
		x = &exchange{id: newExchangeID(h.count), state: isTask, method: protocol.MethodCallTool, task: &task{id: id}}
		h.tasks[id], h.open[x] = x, struct{}{}
		fallthrough
	case !x.task.found:
		x.task.waiting = append(x.task.waiting, m)
		h.mu.Unlock()
		if !known {
			h.lookFor(x, m)
		}
		return true
	}
	h.mu.Unlock()
	h.doTask(x, m)
	return true
}

// doTask carries out a request about a task, and answers it.
func (h *modernHost) doTask(x *exchange, m jsonrpc.Message) {
	result := []byte(`{"resultType":"` + protocol.ResultComplete + `"}`)
	switch m.Method {
	case protocol.MethodTaskGet:
		h.mu.Lock()
		result = x.tell(protocol.ResultComplete)
		h.mu.Unlock()
	case protocol.MethodTaskUpdate:
		h.reply(x, m)
	case protocol.MethodTaskCancel:
		h.mu.Lock()
		cancelled := x.state == isTask && x.move(left)
		var open []jsonrpc.Message
		if cancelled {
			open, x.questions = x.questions, nil
			h.settle(x)
		}
		h.mu.Unlock()
		if cancelled {
			h.refuse(open)
			h.withdraw(x, "the host cancelled the task")
			h.tellListens(x)
		}
	}
	h.b.host.write(jsonrpc.AppendResult(nil, m.ID, result))
}

// settle keeps a task for keepTask after its end. h.mu is held.
func (h *modernHost) settle(x *exchange) {
	x.task.updated = time.Now()
	x.timer = time.AfterFunc(keepTask, func() { h.b.start(func() { h.expire(x) }) })
}

// expire forgets a task.
func (h *modernHost) expire(x *exchange) {
	h.mu.Lock()
	x.move(left)
	h.forget(x)
	h.mu.Unlock()
	h.b.drop(x)
}

// lookFor asks the server's side of the bridge to continue the call of another process's task. That
// calls [modernHost.found], or answers the exchange with an error.
func (h *modernHost) lookFor(x *exchange, m jsonrpc.Message) {
	meta := without(jsonrpc.Field(m.Params, "_meta"), "progressToken")
	meta, _ = jsonrpc.Set(meta, jsonrpc.Quote(x.task.id), metaTask)
	params, _ := jsonrpc.Set([]byte(`{}`), meta, "_meta")
	h.deliver(x, mustParse(jsonrpc.AppendRequest(nil, x.id, protocol.MethodCallTool, params)))
}

// found notes that the call of a task continues here, and handles the requests that wait for that.
func (h *modernHost) found(x *exchange, created time.Time) {
	h.mu.Lock()
	requests := x.task.waiting
	x.task.found, x.task.waiting = true, nil
	x.task.created, x.task.updated = created, time.Now()
	h.mu.Unlock()
	for _, m := range requests {
		h.doTask(x, m)
	}
}

// notFound takes the response to an exchange that looks for a task. It reports whether the
// exchange looks for one.
func (h *modernHost) notFound(x *exchange, m jsonrpc.Message) bool {
	h.mu.Lock()
	if x.task == nil || x.task.found {
		h.mu.Unlock()
		return false
	}
	requests := x.task.waiting
	x.move(left)
	h.forget(x)
	h.mu.Unlock()
	e := errNoTask
	if code := string(jsonrpc.Field(m.Error, "code")); code != "-32602" { // the server could not be asked
		e = &jsonrpc.Error{}
		if json.Unmarshal(m.Error, e) != nil {
			e = errNoTask
		}
	}
	for _, m := range requests {
		h.b.host.fail(m.ID, e)
	}
	return true
}

// makeTask records that the call of an exchange is a task. It returns the task's id, and when
// the call became a task, which may have been in an earlier process. ok is false if the call is
// not in flight at the server.
func (b *bridge) makeTask(x *exchange, now time.Time) (id string, since time.Time, ok bool) {
	at, since := b.requests.makeTask(x.id, now)
	if at == nil {
		return "", since, false
	}
	b.save()
	return taskPrefix + strings.Trim(string(at), `"`), since, true
}

// taskRequest returns the id of the request of a task of a bridge. Bridges of older builds gave it a string.
func taskRequest(task string) []byte {
	id := strings.TrimPrefix(task, taskPrefix)
	if _, err := strconv.ParseInt(id, 10, 64); err == nil {
		return []byte(id)
	}
	return jsonrpc.Quote(id)
}

// continueTask continues the call of a task of another process.
func (b *bridge) continueTask(conn *client.Conn, m jsonrpc.Message, from origin, task string) {
	id := taskRequest(task)
	created, ok := b.requests.takeTask(id)
	if ok && !b.store.takeOver(id) {
		b.requests.drop(id)
		ok = false
	}
	if ok {
		b.foundTask(from, created)
		if !b.continued(id, m, from) {
			from.fail(m.ID, errNoTask)
		}
		return
	}
	if !b.store.isOpen() || !b.takeForeign(conn, m, from, func(c *callRecord) bool { return string(c.ID) == string(id) && !c.Task.IsZero() }) {
		from.fail(m.ID, errNoTask)
	}
}

// foundTask calls [modernHost.found] for the exchange that looks for a task.
func (b *bridge) foundTask(from origin, created time.Time) {
	if from.exchange != nil {
		b.eras.modern.found(from.exchange, created)
	}
}

// drop forgets the call of an exchange if the bridge has kept the response.
func (b *bridge) drop(x *exchange) {
	id := b.requests.dropKept(x.id)
	if id == nil {
		return
	}
	b.store.end(id)
	b.changed()
}

// makeTask notes that a request in flight is a task. It returns the request's id at the server,
// or nil, and when it became a task.
func (t *requests) makeTask(hostID []byte, now time.Time) (id []byte, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byHost[string(jsonrpc.Key(hostID))]
	if r == nil {
		return nil, now
	}
	r.handle = true
	if r.task.IsZero() {
		r.task = now
	}
	return r.id, r.task
}

// takeTask returns when a request became a task that no host waits for, and notes that a host of this process has the task's id:
// from then on only a request about the task takes it.
func (t *requests) takeTask(id []byte) (created time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[string(id)]
	if r == nil || r.task.IsZero() || r.state != abandoned && r.state != answered {
		return created, false
	}
	r.handle = true
	return r.task, true
}

// dropKept ends a request with a kept response. hostID is the id that the request last had on
// the host's side. It returns the id at the server, or nil.
func (t *requests) dropKept(hostID []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.byID {
		if r.state == answered && string(r.kept) == string(hostID) {
			t.move(r, dropped)
			return r.id
		}
	}
	return nil
}

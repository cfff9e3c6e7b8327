package translate

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A taskCaller is a conversation with a legacy server. Some tools of a server of 2025-11-25 can be
// called as tasks only (Tasks, "Tool-Level Negotiation"), and some clients know no tasks. A call
// of such a tool that does not ask for a task becomes a task all the same: the taskCaller polls
// its status, and answers the call with its result. All other messages go through untouched.
type taskCaller struct {
	between
	conn backend.Conn // set before a message is delivered

	initialize atomic.Pointer[[]byte]      // the id of the request, until it is answered
	calls      atomic.Pointer[calledTasks] // nil if the server has no tasks
}

// calledTasks are the calls of a conversation with a server that has tasks. Its methods may be called concurrently.
type calledTasks struct {
	sink backend.Sink
	out  outbox
	own  *ownRequests

	mu       sync.Mutex
	listing  tasksListing
	changed  bool                 // the server has said that its tools have changed, since they are being listed
	required map[string]bool      // tools that are called as tasks only
	pages    *protocol.Pages      // of the list of tools that is being read
	waiting  []backend.Inbound    // calls, until the tools are listed, and cancellations of them
	tasks    map[string]*taskCall // by the keys of the ids of their requests
	closed   bool
	why      error // why the server has ended; nil: it has not, or the client has left
	// releasing says that release hands over the first message of waiting, and removes it.
	releasing bool
}

// A tasksListing is how far the list of tools was read.
type tasksListing uint8

const (
	unlisted tasksListing = iota
	listing
	listedTools
)

// A taskCall is a call that was made a task, until its result has come.
type taskCall struct {
	in    backend.Inbound
	id    string // of the task; "" until it is known
	poll  *time.Timer
	own   []byte // the id of our last request in it
	asked bool   // tasks/result was sent
	ended bool   // its client has cancelled it
}

// openTasks opens a conversation with a legacy server that may have tools that need tasks.
func openTasks(ctx context.Context, b backend.Backend, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	c := &taskCaller{between: between{sink}}
	conn, err := b.Open(ctx, start, c)
	if err != nil {
		return nil, err
	}
	c.conn = conn
	return c, nil
}

// Deliver implements [backend.Conn].
func (c *taskCaller) Deliver(in backend.Inbound) error {
	if t := c.calls.Load(); t != nil {
		return t.deliver(in)
	}
	if in.Method == protocol.MethodInitialize && in.Kind == jsonrpc.Request {
		id := append([]byte(nil), in.ID...)
		c.initialize.Store(&id)
	}
	return c.conn.Deliver(in)
}

// Close implements [backend.Conn].
func (c *taskCaller) Close() error {
	if t := c.calls.Load(); t != nil {
		t.close(nil)
		t.out.stop()
	}
	return c.conn.Close()
}

// Sessionless reports whether the server keeps no session.
func (c *taskCaller) Sessionless() bool { return keepsNoSession(c.conn) }

// Emit implements [backend.Sink].
func (c *taskCaller) Emit(of backend.Call, m jsonrpc.Message) {
	if t := c.calls.Load(); t != nil {
		t.emit(of, m)
		return
	}
	if id := c.initialize.Load(); id != nil && m.Kind == jsonrpc.Response && key(m.ID) == key(*id) {
		c.initialize.Store(nil)
		if jsonrpc.Field(m.Result, "capabilities", "tasks", "requests", "tools", "call") != nil {
			c.calls.Store(newCalledTasks(c.sink, c.conn))
		}
	}
	c.sink.Emit(of, m)
}

// EmitUnrelated implements [backend.Sink].
func (c *taskCaller) EmitUnrelated(m jsonrpc.Message) {
	if t := c.calls.Load(); t != nil && t.takes(m) {
		return
	}
	c.sink.EmitUnrelated(m)
}

// Closed implements [backend.Sink].
func (c *taskCaller) Closed(why error, reopen bool) {
	if s, ok := c.sink.(serverEnding); ok {
		s.serverEnding(why)
	}
	if t := c.calls.Load(); t != nil {
		t.close(why)
	}
	c.sink.Closed(why, reopen)
}

func newCalledTasks(sink backend.Sink, conn backend.Conn) *calledTasks {
	t := &calledTasks{sink: sink, own: newOwnRequests(), required: make(map[string]bool), tasks: make(map[string]*taskCall)}
	t.out.failed = t.notTaken
	t.out.open(conn)
	return t
}

// notTaken answers a request that the server has not taken. One about a task says nothing of the call, which has begun.
func (t *calledTasks) notTaken(in backend.Inbound, why error) {
	begun := in.Method == protocol.MethodTaskGet || in.Method == protocol.MethodTaskResult
	if !begun || !t.own.answer(newError(in.ID, protocol.CodeOutcomeUnknown, "%s: %v", protocol.TextOutcomeUnknown, why)) {
		answerNotTaken(in, why, t.own, t.sink)
	}
}

// close stops polling, and the timers of our own requests. why says why the server has ended: it has not begun the calls that wait. nil:
// the client has left.
func (t *calledTasks) close(why error) {
	t.mu.Lock()
	t.closed, t.why = true, why
	t.own.end()
	for _, call := range t.tasks {
		if call.poll != nil {
			call.poll.Stop()
		}
	}
	var unsent []backend.Inbound
	if why != nil {
		begun := min(len(t.waiting), map[bool]int{true: 1}[t.releasing]) // the server may have it
		unsent, t.waiting = t.waiting[begun:], slices.Clip(t.waiting[:begun])
	}
	t.mu.Unlock()
	for _, in := range unsent {
		answerNotTaken(in, why, t.own, t.sink)
	}
}

// deliver takes a message of the client.
func (t *calledTasks) deliver(in backend.Inbound) error {
	switch {
	case in.Kind == jsonrpc.Notification && in.Method == protocol.MethodCancelled && (t.waits(in) || t.cancelled(in)):
		return nil
	case in.Kind != jsonrpc.Request || in.Method != protocol.MethodCallTool || jsonrpc.Field(in.Params, "task") != nil:
		return t.out.Deliver(in)
	}
	t.mu.Lock()
	if why := t.why; why != nil {
		t.mu.Unlock()
		return overBecause(why)
	}
	if t.listing != listedTools {
		t.waiting = append(t.waiting, in)
		begins := t.listing == unlisted
		t.listing, t.changed = listing, t.changed && !begins
		t.mu.Unlock()
		if begins {
			t.list(in, nil)
		}
		return nil
	}
	required := t.required[jsonrpc.String(jsonrpc.Field(in.Params, "name"))]
	t.mu.Unlock()
	if !required {
		return t.out.Deliver(in)
	}
	t.begin(in)
	return nil
}

// list asks for a page of the tools, because of a call.
func (t *calledTasks) list(in backend.Inbound, cursor []byte) {
	params := []byte("{}")
	if cursor == nil {
		t.mu.Lock()
		t.pages = protocol.NewPages(100)
		t.mu.Unlock()
	} else {
		params, _ = jsonrpc.Set(params, cursor, "cursor")
	}
	id := t.own.add(func(m jsonrpc.Message) { t.listed(in, m) })
	t.own.bound(id, nil) // calls wait for it
	t.out.later(about(in, newRequest(id, protocol.MethodToolsList, params)))
}

// listed takes a page. After the last page it makes the calls that have waited for the list.
func (t *calledTasks) listed(in backend.Inbound, m jsonrpc.Message) {
	var page struct {
		Tools []struct {
			Name      string
			Execution struct{ TaskSupport string }
		}
	}
	_ = json.Unmarshal(m.Result, &page) // if the server lists no tools, none needs a task
	t.mu.Lock()
	cursor, _, _ := t.pages.Next(m.Result) // a list without an end ends
	for _, tool := range page.Tools {
		t.required[tool.Name] = tool.Execution.TaskSupport == "required"
	}
	if cursor != nil {
		t.mu.Unlock()
		t.list(in, cursor)
		return
	}
	t.mu.Unlock()
	t.release()
}

// release hands over the waiting messages, in their order. Messages that come meanwhile wait behind them.
func (t *calledTasks) release() {
	for {
		t.mu.Lock()
		if len(t.waiting) == 0 {
			t.waiting, t.listing = nil, listedTools
			if t.changed {
				t.listing = unlisted
			}
			t.mu.Unlock()
			return
		}
		in := t.waiting[0]
		required := t.required[jsonrpc.String(jsonrpc.Field(in.Params, "name"))]
		t.releasing = true
		t.mu.Unlock()
		switch {
		case in.Kind == jsonrpc.Notification && in.Method == protocol.MethodCancelled:
			if !t.cancelled(in) {
				t.out.later(in)
			}
		case required:
			t.begin(in)
		default:
			t.out.later(in)
		}
		t.mu.Lock() // its cancellation has waited until here
		t.waiting, t.releasing = t.waiting[1:], false
		t.mu.Unlock()
	}
}

// waits makes a cancellation wait behind its call, if the call waits, and reports whether it does.
func (t *calledTasks) waits(in backend.Inbound) bool {
	id := key(jsonrpc.Field(in.Params, "requestId"))
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.waiting {
		if t.waiting[i].Kind == jsonrpc.Request && key(t.waiting[i].ID) == id {
			t.waiting = append(t.waiting, in)
			return true
		}
	}
	return false
}

// begin makes a call as a task.
func (t *calledTasks) begin(in backend.Inbound) {
	call := &taskCall{in: in}
	t.mu.Lock()
	running := t.tasks[key(in.ID)] != nil
	if !running {
		t.tasks[key(in.ID)] = call
	}
	t.mu.Unlock()
	if running { // the call in flight could not be cancelled any more
		t.sink.Emit(in.Call, newError(in.ID, jsonrpc.CodeInvalidRequest, "a request with this id is in flight"))
		return
	}
	params, _ := jsonrpc.Set(in.Params, []byte("{}"), "task")
	t.ask(call, protocol.MethodCallTool, params, t.begun)
}

// ask makes a request of our own in a call.
func (t *calledTasks) ask(call *taskCall, method string, params []byte, answered func(*taskCall, jsonrpc.Message)) {
	id := t.own.add(func(m jsonrpc.Message) { answered(call, m) })
	t.mu.Lock()
	call.own = id
	ended := call.ended
	t.mu.Unlock()
	if ended {
		t.own.bound(id, nil)
	}
	in := about(call.in, newRequest(id, method, params))
	in.Call = call.in.Call
	t.out.later(in)
}

// begun takes the server's answer to a call that was made as a task.
func (t *calledTasks) begun(call *taskCall, m jsonrpc.Message) {
	task := jsonrpc.Field(m.Result, "task")
	id := jsonrpc.String(jsonrpc.Field(task, "taskId"))
	if id == "" { // an error, or the result at once
		t.end(call, m)
		return
	}
	t.mu.Lock()
	call.id = id
	ended := call.ended
	t.mu.Unlock()
	if ended { // the call was cancelled meanwhile
		t.cancel(call)
		return
	}
	t.follow(call, task)
}

// Bounds of the poll interval that the server asks for, and the usual one.
const (
	soonestPoll = 50 * time.Millisecond
	usualPoll   = time.Second
	latestPoll  = 30 * time.Second
)

// follow makes the next request after a status of a task: for its status later, or for its
// result. The server's questions come before the result.
func (t *calledTasks) follow(call *taskCall, task []byte) {
	if status := jsonrpc.String(jsonrpc.Field(task, "status")); status != protocol.TaskWorking {
		t.mu.Lock()
		asked := call.asked || call.ended
		call.asked = true
		t.mu.Unlock()
		if !asked {
			t.ask(call, protocol.MethodTaskResult, jsonrpc.Object("taskId", call.id), t.end)
		}
		return
	}
	wait := usualPoll
	var ms float64
	if json.Unmarshal(jsonrpc.Field(task, "pollInterval"), &ms) == nil && ms > 0 {
		wait = min(max(time.Duration(min(ms, 1e6)*float64(time.Millisecond)), soonestPoll), latestPoll)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || call.ended {
		return
	}
	call.poll = time.AfterFunc(wait, func() {
		t.ask(call, protocol.MethodTaskGet, jsonrpc.Object("taskId", call.id), t.polled)
	})
}

// polled takes a status.
func (t *calledTasks) polled(call *taskCall, m jsonrpc.Message) {
	if m.Error == nil {
		t.follow(call, m.Result)
		return
	}
	if string(jsonrpc.Field(m.Error, "code")) != strconv.Itoa(protocol.CodeOutcomeUnknown) {
		m = newError(m.ID, protocol.CodeOutcomeUnknown, "%s: the server does not tell of the task: %s",
			protocol.TextOutcomeUnknown, jsonrpc.String(jsonrpc.Field(m.Error, "message")))
	}
	t.end(call, m)
}

// end answers a call with the result or the error of its task.
func (t *calledTasks) end(call *taskCall, m jsonrpc.Message) {
	t.mu.Lock()
	ended := call.ended
	call.ended = true
	if id := key(call.in.ID); t.tasks[id] == call { // after a cancellation its id may be a newer call's
		delete(t.tasks, id)
	}
	t.mu.Unlock()
	if ended {
		return
	}
	answer := newFailure(call.in.ID, m.Error)
	if m.Error == nil {
		answer = newResult(call.in.ID, withoutRelated(m.Result))
	}
	t.sink.Emit(call.in.Call, answer)
}

// withoutRelated returns a result, or the params of a message, without the id of the task, of
// which the client knows nothing.
func withoutRelated(of []byte) []byte {
	meta := jsonrpc.Field(of, "_meta")
	if jsonrpc.Field(meta, protocol.MetaRelatedTask) == nil {
		return of
	}
	return withMeta(of, pick(meta, func(name string) bool { return name != protocol.MetaRelatedTask }))
}

// cancelled takes a cancellation, and reports whether it is of a call that is a task.
func (t *calledTasks) cancelled(in backend.Inbound) bool {
	id := key(jsonrpc.Field(in.Params, "requestId"))
	t.mu.Lock()
	call := t.tasks[id]
	if call == nil {
		t.mu.Unlock()
		return false
	}
	delete(t.tasks, id)
	call.ended = true
	if call.poll != nil {
		call.poll.Stop()
	}
	known, own := call.id != "", call.own
	t.mu.Unlock()
	t.own.bound(own, nil)
	if known {
		t.cancel(call)
	}
	return true
}

// cancel cancels a task that no client waits for any more.
func (t *calledTasks) cancel(call *taskCall) {
	t.ask(call, protocol.MethodTaskCancel, jsonrpc.Object("taskId", call.id), func(*taskCall, jsonrpc.Message) {})
}

// emit takes a message of the server.
func (t *calledTasks) emit(of backend.Call, m jsonrpc.Message) {
	if !t.takes(m) {
		t.sink.Emit(of, m)
	}
}

// takes takes a message of the server that is about a call of ours, and reports whether it is.
func (t *calledTasks) takes(m jsonrpc.Message) bool {
	if m.Kind == jsonrpc.Response {
		return t.own.answer(m)
	}
	if m.Kind == jsonrpc.Notification && m.Method == protocol.MethodToolsListChanged {
		t.mu.Lock()
		if t.changed = true; t.listing == listedTools {
			t.listing = unlisted
		}
		t.mu.Unlock()
		return false
	}
	id := jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaRelatedTask, "taskId"))
	status := m.Kind == jsonrpc.Notification && m.Method == protocol.MethodLegacyTaskStatus
	if status {
		id = jsonrpc.String(jsonrpc.Field(m.Params, "taskId"))
	}
	call := t.find(id)
	if call == nil {
		return false
	}
	if !status { // the client does not know of the task
		t.sink.Emit(call.in.Call, newRequest(m.ID, m.Method, withoutRelated(m.Params)))
	}
	return true
}

// find returns the call of ours that is a task, or nil.
func (t *calledTasks) find(id string) *taskCall {
	if id == "" {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, call := range t.tasks {
		if call.id == id {
			return call
		}
	}
	return nil
}

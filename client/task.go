package client

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file drives tasks (extension io.modelcontextprotocol/tasks): a server may answer a modern
// tools/call with the handle of a task, and go on without a connection. The Conn polls the task
// until it ends. The host gets the response to its call, and requests if the task needs input.

// A task is the task that the server has made of a call. The goroutine of the call uses it.
type task struct {
	k      *call
	id     string              // does not change
	status string              // the last status that the user was told of
	asked  map[string]struct{} // keys of input requests that the host has got
	every  time.Duration       // how long to wait before the next poll
}

// Bounds of the polls and inputs that a server may ask for.
const (
	defaultPoll = time.Second
	leastTask   = 20 * time.Millisecond // between two polls
	mostInputs  = 1000                  // input requests of a call
	mostRounds  = 1000                  // requests for input in which a call is answered
)

// declareTasks returns a request with the declaration that its client knows tasks. ok reports
// whether the Conn drives the tasks: the host has not declared that it does.
func (c *Conn) declareTasks(m jsonrpc.Message) (raw []byte, ok bool) {
	path := []string{"params", "_meta", protocol.MetaClientCapabilities, "extensions", protocol.ExtensionTasks}
	if !c.opts.Tasks || m.Method != protocol.MethodCallTool || revisionOf(m.Raw) == "" || jsonrpc.Field(m.Raw, path...) != nil {
		return m.Raw, false
	}
	return jsonrpc.Set(m.Raw, []byte(`{}`), path...)
}

// goesOn takes a response with which the call goes on: the handle of a task, or a request
// for input. It reports whether m is one.
func (k *call) goesOn(m jsonrpc.Message) bool {
	if m.Result == nil || !k.isModern() || !k.named(m.ID) {
		return false
	}
	switch jsonrpc.String(jsonrpc.Field(m.Result, "resultType")) {
	case protocol.ResultTask:
		id := jsonrpc.String(jsonrpc.Field(m.Result, "taskId"))
		if !k.drivesTasks || id == "" || len(id) > mostWay {
			return false
		}
		k.becomes(id)
		k.task.note(m.Result)
	case protocol.ResultInputRequired:
		if !k.c.opts.AskHost || k.origin.response != nil {
			return false
		}
		k.next = func() error { return k.round(m.Result) }
	default:
		return false
	}
	k.taken()
	k.c.changed()
	return true
}

// becomes notes that the call is a task from now on.
func (k *call) becomes(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.task = &task{k: k, id: id, asked: make(map[string]struct{})}
	k.next = k.task.poll
}

// note takes the state of the task, and tells the user of a new one.
func (t *task) note(state []byte) {
	c := t.k.c
	status := jsonrpc.String(jsonrpc.Field(state, "status"))
	var poll struct {
		Every float64 `json:"pollIntervalMs"`
	}
	t.every = defaultPoll
	if json.Unmarshal(state, &poll) == nil && poll.Every > 0 {
		t.every = min(max(time.Duration(min(poll.Every, 1e9)*1e6), leastTask), c.opts.GiveUp)
	}
	if t.ended(status) {
		t.every = 0 // the result is there
	}
	seen := status + " " + jsonrpc.String(jsonrpc.Field(state, "statusMessage"))
	if seen == t.status || c.opts.Task == nil {
		return
	}
	t.status = seen
	inform(c.logger, "Options.Task", func() { c.opts.Task(t.k.id, state) })
}

// ended reports whether a status is the last one.
func (t *task) ended(status string) bool {
	return status == "completed" || status == "failed" || status == "cancelled"
}

// poll waits, and asks for the task once.
func (t *task) poll() error {
	k := t.k
	k.next = t.poll // unless it is answered
	wait := time.NewTimer(t.every)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-k.ctx.Done():
		return context.Cause(k.ctx)
	}
	// The request is retry-safe, and sent again until the server answers or is given up.
	m, err := k.c.request(k.ctx, protocol.MethodTaskGet, t.params(nil))
	if err != nil {
		return err
	}
	if m.Error != nil {
		e := errorOf(m.Error)
		if e.Code == jsonrpc.CodeInternal {
			return e // it may pass
		}
		return final("the server does not tell of the task: %w", e)
	}
	k.backoff.reached()
	status := jsonrpc.String(jsonrpc.Field(m.Result, "status"))
	t.note(m.Result)
	switch status {
	case "working":
	case "input_required":
		if !t.ask(jsonrpc.Field(m.Result, "inputRequests")) {
			t.cancel()
			return final("the task asks for more than %d inputs", mostInputs)
		}
	case "completed":
		result := jsonrpc.Field(m.Result, "result")
		if result == nil {
			return unusable("a task is completed and has no result")
		}
		return k.answered(jsonrpc.AppendResult(nil, k.id, result))
	case "failed":
		return k.answered(jsonrpc.AppendError(nil, k.id, errorOf(jsonrpc.Field(m.Result, "error"))))
	case "cancelled":
		return k.answered(jsonrpc.AppendError(nil, k.id, jsonrpc.Errorf(jsonrpc.CodeServer, "the task was cancelled")))
	default:
		return unusable("a task has the status %.40q", status)
	}
	return errNext
}

// answered delivers a response that was made here.
func (k *call) answered(raw []byte) error {
	m, err := jsonrpc.Parse(raw)
	if err != nil {
		return unusable("%w", err)
	}
	k.deliver(m)
	return nil
}

// params returns the params of a request about the task. input has the responses by their keys, as JSON, or nil.
func (t *task) params(input []byte) []byte {
	params := jsonrpc.Object("taskId", t.id)
	if input != nil {
		params, _ = jsonrpc.Set(params, input, "inputResponses")
	}
	params, _ = jsonrpc.Set(params, t.k.meta(), "_meta")
	return params
}

// meta returns the _meta of the call's other requests: that of its own request, without the progress token,
// or one of Holdfast's if the request is gone.
func (k *call) meta() []byte {
	k.mu.Lock()
	body := k.body
	k.mu.Unlock()
	meta := jsonrpc.Field(body, "params", "_meta")
	if meta == nil {
		meta = jsonrpc.Object(protocol.MetaProtocolVersion, k.revision)
		meta, _ = jsonrpc.Set(meta, []byte(`{"name":"holdfast","version":"1"}`), protocol.MetaClientInfo)
		meta, _ = jsonrpc.Set(meta, []byte(`{"elicitation":{"form":{},"url":{}},"extensions":{"`+protocol.ExtensionTasks+`":{}}}`), protocol.MetaClientCapabilities)
	}
	return withoutToken(meta)
}

// ask gives the host the input requests of the task that it has not got yet. Each
// response goes to the server as soon as it is there. It reports false if there are too many.
func (t *task) ask(requests []byte) (ok bool) {
	k := t.k
	ok = true
	jsonrpc.Each(requests, func(name, rq []byte) {
		key := string(name)
		if _, again := t.asked[key]; again {
			return
		}
		if ok = len(t.asked) < mostInputs; !ok {
			return
		}
		t.asked[key] = struct{}{}
		k.c.spawn(func() {
			result, err := k.c.requests.askHost(k, rq)
			switch {
			case k.ctx.Err() != nil:
			case err != nil:
				t.cancel()
				_ = k.answered(jsonrpc.AppendError(nil, k.id, jsonrpc.Errorf(jsonrpc.CodeServer, "the task needs input: %v", err)))
				k.cancel(nil)
			default:
				input, _ := jsonrpc.Set([]byte(`{}`), result, key)
				m, err := k.c.request(k.ctx, protocol.MethodTaskUpdate, t.params(input))
				if err == nil && m.Error != nil {
					err = errorOf(m.Error)
				}
				if err != nil && k.ctx.Err() == nil {
					k.c.logger.Warn("input for a task was not delivered", "error", err)
				}
			}
		})
	})
	return ok
}

// cancel tells the server that no caller waits for the task any more.
func (t *task) cancel() {
	c := t.k.c
	ctx, stop := context.WithTimeout(c.ctx, c.opts.ConnectTimeout)
	defer stop()
	m, err := c.request(ctx, protocol.MethodTaskCancel, t.params(nil))
	if err == nil && m.Error != nil {
		err = errorOf(m.Error)
	}
	if err != nil {
		c.logger.Debug("cancellation of a task not delivered", "error", err)
	}
}

// asTask returns the task that the call has become, or nil.
func (k *call) asTask() *task {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.task
}

// round asks the host for the input that a result wants, and makes the request again with it,
// under another id (2026-07-28, Multi Round-Trip Requests).
func (k *call) round(result []byte) error {
	k.asked()
	if k.rounds++; k.rounds > mostRounds {
		return final("the server asks for input again and again")
	}
	if k.method == protocol.MethodCallTool && jsonrpc.Field(k.body, "params", "name") == nil { // it is a State's, without its arguments
		return final("the server asks for input, with which the call would be made again, and its arguments are not known here")
	}
	input, err := k.gatherInput(jsonrpc.Field(result, "inputRequests"))
	if err != nil {
		return err
	}
	if input == nil { // the server wants another attempt only
		if err := k.backoff.wait(k.ctx, k.c, nil); err != nil {
			return err
		}
	}
	k.anotherRound(input, jsonrpc.Field(result, "requestState"))
	k.c.changed() // before it is sent
	return errNext
}

// asked notes that the server is done with the request, and wants it again with input.
func (k *call) asked() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.transition(eventAsked)
	k.unsent = true
}

// anotherRound makes the request of the next round. No way back to the last round leads to it. input and state are JSON, or nil.
func (k *call) anotherRound(input, state []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.first == nil {
		k.first, _ = jsonrpc.Set(k.body, protocol.Without(jsonrpc.Field(k.body, "params"), "inputResponses", "requestState"), "params")
	}
	body := k.first
	if input != nil {
		body, _ = jsonrpc.Set(body, input, "params", "inputResponses")
	}
	if state != nil {
		body, _ = jsonrpc.Set(body, state, "params", "requestState")
	}
	if k.key != "" {
		k.key = newKey() // it is another request
	}
	k.wire = k.c.newID()
	k.body, k.unsent, k.repeats, k.ways, k.reached = body, false, repeats{}, ways{}, make(chan struct{})
}

// gatherInput asks the host for each of the input requests, at the same time, and returns the
// responses by their keys; nil if there are no requests.
func (k *call) gatherInput(requests []byte) ([]byte, error) {
	type reply struct {
		key    string
		result []byte
		err    error
	}
	replies, n, ends := make(chan reply, mostInputs), 0, false
	jsonrpc.Each(requests, func(name, rq []byte) {
		if n == mostInputs || ends {
			return
		}
		key := string(name)
		ends = !k.c.spawn(func() {
			result, err := k.c.requests.askHost(k, rq)
			replies <- reply{key, result, err}
		})
		n++
	})
	if ends { // the Conn that continues the call asks the host
		<-k.ctx.Done()
		return nil, context.Cause(k.ctx)
	}
	results := make(map[string][]byte, n)
	for range n {
		select {
		case r := <-replies:
			if r.err != nil {
				return nil, final("the call needs input: %w", r.err)
			}
			results[r.key] = r.result
		case <-k.ctx.Done():
			return nil, context.Cause(k.ctx)
		}
	}
	if n == 0 {
		return nil, nil
	}
	input := []byte{'{'}
	for i, key := range slices.Sorted(maps.Keys(results)) {
		if i > 0 {
			input = append(input, ',')
		}
		input = append(append(append(input, jsonrpc.Quote(key)...), ':'), results[key]...)
	}
	return append(input, '}'), nil
}

// taskStatus is [Conn.Status] for a call that has become a task.
func (c *Conn) taskStatus(ctx context.Context, call CallState) (Status, error) {
	k := c.restoredCall(call)
	ctx, stop := context.WithTimeout(ctx, 2*c.opts.ConnectTimeout)
	defer stop()
	m, err := c.request(ctx, protocol.MethodTaskGet, k.task.params(nil))
	if err != nil {
		return Status{}, err
	}
	if m.Error != nil {
		return Status{}, errorOf(m.Error)
	}
	at := func(name string) time.Time {
		t, err := time.Parse(time.RFC3339, jsonrpc.String(jsonrpc.Field(m.Result, name)))
		if err != nil {
			return time.Time{}
		}
		return t
	}
	status := Status{Created: at("createdAt"), Updated: at("lastUpdatedAt")}
	switch text := jsonrpc.String(jsonrpc.Field(m.Result, "status")); text {
	case "working", "input_required":
		status.Status, status.HasInputRequest = "processing", text == "input_required"
	case "completed":
		status.Status, status.HasPendingMessage = text, true
	default:
		status.Status, status.HasPendingMessage = "failed", true
	}
	return status, nil
}

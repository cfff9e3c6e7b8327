package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

const (
	extTasks = "io.modelcontextprotocol/tasks"
	aware    = `{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
)

// modernBody returns a request of revision 2026-07-28, of a client with the capabilities.
func modernBody(method, params, capabilities string) string {
	meta := fmt.Sprintf(`"_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s}`, capabilities)
	if params = strings.TrimPrefix(params, "{"); params != "}" {
		meta += ","
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"c1","method":%q,"params":{%s%s}`, method, meta, params)
}

// modern makes a request of revision 2026-07-28.
func (p *peer) modern(method, name, params, capabilities string) reply {
	p.n.t.Helper()
	return p.modernOpen(method, name, params, capabilities).all()
}

func (p *peer) modernOpen(method, name, params, capabilities string, extra ...string) *wire {
	p.n.t.Helper()
	head := []string{"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: " + method}
	if name != "" {
		head = append(head, "Mcp-Name: "+name)
	}
	return p.open("POST", "/mcp", modernBody(method, params, capabilities), append(head, extra...)...)
}

// taskTold is an answer or notification about a task.
type taskTold struct {
	ResultType string
	TaskID     string
	Status, StatusMessage,
	CreatedAt, LastUpdatedAt string
	TTLMs          *int64
	PollIntervalMs int64
	InputRequests  map[string]json.RawMessage
	Result, Error  json.RawMessage
}

// A response is a JSON-RPC response about a task.
type response struct {
	ID     string
	Result taskTold
	Error  *struct {
		Code int
		Data json.RawMessage
	}
}

// told returns the response at the end of a reply.
func told(t testing.TB, r reply) (m response) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.response()), &m); err != nil {
		t.Fatalf("%d %q: %v", r.status, r.body, err)
	}
	return m
}

// task makes a call that becomes a task.
func (p *peer) task(tool, arguments string) taskTold {
	p.n.t.Helper()
	m := told(p.n.t, p.modern("tools/call", tool, toolCall(tool, arguments), aware))
	if m.Error != nil || m.Result.ResultType != "task" || m.Result.TaskID == "" || m.ID != "c1" {
		p.n.t.Fatalf("no task: %+v", m)
	}
	return m.Result
}

func (p *peer) about(method, id, more string) response {
	p.n.t.Helper()
	return told(p.n.t, p.modern(method, id, fmt.Sprintf(`{"taskId":%q%s}`, id, more), aware))
}

func (p *peer) get(id string) taskTold {
	p.n.t.Helper()
	m := p.about("tasks/get", id, "")
	if m.Error != nil || m.Result.ResultType != "complete" || m.Result.TaskID != id {
		p.n.t.Fatalf("tasks/get: %+v", m)
	}
	return m.Result
}

// until polls a task until it has a status.
func (p *peer) until(id, status string) (is taskTold) {
	p.n.t.Helper()
	mcptest.Eventually(p.n.t, "the task to be "+status, time.Minute, func() bool {
		is = p.get(id)
		return is.Status == status
	})
	return is
}

func tasksConfig() config {
	return config{tasks: time.Millisecond, session: session.Options{Keep: 10 * time.Minute}}
}

func TestTask(t *testing.T) {
	t.Parallel()
	n := newNode(t, tasksConfig())
	p := &peer{n: n}
	made := p.task("hold", `{"key":"k"}`)
	if made.Status != "working" || made.TTLMs == nil || *made.TTLMs < 600_000 || made.PollIntervalMs != 500 || made.Result != nil {
		t.Errorf("made: %+v", made)
	}
	created, err := time.Parse(time.RFC3339, made.CreatedAt)
	if err != nil || time.Since(created) > time.Minute {
		t.Errorf("createdAt %q: %v", made.CreatedAt, err)
	}
	if is := p.get(made.TaskID); is.Status != "working" || is.CreatedAt != made.CreatedAt {
		t.Errorf("at once: %+v", is)
	}
	held := n.release(1)[0]
	held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1,"message":"half"}`))
	if is := p.until(made.TaskID, "working"); is.StatusMessage != "half" {
		t.Errorf("after progress: %+v", is)
	}
	held.Result([]byte(`{"content":[{"type":"text","text":"whole"}],"isError":true}`))
	for range 2 { // a task can be read often
		if is := p.until(made.TaskID, "completed"); !strings.Contains(string(is.Result), "whole") || is.Error != nil || is.LastUpdatedAt < made.LastUpdatedAt {
			t.Errorf("at the end: %+v", is)
		}
	}
	if m := p.about("tasks/cancel", made.TaskID, ""); m.Error != nil || m.Result.ResultType != "complete" || m.Result.TaskID != "" {
		t.Errorf("cancelled after its end: %+v", m)
	}
	if is := p.get(made.TaskID); is.Status != "completed" || n.runs("k") != 1 {
		t.Errorf("after that: %+v, %d runs", is, n.runs("k"))
	}
}

// A call with a stream that has begun becomes a task: the stream ends with the task.
func TestTaskInStream(t *testing.T) {
	t.Parallel()
	c := tasksConfig()
	c.tasks = 300 * time.Millisecond
	n := newNode(t, c)
	p := &peer{n: n}
	made := p.task("steps", `{"key":"k","n":1000000,"pause":40}`)
	if made.StatusMessage != "" {
		t.Errorf("message %q", made.StatusMessage)
	}
	if m := p.about("tasks/cancel", made.TaskID, ""); m.Error != nil || m.Result.ResultType != "complete" {
		t.Errorf("cancelled: %+v", m)
	}
	if is := p.until(made.TaskID, "cancelled"); is.Result != nil || is.Error != nil {
		t.Errorf("at the end: %+v", is)
	}
}

func TestTaskFails(t *testing.T) {
	t.Parallel()
	n := newNode(t, tasksConfig())
	p := &peer{n: n}
	made := p.task("hold", `{}`)
	n.release(1)[0].Error(jsonrpc.Errorf(-32055, "no luck"))
	is := p.until(made.TaskID, "failed")
	if !strings.Contains(string(is.Error), "-32055") || is.Result != nil || is.StatusMessage != "no luck" {
		t.Errorf("failed: %+v", is)
	}
}

func TestTaskAsks(t *testing.T) {
	t.Parallel()
	n := newNode(t, tasksConfig())
	p := &peer{n: n}
	made := p.task("hold", `{}`)
	held := n.release(1)[0]
	n.script.mu.Lock()
	n.script.held = append(n.script.held, held, held)
	n.script.mu.Unlock()
	held.Request([]byte(`"q1"`), "elicitation/create", []byte(`{"message":"one?"}`))
	held.Request([]byte(`"q2"`), "elicitation/create", []byte(`{"message":"two?"}`))
	var is taskTold
	mcptest.Eventually(t, "two questions", time.Minute, func() bool {
		is = p.get(made.TaskID)
		return len(is.InputRequests) == 2
	})
	if is.Status != "input_required" {
		t.Errorf("asks: %+v", is)
	}
	for key, q := range is.InputRequests {
		if !strings.Contains(string(q), "elicitation/create") {
			t.Errorf("asks %s", q)
		}
		if m := p.about("tasks/update", made.TaskID, `,"inputResponses":{"other":{"action":"accept"}}`); m.Error != nil || m.Result.ResultType != "complete" {
			t.Errorf("another key: %+v", m)
		}
		if again := p.get(made.TaskID); len(again.InputRequests) == 0 || again.Status != "input_required" {
			t.Errorf("still asks: %+v", again)
		}
		answer := fmt.Sprintf(`,"inputResponses":{%q:{"action":"accept"}}`, key)
		for range 2 {
			if m := p.about("tasks/update", made.TaskID, answer); m.Error != nil || m.Result.ResultType != "complete" {
				t.Errorf("answered: %+v", m)
			}
		}
		break // the first answer ends the call of the script
	}
	if is := p.until(made.TaskID, "completed"); !strings.Contains(string(is.Result), "accept") {
		t.Errorf("at the end: %+v", is)
	}
}

// The server of a task may ask questions by a result. It then gets the request again, with the
// client's answers, which the client may send to any node.
func TestTaskAsksByResult(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, tasksConfig())
	p, other := &peer{n: f.nodes[0].node}, &peer{n: f.nodes[1].node}
	made := p.task("hold", `{"key":"k"}`)
	const asks = `{"method":"elicitation/create","params":{"message":"?"}}`
	f.nodes[0].release(1)[0].Result([]byte(`{"resultType":"input_required","requestState":"one","inputRequests":{"a \"b":` + asks + `,"c":` + asks + `}}`))
	var is taskTold
	mcptest.Eventually(t, "two questions", time.Minute, func() bool {
		is = other.get(made.TaskID)
		return len(is.InputRequests) == 2
	})
	if is.Status != "input_required" {
		t.Errorf("asks: %+v", is)
	}
	for key := range is.InputRequests {
		if f.runs("k") != 1 {
			t.Error("the request was made again before all was answered")
		}
		if m := other.about("tasks/update", made.TaskID, fmt.Sprintf(`,"inputResponses":{%q:{"action":"accept"}}`, key)); m.Error != nil {
			t.Errorf("answered: %+v", m)
		}
	}
	again := f.nodes[0].release(1)[0]
	answers := jsonrpc.Field(again.Params, "inputResponses")
	if jsonrpc.String(jsonrpc.Field(again.Params, "requestState")) != "one" || jsonrpc.Field(answers, `a "b`) == nil || jsonrpc.Field(answers, "c") == nil {
		t.Errorf("made again: %s", again.Params)
	}
	if is := p.get(made.TaskID); is.Status != "working" || len(is.InputRequests) > 0 {
		t.Errorf("after the answers: %+v", is)
	}
	again.Result([]byte(`{"resultType":"input_required","requestState":"two"}`)) // an answer without questions, as of a server under high load
	again = f.nodes[0].release(1)[0]
	if jsonrpc.String(jsonrpc.Field(again.Params, "requestState")) != "two" || jsonrpc.Field(again.Params, "inputResponses") != nil {
		t.Errorf("made again: %s", again.Params)
	}
	again.Result(result("done"))
	if is := other.until(made.TaskID, "completed"); !strings.Contains(string(is.Result), "done") {
		t.Errorf("at the end: %+v", is)
	}

	// A task fails if it asks a question for which the client has not declared the capability. A task that waits for an answer can be cancelled.
	made = p.task("hold", `{"key":"refused"}`)
	f.nodes[0].release(1)[0].Result([]byte(`{"resultType":"input_required","inputRequests":{"r":{"method":"roots/list"}}}`))
	if is := other.until(made.TaskID, "failed"); !strings.Contains(string(is.Error), fmt.Sprint(codeCapability)) {
		t.Errorf("not declared: %+v", is)
	}
	made = p.task("hold", `{"key":"cancelled"}`)
	f.nodes[0].release(1)[0].Result([]byte(`{"resultType":"input_required","inputRequests":{"r":` + asks + `}}`))
	other.until(made.TaskID, "input_required")
	p.about("tasks/cancel", made.TaskID, "")
	other.until(made.TaskID, "cancelled")
}

// The node of two tasks is lost after their server has asked by a result. The retry-safe one runs again from its
// beginning, and asks a new question; the other one's outcome is unknown. Answers to the lost questions do nothing.
func TestTaskAsksByResultNodeLost(t *testing.T) {
	testlong.Only(t, "a node takes a while to be lost")
	t.Parallel()
	f := newFarm(t, 2, tasksConfig())
	p, other := &peer{n: f.nodes[0].node}, &peer{n: f.nodes[1].node}
	safe, unsafe := p.task("safe_hold", `{"key":"safe"}`), p.task("hold", `{"key":"unsafe"}`)
	asks := func(state string) []byte {
		return fmt.Appendf(nil, `{"resultType":"input_required","requestState":%q,"inputRequests":{"a":{"method":"elicitation/create","params":{"message":%q}}}}`, state, state)
	}
	for _, held := range f.nodes[0].release(2) {
		held.Result(asks("one"))
	}
	answer := func(is taskTold) {
		for key := range is.InputRequests {
			other.about("tasks/update", is.TaskID, fmt.Sprintf(`,"inputResponses":{%q:{"action":"accept"}}`, key))
		}
	}
	was := other.until(safe.TaskID, "input_required")
	other.until(unsafe.TaskID, "input_required")
	f.nodes[0].kill()
	if is := other.until(unsafe.TaskID, "failed"); !strings.Contains(string(is.Error), fmt.Sprint(codeUnknown)) {
		t.Errorf("that may have run: %+v", is)
	}
	again := f.nodes[1].release(1)[0]
	if jsonrpc.Field(again.Params, "requestState") != nil || jsonrpc.Field(again.Params, "inputResponses") != nil {
		t.Errorf("made again: %s", again.Params)
	}
	answer(was) // too late
	again.Result(asks("two"))
	var is taskTold
	mcptest.Eventually(t, "the new question", time.Minute, func() bool {
		is = other.get(safe.TaskID)
		return is.Status == "input_required" && len(is.InputRequests) == 1
	})
	answer(is)
	again = f.nodes[1].release(1)[0]
	if jsonrpc.String(jsonrpc.Field(again.Params, "requestState")) != "two" {
		t.Errorf("answered: %s", again.Params)
	}
	again.Result(result("done"))
	if is := other.until(safe.TaskID, "completed"); !strings.Contains(string(is.Result), "done") {
		t.Errorf("at the end: %+v", is)
	}
	if f.runs("unsafe") != 1 {
		t.Errorf("%d runs of what may not run again", f.runs("unsafe"))
	}
}

// A client that may not use a task gets the same error as for an unknown id.
func TestTaskOfAnother(t *testing.T) {
	t.Parallel()
	c := tasksConfig()
	c.server.Principal = func(r *http.Request) string { return r.Header.Get("Who") }
	n := newNode(t, c)
	me, you := &peer{n: n, header: http.Header{"Who": {"me"}}}, &peer{n: n, header: http.Header{"Who": {"you"}}}
	made := me.task("hold", `{}`)
	id := made.TaskID
	for what, is := range map[string]struct {
		p  *peer
		id string
	}{
		"another principal": {you, id}, "another mark": {me, id[:20] + "AAAA" + id[24:]}, "another time": {me, id + "0"},
		"another name": {me, "AAAAAAAAAAAAAAAA" + id[16:]}, "no name": {me, "made-up"}, "none": {me, ""},
	} {
		for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
			if m := is.p.about(method, is.id, `,"inputResponses":{}`); m.Error == nil || m.Error.Code != codeParams {
				t.Errorf("%s, %s: %+v", method, what, m)
			}
		}
	}
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		r := me.modern(method, id, fmt.Sprintf(`{"taskId":%q,"inputResponses":{}}`, id), `{}`)
		if m := told(t, r); r.status != 400 || m.Error == nil || m.Error.Code != -32021 || !strings.Contains(string(m.Error.Data), extTasks) {
			t.Errorf("%s without the capability: %d %s", method, r.status, r.body)
		}
	}
	if is := me.get(id); is.Status != "working" {
		t.Errorf("after all that: %+v", is)
	}
}

// A client without tasks waits for the result. A call that ends at once becomes a task only on a
// busy machine.
func TestNoTask(t *testing.T) {
	t.Parallel()
	n := newNode(t, tasksConfig())
	p := &peer{n: n}
	w := p.modernOpen("tools/call", "hold", `{"name":"hold","arguments":{}}`, `{}`)
	n.release(1)[0].Result(result("whole"))
	if r := w.all(); !strings.Contains(string(r.body), "whole") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := p.modern("tools/call", "echo", `{"name":"echo","arguments":{"text":"at once"}}`, aware); !strings.Contains(string(r.body), "at once") {
		t.Logf("became a task: %s", r.body) // on a busy machine
	}
}

// A task is found on any node, also after its own is lost.
func TestTaskOnAnyNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, tasksConfig())
	at := func(i int) *peer { return &peer{n: f.nodes[i].node} }
	safe, unsafe, ended := at(0).task("safe_hold", `{"key":"safe"}`), at(0).task("hold", `{"key":"unsafe"}`), at(0).task("hold", `{"key":"ended"}`)
	asked := at(0).task("hold", `{"key":"asked"}`)
	held := f.nodes[0].release(4)
	held[2].Result(result("ended"))
	at(1).until(ended.TaskID, "completed")
	held[3].Request([]byte(`"q1"`), "elicitation/create", []byte(`{"message":"?"}`))
	is := at(2).until(asked.TaskID, "input_required")
	for key := range is.InputRequests {
		f.nodes[0].script.mu.Lock()
		f.nodes[0].script.held = append(f.nodes[0].script.held, held[3])
		f.nodes[0].script.mu.Unlock()
		at(1).about("tasks/update", asked.TaskID, fmt.Sprintf(`,"inputResponses":{%q:{"action":"accept"}}`, key))
	}
	at(2).until(asked.TaskID, "completed")

	f.nodes[0].kill()
	if is := at(1).until(ended.TaskID, "completed"); !strings.Contains(string(is.Result), "ended") {
		t.Errorf("that had ended: %+v", is)
	}
	if is := at(2).until(unsafe.TaskID, "failed"); !strings.Contains(string(is.Error), fmt.Sprint(codeUnknown)) {
		t.Errorf("that may have run: %+v", is)
	}
	var again *farmNode
	mcptest.Eventually(t, "the call to be made again", time.Minute, func() bool {
		for _, n := range f.nodes[1:] {
			if n.runs("safe") > 0 {
				again = n
			}
		}
		return again != nil
	})
	again.release(1)[0].Result(result("again"))
	if is := at(2).until(safe.TaskID, "completed"); !strings.Contains(string(is.Result), "again") || is.CreatedAt != safe.CreatedAt {
		t.Errorf("that is safe: %+v", is)
	}
	for _, id := range []string{"unsafe", "ended", "asked"} {
		if n := f.runs(id); n != 1 {
			t.Errorf("%s ran %d times", id, n)
		}
	}
}

// A toldListen is a message on the stream of a listen.
type toldListen struct {
	Method string
	Params struct {
		Notifications struct {
			TaskIDs []string
			Tools   bool `json:"toolsListChanged"`
		}
		taskTold
		Meta struct {
			ID string `json:"io.modelcontextprotocol/subscriptionId"`
		} `json:"_meta"`
	}
	Result *struct{ ResultType string }
}

// nextTold reads the next message of a listen.
func nextTold(t testing.TB, w *wire) (m toldListen) {
	t.Helper()
	ev, err := w.next()
	if err == nil {
		err = json.Unmarshal(ev.Data, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	if m.Method != "" && m.Params.Meta.ID != "c1" {
		t.Errorf("subscription of %+v", m)
	}
	return m
}

// A listen is told how a task has ended, if the store cannot say that at first.
func TestTaskListenStoreAway(t *testing.T) {
	t.Parallel()
	var store endlessStore
	c := tasksConfig()
	c.store = store.over
	n := newNode(t, c)
	p := &peer{n: n}
	made := p.task("hold", `{}`)
	held := n.release(1)
	w := p.modernOpen("subscriptions/listen", "", fmt.Sprintf(`{"notifications":{"taskIds":[%q]}}`, made.TaskID), aware)
	nextTold(t, w) // the acknowledgement
	if m := nextTold(t, w); m.Params.Status != "working" {
		t.Errorf("at first: %+v", m)
	}
	store.on.Store(true)
	held[0].Result(result("done"))
	<-store.failed
	store.on.Store(false)
	if m := nextTold(t, w); m.Params.TaskID != made.TaskID || m.Params.Status != "completed" {
		t.Errorf("at the end: %+v", m)
	}
}

// A listen that names tasks gets their changes, on any node.
func TestTaskListen(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, tasksConfig())
	p := &peer{n: f.nodes[0].node}
	filter := func(ids ...string) string {
		list, _ := json.Marshal(ids)
		return fmt.Sprintf(`{"notifications":{"taskIds":%s}}`, list)
	}
	for i, at := range f.nodes { // the tasks are on the first node
		first, second := p.task("hold", `{}`), p.task("hold", `{}`)
		held := f.nodes[0].release(2)
		q := &peer{n: at.node}
		if r := q.modern("subscriptions/listen", "", filter(first.TaskID), `{}`); r.status != 400 || told(t, r).Error.Code != -32021 {
			t.Errorf("without the capability: %d %s", r.status, r.body)
		}
		w := q.modernOpen("subscriptions/listen", "", filter(first.TaskID, second.TaskID[:20]+"AAAA"+second.TaskID[24:], second.TaskID, first.TaskID), aware)
		if m := nextTold(t, w); m.Method != "notifications/subscriptions/acknowledged" || len(m.Params.Notifications.TaskIDs) != 2 {
			t.Errorf("acknowledged: %+v", m)
		}
		for range 2 {
			if m := nextTold(t, w); m.Method != "notifications/tasks" || m.Params.Status != "working" {
				t.Errorf("at first: %+v", m)
			}
		}
		held[0].Result(result("done"))
		if m := nextTold(t, w); m.Params.TaskID != first.TaskID || m.Params.Status != "completed" || !strings.Contains(string(m.Params.Result), "done") {
			t.Errorf("after the first: %+v", m)
		}
		p.about("tasks/cancel", second.TaskID, "")
		if m := nextTold(t, w); m.Params.TaskID != second.TaskID || m.Params.Status != "cancelled" {
			t.Errorf("after the second: %+v", m)
		}
		if m := nextTold(t, w); m.Result == nil || m.Result.ResultType != "complete" {
			t.Errorf("at the end: %+v", m)
		}
		if i > 0 && f.nodes[i].sessions.Calls() != 0 {
			t.Errorf("the listen's call has not ended")
		}
	}
}

// A listen gets the changes of tasks on several nodes. It goes on when a node is lost.
func TestTaskListenNodeLost(t *testing.T) {
	testlong.Only(t, "it waits until a node is known to be lost")
	t.Parallel()
	f := newFarm(t, 3, tasksConfig())
	at := func(i int) *peer { return &peer{n: f.nodes[i].node} }
	lost, safe := at(0).task("hold", `{"key":"lost"}`), at(0).task("safe_hold", `{"key":"safe"}`)
	other, own := at(1).task("hold", `{"key":"other"}`), at(2).task("hold", `{"key":"own"}`)
	ids, _ := json.Marshal([]string{lost.TaskID, safe.TaskID, other.TaskID, own.TaskID})
	w := at(2).modernOpen("subscriptions/listen", "", fmt.Sprintf(`{"notifications":{"taskIds":%s}}`, ids), aware)
	if m := nextTold(t, w); len(m.Params.Notifications.TaskIDs) != 4 {
		t.Errorf("acknowledged: %+v", m)
	}
	working := map[string]bool{}
	for range 4 {
		m := nextTold(t, w)
		if m.Params.Status != "working" {
			t.Errorf("at first: %+v", m)
		}
		working[m.Params.TaskID] = true
	}
	if len(working) != 4 {
		t.Errorf("told of %v", working)
	}
	f.nodes[0].kill()
	if m := nextTold(t, w); m.Params.TaskID != lost.TaskID || m.Params.Status != "failed" || !strings.Contains(string(m.Params.Error), fmt.Sprint(codeUnknown)) {
		t.Errorf("of a lost node: %+v", m)
	}
	var again *farmNode
	mcptest.Eventually(t, "the call to be made again", time.Minute, func() bool {
		for _, n := range f.nodes[1:] {
			if n.runs("safe") > 0 {
				again = n
			}
		}
		return again != nil
	})
	held := again.release(2) // one of the two was held before
	for _, h := range held {
		h.Result(result("whole"))
	}
	ended := map[string]bool{}
	for range 2 {
		m := nextTold(t, w)
		if m.Params.Status != "completed" {
			t.Errorf("then: %+v", m)
		}
		ended[m.Params.TaskID] = true
	}
	if !ended[safe.TaskID] {
		t.Errorf("told the end of %v", ended)
	}
	for _, n := range f.nodes[1:] {
		if n != again {
			n.release(1)[0].Result(result("last"))
		}
	}
	if m := nextTold(t, w); m.Params.Status != "completed" || ended[m.Params.TaskID] {
		t.Errorf("the last: %+v", m)
	}
	if m := nextTold(t, w); m.Result == nil || m.Result.ResultType != "complete" {
		t.Errorf("at the end: %+v", m)
	}
}

// A call that is made again under its idempotency key, on any node, gets the same task.
func TestTaskKeyed(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, tasksConfig())
	p := &peer{n: f.nodes[0].node}
	made := p.under("once").task("hold", `{"key":"k"}`).TaskID
	for _, n := range []*farmNode{f.nodes[0], f.nodes[1], f.nodes[0]} {
		if again := (&peer{n: n.node}).under("once").task("hold", `{"key":"k"}`).TaskID; again != made {
			t.Errorf("the task %q, and again %q", made, again)
		}
	}
	if other := p.under("other").task("hold", `{"key":"other"}`).TaskID; other == made {
		t.Error("another call is the same task")
	}
	if n := f.runs("k"); n != 1 {
		t.Errorf("%d runs", n)
	}
}

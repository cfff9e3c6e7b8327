package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/caller"
	"holdfast/internal/feature/legacytask"
	"holdfast/internal/mcptest"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// services are the services of a session manager.
var services = []func(*session.Manager, *session.Options) session.Service{legacytask.New}

// legacyTasksConfig returns a config with the tasks of revision 2025-11-25.
func legacyTasksConfig() config {
	return config{session: session.Options{Polls: true, Keep: 10 * time.Minute}}
}

// A legacyTold is an answer about tasks of 2025-11-25.
type legacyTold struct {
	ID     json.RawMessage
	Method string
	Result struct {
		Task  *legacyTask
		Tasks []legacyTask
		legacyTask
		NextCursor string
		Content    json.RawMessage
		Meta       map[string]struct{ TaskID string } `json:"_meta"`
	}
	Error *struct {
		Code    int
		Message string
	}
}

type legacyTask struct {
	TaskID, Status, StatusMessage, CreatedAt, LastUpdatedAt string
	TTL                                                     *int64
	PollInterval                                            int64
}

func toldLegacy(t testing.TB, data []byte) (m legacyTold) {
	t.Helper()
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return m
}

// says makes a request and returns its answer.
func (p *peer) says(id, method, params string) legacyTold {
	p.n.t.Helper()
	r := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":%s}`, id, method, params))
	m := toldLegacy(p.n.t, []byte(r.response()))
	if string(m.ID) != fmt.Sprintf("%q", id) {
		p.n.t.Errorf("%s: %d %s", method, r.status, r.body)
	}
	return m
}

// begins makes a call as a task.
func (p *peer) begins(id, tool, arguments string) legacyTask {
	p.n.t.Helper()
	m := p.says(id, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s,"task":{"ttl":60000},"_meta":{"progressToken":"p"}}`, tool, arguments))
	if m.Result.Task == nil || m.Result.Task.TaskID == "" || m.Result.Task.Status != "working" {
		p.n.t.Fatalf("no task: %+v", m)
	}
	return *m.Result.Task
}

func (p *peer) of(method, task string) legacyTold {
	p.n.t.Helper()
	return p.says("about", method, fmt.Sprintf(`{"taskId":%q}`, task))
}

// becomes polls a task until it has a status.
func (p *peer) becomes(task, status string) (is legacyTask) {
	p.n.t.Helper()
	mcptest.Eventually(p.n.t, "the task to be "+status, time.Minute, func() bool {
		m := p.of("tasks/get", task)
		if m.Error != nil {
			p.n.t.Fatalf("tasks/get: %+v", m.Error)
		}
		is = m.Result.legacyTask
		return is.Status == status
	})
	return is
}

func TestLegacyTask(t *testing.T) {
	t.Parallel()
	n := newNode(t, legacyTasksConfig())
	p := n.connect("2025-11-25", nil)
	if r := p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`); strings.Count(string(r.body), `"execution":{"taskSupport":"optional"}`) != 6 {
		t.Errorf("tools: %s", r.body)
	}
	made := p.begins("1", "hold", `{"key":"k"}`)
	if made.TTL == nil || *made.TTL < 600_000 || made.PollInterval != 500 {
		t.Errorf("made: %+v", made)
	}
	held := n.release(1)[0]
	if strings.Contains(string(held.Params), "task") {
		t.Errorf("the backend has got %s", held.Params)
	}
	held.Notify("notifications/progress", []byte(`{"progressToken":"p","progress":1,"message":"half"}`))
	mcptest.Eventually(t, "progress", time.Minute, func() bool { return p.becomes(made.TaskID, "working").StatusMessage == "half" })
	w := p.open("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":77,"method":"tasks/result","params":{"taskId":%q}}`, made.TaskID))
	if ev := w.message(); !strings.Contains(string(ev.Data), `"half"`) || !strings.Contains(string(ev.Data), `"io.modelcontextprotocol/related-task":{"taskId":"`+made.TaskID) {
		t.Errorf("tasks/result says %s", ev.Data)
	}
	held.Result([]byte(`{"content":[{"type":"text","text":"whole"}],"isError":false}`))
	m := toldLegacy(t, w.message().Data)
	if string(m.ID) != "77" || !strings.Contains(string(m.Result.Content), "whole") || m.Result.Meta["io.modelcontextprotocol/related-task"].TaskID != made.TaskID {
		t.Errorf("tasks/result: %+v", m)
	}
	for range 2 { // a task can be read often
		if is := p.becomes(made.TaskID, "completed"); is.CreatedAt != made.CreatedAt {
			t.Errorf("at the end: %+v", is)
		}
		if m := p.of("tasks/result", made.TaskID); m.Error != nil || !strings.Contains(string(m.Result.Content), "whole") {
			t.Errorf("again: %+v", m)
		}
	}
	if m := p.of("tasks/cancel", made.TaskID); m.Error == nil || m.Error.Code != codeParams || !strings.Contains(m.Error.Message, "completed") {
		t.Errorf("cancelled after its end: %+v", m)
	}
	if m := p.says("l", "tasks/list", `{}`); len(m.Result.Tasks) != 1 || m.Result.Tasks[0].TaskID != made.TaskID || m.Result.NextCursor != "" {
		t.Errorf("tasks/list: %+v", m)
	}
	if n.runs("k") != 1 {
		t.Errorf("%d runs", n.runs("k"))
	}
}

// A client is told on the standalone stream how a task has ended, if the store cannot say that at first.
func TestLegacyTaskStoreAway(t *testing.T) {
	t.Parallel()
	var store endlessStore
	c := legacyTasksConfig()
	c.store = store.over
	n := newNode(t, c)
	p := n.connect("2025-11-25", nil)
	w := p.open("GET", "/mcp", "")
	made := p.begins("1", "hold", `{}`)
	held := n.release(1)
	store.on.Store(true)
	held[0].Result(result("done"))
	<-store.failed
	store.on.Store(false)
	if m := w.message(); !strings.Contains(string(m.Data), made.TaskID) || !strings.Contains(string(m.Data), `"completed"`) {
		t.Errorf("at the end: %s", m.Data)
	}
}

func TestLegacyTaskFails(t *testing.T) {
	t.Parallel()
	n := newNode(t, legacyTasksConfig())
	p := n.connect("2025-11-25", nil)
	tool, call := p.begins("1", "hold", `{"of":"tool"}`), p.begins("2", "hold", `{"of":"call"}`)
	held := n.release(2)
	if !strings.Contains(string(held[0].Params), `"tool"`) {
		slices.Reverse(held) // the calls run concurrently
	}
	held[0].Result([]byte(`{"content":[{"type":"text","text":"no luck"}],"isError":true}`))
	held[1].Error(jsonrpc.Errorf(-32055, "no such luck"))
	if is := p.becomes(tool.TaskID, "failed"); is.StatusMessage != "no luck" {
		t.Errorf("a tool that fails: %+v", is)
	}
	if m := p.of("tasks/result", tool.TaskID); m.Error != nil || !strings.Contains(string(m.Result.Content), "no luck") {
		t.Errorf("a tool that fails: %+v", m)
	}
	if is := p.becomes(call.TaskID, "failed"); is.StatusMessage != "no such luck" {
		t.Errorf("a call that fails: %+v", is)
	}
	if m := p.of("tasks/result", call.TaskID); m.Error == nil || m.Error.Code != -32055 {
		t.Errorf("a call that fails: %+v", m)
	}
}

func TestLegacyTaskCancelled(t *testing.T) {
	t.Parallel()
	n := newNode(t, legacyTasksConfig())
	p := n.connect("2025-11-25", nil)
	made := p.begins("1", "hold", `{}`)
	n.release(1)
	w := p.open("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":"r","method":"tasks/result","params":{"taskId":%q}}`, made.TaskID))
	mcptest.Eventually(t, "the tasks/result", time.Minute, func() bool { return n.sessions.Calls() == 2 })
	if m := p.of("tasks/cancel", made.TaskID); m.Error != nil || m.Result.Status != "cancelled" {
		t.Errorf("cancelled: %+v", m)
	}
	if is := p.of("tasks/get", made.TaskID); is.Result.Status != "cancelled" {
		t.Errorf("after that: %+v", is)
	}
	if r := w.all(); toldLegacy(t, r.body).Error == nil {
		t.Errorf("tasks/result: %s", r.body)
	}
	if m := p.of("tasks/cancel", made.TaskID); m.Error == nil || m.Error.Code != codeParams {
		t.Errorf("cancelled again: %+v", m)
	}
}

// A question of the backend during a task is delivered by a tasks/result.
func TestLegacyTaskAsks(t *testing.T) {
	t.Parallel()
	n := newNode(t, legacyTasksConfig())
	p := n.connect("2025-11-25", nil)
	made := p.begins("1", "ask", `{}`)
	p.becomes(made.TaskID, "input_required")
	w := p.open("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":"r","method":"tasks/result","params":{"taskId":%q}}`, made.TaskID))
	asked := w.message()
	if !strings.Contains(string(asked.Data), "elicitation/create") || !strings.Contains(string(asked.Data), made.TaskID) {
		t.Fatalf("asked: %s", asked.Data)
	}
	q := mcptest.Parse(string(asked.Data))
	if r := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, q.ID)); r.status != http.StatusAccepted {
		t.Errorf("answered: %d %s", r.status, r.body)
	}
	if m := toldLegacy(t, w.message().Data); !strings.Contains(string(m.Result.Content), "accept") {
		t.Errorf("at the end: %+v", m)
	}
	p.becomes(made.TaskID, "completed")
}

// A principal can use its tasks in all its sessions, and no other principal can.
func TestLegacyTaskOfAnother(t *testing.T) {
	t.Parallel()
	c := legacyTasksConfig()
	c.server.Principal = func(r *http.Request) string { return r.Header.Get("Who") }
	n := newNode(t, c)
	who := func(name string) *peer { return n.connect("2025-11-25", http.Header{"Who": {name}}) }
	me, again, you := who("me"), who("me"), who("you")
	made := me.begins("1", "ask", `{}`)
	n.holds(1) // the answer below ends the oldest call
	other := again.begins("1", "hold", `{}`)
	id := made.TaskID
	for what, is := range map[string]struct {
		p  *peer
		id string
	}{
		"another principal": {you, id}, "another mark": {me, id[:20] + "AAAA" + id[24:]}, "another number": {me, id + "0"},
		"another name": {me, "AAAAAAAAAAAAAAAA" + id[16:]}, "no name": {me, "made-up"}, "none": {me, ""},
	} {
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			if m := is.p.of(method, is.id); m.Error == nil || m.Error.Code != codeParams {
				t.Errorf("%s, %s: %+v", method, what, m)
			}
		}
	}
	if m := you.says("l", "tasks/list", `{}`); m.Error != nil || len(m.Result.Tasks) != 0 {
		t.Errorf("tasks of another: %+v", m)
	}
	for _, p := range []*peer{me, again} {
		if m := p.says("l", "tasks/list", `{}`); len(m.Result.Tasks) != 2 {
			t.Errorf("tasks: %+v", m)
		}
		if m := p.says("l", "tasks/list", `{"cursor":"made-up"}`); m.Error == nil || m.Error.Code != codeParams {
			t.Errorf("a made-up cursor: %+v", m)
		}
	}
	again.becomes(id, "input_required")
	w := again.open("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":"r","method":"tasks/result","params":{"taskId":%q}}`, id))
	q := mcptest.Parse(string(w.message().Data))
	if r := again.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, q.ID)); r.status != http.StatusAccepted {
		t.Errorf("answered: %d %s", r.status, r.body)
	}
	if m := toldLegacy(t, w.message().Data); !strings.Contains(string(m.Result.Content), "accept") {
		t.Errorf("in another session: %+v", m)
	}
	if m := me.of("tasks/cancel", other.TaskID); m.Error != nil || m.Result.Status != "cancelled" {
		t.Errorf("cancelled from another session: %+v", m)
	}
}

// Tasks are listed in pages.
func TestLegacyTaskPages(t *testing.T) {
	t.Parallel()
	n := newNode(t, legacyTasksConfig())
	p := n.connect("2025-11-25", nil)
	want := map[string]bool{}
	for i := range 120 {
		want[p.begins(fmt.Sprint(i), "echo", `{"text":"x"}`).TaskID] = true
	}
	first := p.says("l", "tasks/list", `{}`).Result
	for _, params := range []string{`{"cursor":null}`, `{"cursor":""}`} {
		if m := p.says("l", "tasks/list", params); m.Error != nil || len(m.Result.Tasks) != len(first.Tasks) || m.Result.NextCursor != first.NextCursor {
			t.Errorf("%s is not the first page: %+v", params, m)
		}
	}
	cursor, pages := `{}`, 0
	for cursor != "" {
		m := p.says("l", "tasks/list", cursor)
		pages++
		for _, task := range m.Result.Tasks {
			if !want[task.TaskID] {
				t.Errorf("%s: listed twice, or not ours", task.TaskID)
			}
			delete(want, task.TaskID)
		}
		cursor = ""
		if m.Result.NextCursor != "" {
			cursor = fmt.Sprintf(`{"cursor":%q}`, m.Result.NextCursor)
		}
	}
	if len(want) != 0 || pages != 3 {
		t.Errorf("%d not listed, %d pages", len(want), pages)
	}
}

// Clients of older revisions, and of a backend with tasks of its own, get nothing of Holdfast's
// tasks.
func TestNoLegacyTasks(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ version, own string }{
		"older revision": {"2025-06-18", ""}, "tasks of the backend": {"2025-11-25", `"tasks":{"requests":{"tools":{"call":{}}}},`},
	} {
		c := legacyTasksConfig()
		inner := newScript()
		c.backend = message.New(message.HandlerFunc(func(e *message.Exchange) {
			if e.Method == "initialize" {
				e.Result(fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":{%s"tools":{}}}`, x.version, x.own))
				return
			}
			if e.Method == "tools/call" || e.Method == "tasks/get" {
				e.Result(fmt.Appendf(nil, `{"content":[],"got":%s}`, e.Params))
				return
			}
			inner.Serve(e)
		}))
		n := newNode(t, c)
		p := n.connect(x.version, nil)
		if r := p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`); strings.Contains(string(r.body), "execution") {
			t.Errorf("%s: %s", name, r.body)
		}
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"echo","task":{"ttl":1}}}`,
			`{"jsonrpc":"2.0","id":"1","method":"tasks/get","params":{"taskId":"theirs","task":{"ttl":1}}}`,
		} {
			if r := p.post(body); !strings.Contains(string(r.body), `"task":{"ttl":1}`) {
				t.Errorf("%s: %d %s", name, r.status, r.body)
			}
		}
	}
}

// A task is found on any node, also after its own is lost.
func TestLegacyTaskOnAnyNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, legacyTasksConfig())
	p := f.nodes[0].connect("2025-11-25", nil)
	p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	ended := p.begins("3", "hold", `{"key":"ended"}`)
	f.nodes[0].release(1)[0].Result(result("ended")) // the server may get the calls of tasks in another order
	safe, unsafe := p.begins("1", "safe_hold", `{"key":"safe"}`), p.begins("2", "hold", `{"key":"unsafe"}`)
	f.nodes[0].release(2)
	p.at(f.nodes[1]).becomes(ended.TaskID, "completed")
	elsewhere := f.nodes[2].connect("2025-11-25", nil)
	elsewhere.becomes(ended.TaskID, "completed") // in a session on another node
	w := p.at(f.nodes[1]).waits("r", safe.TaskID)
	same := elsewhere.waits("1", safe.TaskID) // with the same id as the call of the task
	mcptest.Eventually(t, "the tasks/result", time.Minute, func() bool { return f.nodes[0].sessions.Calls() == 4 })

	f.nodes[0].kill()
	if m := p.at(f.nodes[1]).of("tasks/result", ended.TaskID); !strings.Contains(string(m.Result.Content), "ended") {
		t.Errorf("that had ended: %+v", m)
	}
	if is := p.at(f.nodes[2]).becomes(unsafe.TaskID, "failed"); !strings.Contains(is.StatusMessage, "outcome unknown") {
		t.Errorf("that may have run: %+v", is)
	}
	if m := elsewhere.of("tasks/result", unsafe.TaskID); m.Error == nil || m.Error.Code != codeUnknown {
		t.Errorf("that may have run: %+v", m)
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
	made := again.release(1)[0]
	if strings.Contains(string(made.Params), "task") {
		t.Errorf("the backend has got %s", made.Params)
	}
	made.Result(result("again"))
	if m := toldLegacy(t, []byte(w.all().response())); string(m.ID) != `"r"` || !strings.Contains(string(m.Result.Content), "again") {
		t.Errorf("that is safe: %+v", m)
	}
	if m := toldLegacy(t, []byte(same.all().response())); string(m.ID) != `"1"` || !strings.Contains(string(m.Result.Content), "again") {
		t.Errorf("that is safe, in another session: %+v", m)
	}
	if is := p.at(f.nodes[2]).becomes(safe.TaskID, "completed"); is.CreatedAt != safe.CreatedAt {
		t.Errorf("that is safe: %+v", is)
	}
	if m := p.at(f.nodes[1]).says("l", "tasks/list", `{}`); len(m.Result.Tasks) != 3 {
		t.Errorf("tasks/list: %+v", m)
	}
	for id, runs := range map[string]int{"unsafe": 1, "ended": 1, "safe": 2} {
		if n := f.runs(id); n != runs {
			t.Errorf("%s ran %d times", id, n)
		}
	}
}

// A task that is made again under its idempotency key is the same task.
func TestLegacyTaskKeyed(t *testing.T) {
	t.Parallel()
	n := newNode(t, legacyTasksConfig())
	p := n.connect("2025-11-25", nil)
	body := `{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"hold","arguments":{"key":"k"},"task":{}}}`
	first := toldLegacy(t, p.post(body, "Idempotency-Key: x").body)
	second := toldLegacy(t, p.post(body, "Idempotency-Key: x").body)
	if first.Result.Task == nil || second.Result.Task == nil || first.Result.Task.TaskID != second.Result.Task.TaskID {
		t.Errorf("%+v and %+v", first, second)
	}
	n.release(1)[0].Result(result("once"))
	p.becomes(first.Result.Task.TaskID, "completed")
	if n.runs("k") != 1 {
		t.Errorf("%d runs", n.runs("k"))
	}
}

// A client on a connection that goes both ways uses tasks on it.
func TestLegacyTaskBothWays(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, legacyTasksConfig())
		c := open(n, 0)
		c.begin("2025-11-25", `{"elicitation":{}}`)
		c.say(`{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"ask","arguments":{},"task":{}}}`)
		made := toldLegacy(t, c.message().Raw)
		for made.Method == "notifications/tasks/status" {
			made = toldLegacy(t, c.message().Raw)
		}
		if made.Result.Task == nil {
			t.Fatalf("no task: %+v", made)
		}
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"r","method":"tasks/result","params":{"taskId":%q}}`, made.Result.Task.TaskID))
		var q, end jsonrpc.Message
		for end.Raw == nil {
			switch m := c.message(); m.Method {
			case "elicitation/create":
				q = m
				c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, m.ID))
			case "notifications/tasks/status":
			default:
				end = m
			}
		}
		if q.Raw == nil || string(end.ID) != `"r"` || !strings.Contains(string(end.Raw), "accept") {
			t.Errorf("%s, after %s", end.Raw, q.Raw)
		}
	})
}

// waits sends a tasks/result.
func (p *peer) waits(id, task string) *wire {
	p.n.t.Helper()
	return p.open("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tasks/result","params":{"taskId":%q}}`, id, task))
}

// cancels cancels a request.
func (p *peer) cancels(id string) {
	p.n.t.Helper()
	if r := p.post(cancelling(id)); r.status != http.StatusAccepted {
		p.n.t.Errorf("cancelled: %d %s", r.status, r.body)
	}
}

func cancelling(id string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%q}}`, id)
}

// Requests about a task of another session use the ids of their own session: they may equal ids of the task's session.
func TestLegacyTaskIDs(t *testing.T) {
	t.Parallel()
	for i := range 2 { // the node of the other session
		t.Run(fmt.Sprint("node ", i), func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, 3, legacyTasksConfig())
			calls := func(n int) bool { return f.nodes[0].sessions.Calls() == n }
			p, other := f.nodes[0].connect("2025-11-25", nil), f.nodes[i].connect("2025-11-25", nil)
			id := fmt.Sprint(i)
			task := p.begins(id, "hold", `{}`).TaskID
			held := f.nodes[0].release(1)[0]
			for _, via := range f.nodes {
				q := other.at(via)
				if m := q.says(id, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, task)); m.Result.Status != "working" {
					t.Errorf("%s: tasks/get: %+v", id, m)
				}
				mcptest.Eventually(t, "the tasks/get to be over", time.Minute, func() bool { return calls(1) })
				w := q.waits("r", task)
				mcptest.Eventually(t, "the tasks/result", time.Minute, func() bool { return calls(2) })
				if r := q.waits("r", task).all(); r.status != http.StatusBadRequest {
					t.Errorf("%s: with an id in flight: %d %s", id, r.status, r.body)
				}
				p.cancels("r")
				if !calls(2) {
					t.Errorf("%s: the client of the task's session has cancelled it", id)
				}
				q.cancels("r")
				if !calls(1) {
					t.Errorf("%s: not cancelled", id)
				}
				if r := w.all(); len(r.events()) > 0 && strings.Contains(r.response(), `"id":"r"`) {
					t.Errorf("%s: cancelled, and then %s", id, r.body)
				}
			}
			w := other.waits(id, task)
			mcptest.Eventually(t, "the tasks/result", time.Minute, func() bool { return calls(2) })
			held.Result(result("whole"))
			if m := toldLegacy(t, []byte(w.all().response())); string(m.ID) != fmt.Sprintf("%q", id) || !strings.Contains(string(m.Result.Content), "whole") {
				t.Errorf("%s: tasks/result: %+v", id, m)
			}
		})
	}
}

// TestLegacyTaskIDs on a connection that carries many exchanges.
func TestLegacyTaskIDsBothWays(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		f := newFarm(t, 2, legacyTasksConfig())
		calls := func(n int) func() bool { return func() bool { return f.nodes[0].sessions.Calls() == n } }
		p := f.nodes[0].connect("2025-11-25", nil)
		task := p.begins("1", "hold", `{}`).TaskID
		held := f.nodes[0].release(1)[0]
		for i, at := range f.nodes {
			c := open(at.node, 0)
			c.begin("2025-11-25", `{}`)
			c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"1","method":"tasks/get","params":{"taskId":%q}}`, task))
			if m := c.message(); string(m.ID) != `"1"` || m.Error != nil {
				t.Errorf("node %d: tasks/get: %s", i, m.Raw)
			}
			wait := fmt.Sprintf(`{"jsonrpc":"2.0","id":"r","method":"tasks/result","params":{"taskId":%q}}`, task)
			mcptest.Eventually(t, "the tasks/get to be over", time.Minute, calls(1))
			c.say(wait)
			mcptest.Eventually(t, "the tasks/result", time.Minute, calls(2))
			p.cancels("r")
			if !calls(2)() {
				t.Errorf("node %d: the client of the task's session has cancelled it", i)
			}
			c.say(cancelling("r"))
			mcptest.Eventually(t, "the tasks/result to be cancelled", time.Minute, calls(1))
			c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"r2","method":"tasks/get","params":{"taskId":%q}}`, task))
			if m := c.message(); string(m.ID) != `"r2"` || m.Error != nil {
				t.Errorf("node %d: after that: %s", i, m.Raw)
			}
			if i == len(f.nodes)-1 {
				mcptest.Eventually(t, "the tasks/get to be over", time.Minute, calls(1))
				c.say(strings.Replace(wait, `"r"`, `"1"`, 1))
				mcptest.Eventually(t, "the tasks/result", time.Minute, calls(2))
				held.Result(result("whole"))
				if m := c.message(); string(m.ID) != `"1"` || !strings.Contains(string(m.Raw), "whole") {
					t.Errorf("tasks/result: %s", m.Raw)
				}
			}
			c.cut(fin)
		}
	})
}

// An operator can cancel a tasks/result that another session has sent.
func TestLegacyTaskGuestCancelledByOperator(t *testing.T) {
	t.Parallel()
	n := newNode(t, legacyTasksConfig())
	p, other := n.connect("2025-11-25", nil), n.connect("2025-11-25", nil)
	task := p.begins("1", "hold", `{}`).TaskID
	n.release(1)
	w := other.waits("r", task)
	home, err := n.sessions.Find(p.id, caller.Principal{})
	if err != nil {
		t.Fatal(err)
	}
	mcptest.Eventually(t, "the tasks/result to be cancelled", time.Minute, func() bool { return home.CancelByOperator(`"r"`) })
	if m := toldLegacy(t, []byte(w.all().response())); m.Error == nil || !strings.Contains(m.Error.Message, "operator") {
		t.Errorf("told %+v", m)
	}
}

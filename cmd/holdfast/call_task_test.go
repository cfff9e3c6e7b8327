package main

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// An assigner is a server of 2025-11-25 with tools that can be called only as tasks.
type assigner struct {
	mu        sync.Mutex
	tasks     map[string]*assigned
	noID      bool // the answer to a call names no task
	noTasks   bool // the server does not declare tasks
	cancelled int
}

type assigned struct {
	tool  string
	token []byte        // the progress token
	ended chan struct{} // closed when the client cancels the task
}

func (a *assigner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mcptest.Methods{"initialize": a.serve, "*": a.serve}.ServeHTTP(w, r)
}

func (a *assigner) serve(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
	if m.Kind != jsonrpc.Request {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	a.mu.Lock()
	task := a.tasks[jsonrpc.String(jsonrpc.Field(m.Params, "taskId"))]
	answer := a.answer(m, task)
	a.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	if m.Method == "tasks/result" && task != nil {
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%s,\"progress\":1,\"total\":2}}\n\n", task.token)
		_ = http.NewResponseController(w).Flush()
		if task.tool == "forever" {
			select {
			case <-task.ended:
			case <-r.Context().Done():
				return
			}
		}
	}
	fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,%s}\n\n", m.ID, answer)
}

// answer returns the members of the response to a request. task is the task that the request is about, or nil. a.mu is held.
func (a *assigner) answer(m jsonrpc.Message, task *assigned) string {
	switch m.Method {
	case "initialize":
		capabilities := `"tools":{},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}`
		if a.noTasks {
			capabilities = `"tools":{}`
		}
		return `"result":{"protocolVersion":"2025-11-25","capabilities":{` + capabilities + `},"serverInfo":{"name":"assigner","version":"1"}}`
	case "tools/list":
		tool := func(name string) string {
			return `{"name":"` + name + `","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}}`
		}
		return `"result":{"tools":[` + tool("research") + "," + tool("forever") + `,{"name":"cancelled","inputSchema":{"type":"object"}}]}`
	case "tools/call":
		if jsonrpc.String(jsonrpc.Field(m.Params, "name")) == "cancelled" {
			return fmt.Sprintf(`"result":{"content":[{"type":"text","text":"%d"}]}`, a.cancelled)
		}
		if jsonrpc.Field(m.Params, "task") == nil {
			return `"error":{"code":-32601,"message":"the tool requires a task"}`
		}
		if a.noID {
			return `"result":{"content":[]}`
		}
		id := fmt.Sprintf("t%d", len(a.tasks)+1)
		a.tasks[id] = &assigned{
			tool: jsonrpc.String(jsonrpc.Field(m.Params, "name")), ended: make(chan struct{}),
			token: bytes.Clone(jsonrpc.Field(m.Params, "_meta", "progressToken")),
		}
		return `"result":{"task":{"taskId":"` + id + `","status":"working","ttl":null,"createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z"}}`
	case "tasks/cancel":
		if task != nil {
			close(task.ended)
			a.cancelled++
		}
		return `"result":{"taskId":"t1","status":"cancelled"}`
	case "tasks/result":
		if task != nil && task.tool == "research" {
			return `"result":{"content":[{"type":"text","text":"it is so"}]}`
		}
		return `"error":{"code":-32602,"message":"it was cancelled"}`
	}
	return `"error":{"code":-32601,"message":"no such method"}`
}

// runInside runs a command in this process.
func runInside(t *testing.T, stdin string, args ...string) (out, says string, err error) {
	t.Helper()
	var stdout bytes.Buffer
	var stderr mcptest.Log // it also gets the log of other commands in this process
	cmd := newRoot()
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// A tool that can be called only as a task is called as a task, and the command waits for its result.
func TestCallAsTask(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		server      *assigner
		out, failed string
	}{
		"the result":    {server: &assigner{}, out: "it is so\n"},
		"no id":         {server: &assigner{noID: true}, failed: "research: the server has taken the call, but its answer names no task: "},
		"no such right": {server: &assigner{noTasks: true}, failed: "the tool requires a task"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			test.server.tasks = make(map[string]*assigned)
			out, says, err := runInside(t, "", "call", "--state=", mcptest.Serve(t, test.server), "research")
			if failed := fmt.Sprint(err); (err == nil) != (test.failed == "") || err != nil && !strings.Contains(failed, test.failed) {
				t.Errorf("it failed with %v", err)
			}
			if out != test.out || test.out != "" && !strings.Contains(says, "progress 1/2") {
				t.Errorf("%s\n%s", out, says)
			}
		})
	}
}

// assigns starts an assigner, and sets a variable to its URL. Its tools can be called only as tasks, except
// for "cancelled", which returns the number of cancelled tasks:
//
//	assigns NAME
func assigns(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "assigns NAME")
	served(ts, args[0], &assigner{tasks: make(map[string]*assigned)})
}

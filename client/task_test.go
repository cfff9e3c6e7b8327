package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// newTaskServer returns a server that makes a task of each call. The task's states follow
// each other, one for each poll that is not cut. The last state stays.
func newTaskServer(t *testing.T, states ...string) *modernServer {
	t.Helper()
	var mu sync.Mutex
	return newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, n int) {
		switch m.Method {
		case "tools/call":
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"task","taskId":"t/1","status":"working","ttlMs":null,"pollIntervalMs":1}}`, m.ID)
		case "tasks/get":
			if n%2 == 0 {
				cut()
			}
			mu.Lock()
			state := states[0]
			if len(states) > 1 {
				states = states[1:]
			}
			mu.Unlock()
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","taskId":"t/1","ttlMs":null,"pollIntervalMs":1,%s}}`, m.ID, state)
		default:
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
		}
	})
}

const taskCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x",` + meta + `}}`

// The client follows a call that becomes a task to its end, over cuts. The host gets its response.
func TestTask(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ state, want string }{
		"completed": {`"status":"completed","result":{"content":[],"isError":true}`, `"result":{"content":[],"isError":true}`},
		"failed":    {`"status":"failed","error":{"code":-7,"message":"no","data":1}`, `"error":{"code":-7,"message":"no","data":1}`},
		"cancelled": {`"status":"cancelled"`, `"message":"the task was cancelled"`},
		"no status": {`"status":"lost"`, `outcome unknown: the server sends what cannot be used`},
		"no result": {`"status":"completed"`, `outcome unknown: the server sends what cannot be used`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var told []string
			s := newTaskServer(t, `"status":"working"`, `"status":"working","statusMessage":"half"`, `"status":"working","statusMessage":"half"`, tt.state)
			c := newRaw(t, s.url, client.Options{Tasks: true, Task: func(call, task json.RawMessage) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprintf("%s %s", call, jsonrpc.String(jsonrpc.Field(task, "status"))))
			}})
			c.send(taskCall)
			if m := c.answer("1"); !strings.Contains(string(m.Raw), tt.want) {
				t.Errorf("%s, want %s", m.Raw, tt.want)
			}
			calls := s.got("tools/call")
			if got := jsonrpc.Field(calls[0].Params, "_meta", "io.modelcontextprotocol/clientCapabilities", "extensions", "io.modelcontextprotocol/tasks"); len(calls) != 1 || string(got) != "{}" {
				t.Errorf("%d calls, which declare %s", len(calls), got)
			}
			poll := s.got("tasks/get")[0]
			if poll.header.Get("Mcp-Name") != "t/1" || jsonrpc.Field(poll.Params, "_meta", "io.modelcontextprotocol/clientInfo") == nil {
				t.Errorf("%s %v", poll.Raw, poll.header)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(told) != 3 || told[0] != "1 working" {
				t.Errorf("told of %q", told)
			}
		})
	}
}

// The host gives a task the input that it needs, once for each key.
func TestTaskInput(t *testing.T) {
	t.Parallel()
	const asks = `"status":"input_required","inputRequests":{"b":{"method":"elicitation/create","params":{"message":"name?"}}}`
	s := newTaskServer(t, asks, asks, asks, asks, `"status":"completed","result":{"content":[]}`)
	c := newRaw(t, s.url, client.Options{Tasks: true})
	c.send(taskCall)
	m := c.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	if m.Method != "elicitation/create" || string(jsonrpc.Field(m.Params, "message")) != `"name?"` {
		t.Errorf("%s", m.Raw)
	}
	c.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"name":"bob"}}}`, m.ID)
	c.until(func(m jsonrpc.Message) bool {
		if m.Kind == jsonrpc.Request {
			t.Errorf("asked again: %s", m.Raw)
		}
		return m.Kind == jsonrpc.Response
	})
	mcptest.Eventually(t, "the input", soon, func() bool { return len(s.got("tasks/update")) == 1 })
	update := s.got("tasks/update")[0]
	if got := jsonrpc.Field(update.Params, "inputResponses", "b", "content", "name"); string(got) != `"bob"` || update.header.Get("Mcp-Name") != "t/1" {
		t.Errorf("%s", update.Raw)
	}
}

// A task is cancelled by tasks/cancel. A Conn continues a task that another Conn has left.
func TestTaskLeftAndCancelled(t *testing.T) {
	t.Parallel()
	s := newTaskServer(t, `"status":"working"`)
	a := newRaw(t, s.url, client.Options{Tasks: true})
	a.send(taskCall)
	mcptest.Eventually(t, "the client to ask", soon, func() bool { return len(s.got("tasks/get")) > 2 })
	a.Detach()
	state := a.State()
	if len(state.Calls) != 1 || state.Calls[0].Task != "t/1" || state.Calls[0].Request != nil {
		t.Fatalf("%+v", state)
	}
	b := newRaw(t, s.url, client.Options{State: &state})
	before := len(s.got("tasks/get"))
	go func() { _, _ = b.Receive(t.Context()) }()
	mcptest.Eventually(t, "the client to ask", soon, func() bool { return len(s.got("tasks/get")) > before+2 })
	if n := len(s.got("tasks/cancel")); n > 0 {
		t.Error("a task that was left is cancelled")
	}
	b.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	mcptest.Eventually(t, "the cancellation", soon, func() bool { return len(s.got("tasks/cancel")) == 1 })
	if n := len(s.got("notifications/cancelled")) + len(s.got("tools/call")); n != 1 {
		t.Errorf("%d messages too many", n-1)
	}
}

// A host that knows tasks gets the handle, or the result where its call is not a task.
func TestTaskOfHost(t *testing.T) {
	t.Parallel()
	s := newTaskServer(t, `"status":"working"`)
	for _, tasks := range []bool{false, true} {
		c := newRaw(t, s.url, client.Options{Tasks: tasks})
		c.send("%s", strings.Replace(taskCall, `clientCapabilities":{}`, `clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, 1))
		if m := c.answer("1"); jsonrpc.String(jsonrpc.Field(m.Result, "taskId")) != "t/1" {
			t.Errorf("%s", m.Raw)
		}
	}
	if n := len(s.got("tasks/get")); n > 0 {
		t.Errorf("asked for %d times", n)
	}
}

// When the server does not know the task any more, the outcome is unknown. An internal error may pass.
func TestTaskForgotten(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, n int) {
		switch {
		case m.Method == "tools/call":
			event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"task","taskId":"t","status":"working","pollIntervalMs":1}}`, m.ID)
		case n == 1:
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"busy"}}`, m.ID)
		default:
			answerJSON(w, 400, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no such task"}}`, m.ID)
		}
	})
	c := newRaw(t, s.url, client.Options{Tasks: true})
	c.send(taskCall)
	if m := c.answer("1"); !strings.Contains(string(m.Error), "outcome unknown: the server does not tell of the task: no such task") || len(s.got("tasks/get")) != 2 {
		t.Errorf("%s", m.Raw)
	}
}

// A task that asks for more input than a call may ask for ends its call: its server would wait for ever.
func TestTaskAsksTooMuch(t *testing.T) {
	t.Parallel()
	var asks strings.Builder
	for i := range 1001 {
		fmt.Fprintf(&asks, `,"%d":{"method":"roots/list"}`, i)
	}
	s := newTaskServer(t, `"status":"input_required","inputRequests":{`+asks.String()[1:]+`}`)
	c := newRaw(t, s.url, client.Options{Tasks: true})
	c.send(taskCall)
	if m := c.answer("1"); !strings.Contains(string(m.Error), "more than 1000 inputs") || len(s.got("tasks/cancel")) != 1 {
		t.Errorf("%s", m.Raw)
	}
}

// The host answers a modern server's questions, and the request is made again with the answers.
func TestRounds(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, n int) {
		switch n {
		case 1:
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","requestState":"<s1>","inputRequests":{`+
				`"a":{"method":"elicitation/create","params":{"message":"a"}},"b":{"method":"roots/list"}}}}`, m.ID)
		case 2:
			event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","requestState":"s2"}}`, m.ID)
		default:
			event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","content":[]}}`, m.ID)
		}
	})
	c := newRaw(t, s.url, client.Options{AskHost: true})
	c.send(taskCall)
	for range 2 {
		m := c.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
		c.send(`{"jsonrpc":"2.0","id":%s,"result":{"for":%q}}`, m.ID, m.Method)
	}
	if m := c.answer("1"); m.Error != nil {
		t.Fatalf("%s", m.Raw)
	}
	got := s.got("tools/call")
	for i, want := range []string{"", `"<s1>"`, `"s2"`} {
		if state := string(jsonrpc.Field(got[i].Params, "requestState")); state != want {
			t.Errorf("round %d has the state %s, want %s", i, state, want)
		}
	}
	if a, b := jsonrpc.Field(got[1].Params, "inputResponses", "a", "for"), jsonrpc.Field(got[1].Params, "inputResponses", "b", "for"); string(a) != `"elicitation/create"` || string(b) != `"roots/list"` {
		t.Errorf("%s", got[1].Raw)
	}
	if string(got[0].ID) == string(got[1].ID) || jsonrpc.Field(got[2].Params, "inputResponses") != nil {
		t.Errorf("%s %s", got[1].ID, got[2].Raw)
	}

	// A host that cannot answer gets an error with a known outcome.
	s = newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, _ int) {
		answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"b":{"method":"roots/list"}}}}`, m.ID)
	})
	c = newRaw(t, s.url, client.Options{AskHost: true})
	c.send(taskCall)
	m := c.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	c.send(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no roots here"}}`, m.ID)
	if m := c.answer("1"); !strings.Contains(string(m.Error), "the call needs input: no roots here") || strings.Contains(string(m.Error), "unknown") {
		t.Errorf("%s", m.Raw)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := c.Receive(ctx); err == nil {
		t.Error("something else came")
	}
}

package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// metaOf returns the _meta of a modern host that takes elicitations, and that supports tasks or not.
func metaOf(tasks bool, more string) string {
	extensions := ""
	if tasks {
		extensions = `,"extensions":{"` + protocol.ExtensionTasks + `":{}}`
	}
	return fmt.Sprintf(`"_meta":{%q:"2026-07-28",%q:{"name":"modern","version":"1"},%q:{"elicitation":{"form":{}}%s}%s}`,
		protocol.MetaProtocolVersion, protocol.MetaClientInfo, protocol.MetaClientCapabilities, extensions, more)
}

// ask makes a modern request, and returns the response to it.
func (c *testHost) ask(id int, method, params string, tasks bool) (response []byte) {
	c.t.Helper()
	c.begin(id, method, params, tasks)
	return []byte(c.read(fmt.Sprintf(`"id":%d,`, id)))
}

// begin makes a modern request. Its progress token is the id.
func (c *testHost) begin(id int, method, params string, tasks bool) {
	c.t.Helper()
	if params != "" {
		params += ","
	}
	c.send(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s%s}}`, id, method, params, metaOf(tasks, fmt.Sprintf(`,"progressToken":%d`, id)))
}

// want fails the test if the value at a path in a message does not contain a text.
func want(t *testing.T, message []byte, text string, path ...string) {
	t.Helper()
	if got := string(jsonrpc.Field(message, path...)); !strings.Contains(got, text) {
		t.Fatalf("%s is %s; want %s: %s", strings.Join(path, "."), got, text, message)
	}
}

// kinds are servers with the tools count, ask and wait. let ends a call of wait. The
// tool late asks the client as ask does, but only after late.
func kinds(t *testing.T, let, late <-chan struct{}) map[string]string {
	t.Helper()
	make := func() *mcp.Server {
		server := mcp.NewServer(&mcp.Implementation{Name: "server", Version: "1"}, nil)
		question := &mcp.ElicitParams{Message: "Who?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)}
		mcp.AddTool(server, &mcp.Tool{Name: "count"}, func(ctx context.Context, req *mcp.CallToolRequest, args countArgs) (*mcp.CallToolResult, any, error) {
			for i := 1; i <= args.To; i++ {
				if token := req.Params.GetProgressToken(); token != nil {
					_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(i), Message: fmt.Sprint("at ", i)})
				}
			}
			return nil, map[string]int{"to": args.To}, nil
		})
		ask := func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			if req.Params.Name == "late" {
				<-late
			}
			answer, err := req.Session.Elicit(ctx, question)
			if err != nil {
				return nil, nil, err
			}
			return nil, map[string]any{"said": answer.Content["name"]}, nil
		}
		mcp.AddTool(server, &mcp.Tool{Name: "ask"}, ask)
		mcp.AddTool(server, &mcp.Tool{Name: "late"}, ask)
		mcp.AddTool(server, &mcp.Tool{Name: "rounds"}, func(_ context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			if answer, ok := req.Params.InputResponses["who"].(*mcp.ElicitResult); ok {
				return nil, map[string]any{"said": answer.Content["name"]}, nil
			}
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"who": question}}, nil, nil
		})
		mcp.AddTool(server, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			select {
			case <-let:
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			}
			return nil, map[string]bool{"waited": true}, nil
		})
		return server
	}
	urls := map[string]string{"holdfast": serve(t, make())}
	old := holdfast.NewHandler(func(*http.Request) *mcp.Server { return make() }, &holdfast.Options{Eras: holdfast.ErasLegacy, Retry: 10 * time.Millisecond})
	urls["legacy"] = mcptest.Serve(t, old)
	mcptest.ShutDownAtEnd(t, old, 0) // no client is left to wait for
	server := make()
	only := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	urls["modern"] = mcptest.Serve(t, modernOnly(only))
	return urls
}

// modernOnly refuses requests that modern revisions do not have.
func modernOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(protocol.HeaderVersion) != protocol.V20260728 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"unsupported protocol version","data":{"supported":["2026-07-28"]}}}`)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// A modern host can use a server of each era: it lists, calls, gets progress, and answers the server's requests.
func TestModernHost(t *testing.T) {
	t.Parallel()
	for kind, url := range kinds(t, nil, nil) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := newHost(t, url, t.TempDir())
			found := c.ask(1, "server/discover", "", false)
			want(t, found, "2026-07-28", "result", "supportedVersions")
			want(t, c.ask(2, "tools/list", "", false), `"count"`, "result", "tools")
			c.begin(3, "tools/call", `"name":"count","arguments":{"to":3,"delay_ms":0}`, false)
			for i := 1; i <= 3; i++ {
				m := []byte(c.read(`"method":"notifications/progress"`))
				want(t, m, fmt.Sprint(i), "params", "progress")
				want(t, m, "3", "params", "progressToken")
			}
			m := []byte(c.read(`"id":3,`))
			want(t, m, `"complete"`, "result", "resultType")
			want(t, m, "3", "result", "structuredContent", "to")
			tool := "ask"
			if kind == "modern" {
				tool = "rounds"
			}
			m = c.ask(4, "tools/call", `"name":"`+tool+`"`, false)
			want(t, m, `"input_required"`, "result", "resultType")
			want(t, m, "Who?", "result", "inputRequests")
			var key string
			jsonrpc.Each(jsonrpc.Field(m, "result", "inputRequests"), func(name, _ []byte) { key = string(name) })
			state := jsonrpc.Field(m, "result", "requestState")
			again := fmt.Sprintf(`"name":%q,"inputResponses":{%q:{"action":"accept","content":{"name":"Ada"}}}`, tool, key)
			if state != nil {
				again += fmt.Sprintf(`,"requestState":%s`, state)
			}
			want(t, c.ask(5, "tools/call", again, false), "Ada", "result", "structuredContent", "said")
			if kind != "modern" { // else the server alone knows the state
				want(t, c.ask(6, "tools/call", again, false), "-32602", "error", "code")
			}
			want(t, c.ask(7, "no/such", "", false), "-32601", "error", "code")
			want(t, c.ask(8, "tasks/get", `"taskId":"x"`, false), "-3", "error", "code")
			c.send(`{"jsonrpc":"2.0","id":9,"method":"tools/list","params":{%s}}`, strings.Replace(metaOf(false, ""), "2026-07-28", "2030-01-01", 1))
			want(t, []byte(c.read(`"id":9,`)), "-32022", "error", "code")
		})
	}
}

// A legacy host can use a modern server.
func TestLegacyHostModernServer(t *testing.T) {
	t.Parallel()
	c := newHost(t, kinds(t, nil, nil)["modern"], t.TempDir())
	c.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"old","version":"1"}}}`)
	want(t, []byte(c.read(`"id":0,`)), "2025-06-18", "result", "protocolVersion")
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	c.count(1, 2)
	c.read(`"progress":2`)
	c.read(`"id":1,"result"`)
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"rounds"}}`)
	m := []byte(c.read(`"method":"elicitation/create"`))
	c.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"name":"Ada"}}}`, jsonrpc.Field(m, "id"))
	want(t, []byte(c.read(`"id":2,`)), "Ada", "result")
}

// task makes a call that becomes a task, and returns its id.
func (c *testHost) task(id int, tool string) string {
	c.t.Helper()
	m := c.ask(id, "tools/call", `"name":"`+tool+`"`, true)
	want(c.t, m, `"task"`, "result", "resultType")
	return jsonrpc.String(jsonrpc.Field(m, "result", "taskId"))
}

// poll asks for a task until it has a status.
func (c *testHost) poll(id int, task, status string) []byte {
	c.t.Helper()
	for {
		m := c.ask(id, "tasks/get", `"taskId":"`+task+`"`, true)
		if jsonrpc.String(jsonrpc.Field(m, "result", "status")) == status {
			return m
		}
		if jsonrpc.Field(m, "error") != nil {
			c.t.Fatalf("%s", m)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A slow call of a host that supports tasks becomes a task, with each kind of server.
func TestTasks(t *testing.T) {
	t.Parallel()
	let, late := make(chan struct{}), make(chan struct{})
	for kind, url := range kinds(t, let, late) {
		if kind == "modern" { // this server has no tasks
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := newHost(t, url, t.TempDir())
			want(t, c.ask(1, "server/discover", "", true), "{}", "result", "capabilities", "extensions", protocol.ExtensionTasks)
			want(t, c.ask(2, "tasks/get", `"taskId":"x"`, true), "-32602", "error", "code")
			want(t, c.ask(3, "tasks/get", `"taskId":"x"`, false), "-32021", "error", "code")
			if kind == "holdfast" {
				return // this server has tasks of its own
			}
			task := c.task(4, "wait")
			want(t, c.ask(5, "tasks/get", `"taskId":"`+task+`"`, true), "working", "result", "status")
			want(t, c.ask(6, "tasks/get", `"taskId":"holdfast-connect.nobody"`, true), "-32602", "error", "code")

			c.begin(7, "subscriptions/listen", fmt.Sprintf(`"notifications":{"taskIds":[%q]}`, task), true)
			ack := []byte(c.read("notifications/subscriptions/acknowledged"))
			want(t, ack, task, "params", "notifications", "taskIds")
			want(t, ack, "7", "params", "_meta", protocol.MetaSubscriptionID)
			want(t, []byte(c.read(`"method":"notifications/tasks"`)), "working", "params", "status")

			asks := c.task(8, "late")
			late <- struct{}{}
			m := c.poll(9, asks, "input_required")
			var key string
			jsonrpc.Each(jsonrpc.Field(m, "result", "inputRequests"), func(name, _ []byte) { key = string(name) })
			c.ask(10, "tasks/update", fmt.Sprintf(`"taskId":%q,"inputResponses":{%q:{"action":"accept","content":{"name":"Ada"}}}`, asks, key), true)
			want(t, c.poll(11, asks, "completed"), "Ada", "result", "result", "structuredContent", "said")

			gone := c.task(12, "wait")
			c.ask(13, "tasks/cancel", `"taskId":"`+gone+`"`, true)
			want(t, c.ask(14, "tasks/get", `"taskId":"`+gone+`"`, true), "cancelled", "result", "status")

			let <- struct{}{}
			done := []byte(c.read(`"method":"notifications/tasks"`))
			want(t, done, "completed", "params", "status")
			want(t, done, "true", "params", "result", "structuredContent", "waited")
			want(t, []byte(c.read(`"id":7,`)), "7", "result", "_meta", protocol.MetaSubscriptionID)
			want(t, c.ask(15, "tasks/get", `"taskId":"`+task+`"`, true), "completed", "result", "status")
			want(t, c.ask(16, "ping", "", true), "-32601", "error", "code")
		})
	}
}

// A task goes on when the bridge ends, and the next bridge has it. This holds for a task that
// has ended, too, and for one in another bridge's session.
func TestTaskOutlivesBridge(t *testing.T) {
	t.Parallel()
	let, late := make(chan struct{}), make(chan struct{})
	url := kinds(t, let, late)["legacy"]
	state := t.TempDir()
	a := newHost(t, url, state)
	task := a.task(1, "wait")
	ended := a.task(2, "late")
	late <- struct{}{}
	m := a.poll(3, ended, "input_required")
	a.leave()
	b, other := newHost(t, url, state), newHost(t, url, state)
	want(t, b.ask(1, "tasks/get", `"taskId":"`+task+`"`, true), "working", "result", "status")
	want(t, other.ask(1, "server/discover", "", true), "2026", "result", "supportedVersions")
	m2 := b.poll(2, ended, "input_required")
	var key string
	jsonrpc.Each(jsonrpc.Field(m2, "result", "inputRequests"), func(name, _ []byte) { key = string(name) })
	want(t, m, key, "result", "inputRequests")
	b.ask(3, "tasks/update", fmt.Sprintf(`"taskId":%q,"inputResponses":{%q:{"action":"accept","content":{"name":"Ada"}}}`, ended, key), true)
	b.poll(4, ended, "completed")
	b.leave()
	other.leave()
	c := newHost(t, url, state)
	want(t, c.poll(1, ended, "completed"), "Ada", "result", "result")
	let <- struct{}{}
	want(t, c.poll(2, task, "completed"), "true", "result", "result", "structuredContent", "waited")
	// A task that has ended does not answer another call.
	c.begin(3, "tools/call", `"name":"wait"`, false)
	let <- struct{}{}
	want(t, []byte(c.read(`"id":3,`)), "true", "result", "structuredContent", "waited")
}

// If a modern host repeats a call on the next bridge, the call does not run twice: it is found
// in a session of the server, or by an idempotency key.
func TestModernRepeat(t *testing.T) {
	t.Parallel()
	runs, let := make(chan struct{}, 10), make(chan struct{})
	server := mcp.NewServer(&mcp.Implementation{Name: "pays", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		runs <- struct{}{}
		select {
		case <-let:
		case <-ctx.Done():
		}
		return nil, map[string]bool{"paid": true}, ctx.Err()
	})
	url := serve(t, server)
	for _, tasks := range []bool{false, true} { // with the server's tasks the bridge needs no session
		state := t.TempDir()
		a := newHost(t, url, state)
		a.ask(1, "server/discover", "", tasks)
		a.begin(2, "tools/call", `"name":"pay"`, false)
		<-runs
		a.leave()
		b := newHost(t, url, state)
		b.ask(1, "server/discover", "", tasks)
		b.begin(7, "tools/call", `"name":"pay"`, false)
		want(t, b.ask(8, "tools/list", "", false), "pay", "result", "tools")
		let <- struct{}{}
		want(t, []byte(b.read(`"id":7,`)), "true", "result", "structuredContent", "paid")
		if len(runs) > 0 {
			t.Errorf("the call was made a second time (tasks: %v)", tasks)
		}
		b.leave()
	}
}

// A host can cancel a call, and use its id again.
func TestModernCancel(t *testing.T) {
	t.Parallel()
	let := make(chan struct{})
	urls := kinds(t, let, nil)
	t.Cleanup(func() { close(let) }) // not every server ends a call when its client leaves
	for _, url := range urls {
		c := newHost(t, url, t.TempDir())
		c.begin(1, "tools/call", `"name":"wait"`, false)
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		c.begin(1, "tools/list", "", false) // the id is free again
		want(t, []byte(c.read(`"id":1,`)), "wait", "result", "tools")
		c.leave()
	}
}

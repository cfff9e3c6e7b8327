package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// A begunCall is a call of ada: the ids and tokens by which a client that lost its connection can find it.
type begunCall struct {
	id     string   // of the tool's trace
	header []string // of its session; nil: the call has no session
	cursor string
	stream string // the query of its URL
	token  string // a resume token
	task   string
}

// last returns the header fields of a request that resumes the call.
func (c *begunCall) last() []string {
	return append([]string{"Last-Event-Id", c.cursor}, c.header...)
}

// TestClusterAuth has clients with tokens at three nodes, over each transport, and kills the node
// that runs their calls. The calls go on at the other nodes under refreshed tokens, where another
// principal never gets anything of them.
func TestClusterAuth(t *testing.T) {
	testlong.Only(t, "three nodes, one of which is killed, on each engine")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		as := authtest.New(t)
		f := newFleet(t, e, shape{flags: []string{"--task-after", "100ms", "--auth-issuer", as.URL, "--auth-resource", guardedAs, "--auth-scopes", "mcp"}})
		at := func(i int) *program { return &program{URL: f.nodes[i].url(), Addr: f.nodes[i].address()} }
		g := &guardedNodes{t: t, ctx: bounded(t, time.Minute), as: as, one: at(0), two: at(1)}
		third := at(2)
		calls := map[string]begunCall{"HTTP": g.beginHTTP(), "WebSocket": g.beginSocket(), "2026-07-28": g.beginTask()}
		for name, c := range calls {
			mcptest.Eventually(t, "the call over "+name+" runs", time.Minute, func() bool { return f.runs(c.id) == 1 })
		}
		seen := make(map[string]string) // the principal of each process
		g.processes(seen, g.one, g.two, third)
		for _, n := range []*program{g.two, third} {
			g.intrude(n, calls)
		}
		f.nodes[0].kill()
		for _, n := range []*program{g.two, third} {
			g.intrude(n, calls)
		}
		g.endHTTP(g.two, calls["HTTP"])
		g.endSocket(third, calls["WebSocket"])
		task := calls["2026-07-28"]
		mcptest.Eventually(t, "the task is completed", time.Minute, func() bool {
			said := g.modern(third, g.token("ada", "/mcp"), "tasks/get", fmt.Sprintf(`"taskId":%q,%s`, task.task, tasksMeta))
			switch {
			case said.Result.Status == "working":
				return false
			case said.Result.Status != "completed" || !strings.Contains(said.text, "did "+task.id):
				t.Fatalf("the task: %s", said.text)
			}
			return true
		})
		g.processes(seen, g.two, third)
		for _, n := range []*program{g.two, third} {
			g.intrude(n, calls)
		}
		for _, c := range calls {
			f.wantRuns(c.id, 1, 2) // on a slow machine the call may have ended before the node was killed
		}
	})
}

// looks returns a retry-safe call that takes longer than its node lives.
func looks(id string) string {
	return request{tool: "look", args: workArgs{ID: id, Steps: 10, MS: 2_000}}.body(5)
}

// beginHTTP begins a call over Streamable HTTP at the first node.
func (g *guardedNodes) beginHTTP() begunCall {
	g.t.Helper()
	c := begunCall{id: callID(g.t, "http"), header: g.session()}
	events := g.events(http.MethodPost, g.one.URL, g.token("ada", "/mcp"), looks(c.id), c.header...)
	c.cursor, c.stream = g.ways(events)
	return c
}

// endHTTP resumes a call of beginHTTP at another node.
func (g *guardedNodes) endHTTP(n *program, c begunCall) {
	g.t.Helper()
	g.events(http.MethodGet, n.URL, g.token("ada", "/mcp"), "", c.last()...).Until(g.t, "did "+c.id)
}

// resuming begins a session of a client that resumes requests, over a WebSocket.
func (g *guardedNodes) resuming(n *program, who string) *mcptest.Socket {
	g.t.Helper()
	ws, r := g.dial(n, g.token(who, "/mcp"))
	if ws == nil {
		g.t.Fatalf("no WebSocket: %d %s", r.Status, r.Body)
	}
	ws.Say(g.t, strings.Replace(begins, `"capabilities":{}`, `"capabilities":{"resumableRequests":{}}`, 1))
	ws.Hear(g.t, `"id":1`)
	return ws
}

// beginSocket begins a call over a WebSocket at the first node.
func (g *guardedNodes) beginSocket() begunCall {
	g.t.Helper()
	ws := g.resuming(g.one, "ada")
	c := begunCall{id: callID(g.t, "socket")}
	ws.Say(g.t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	ws.Say(g.t, looks(c.id))
	c.token = jsonrpc.String(jsonrpc.Field([]byte(ws.Hear(g.t, "resumeToken")), "params", "resumeToken"))
	return c
}

// endSocket resumes a call of beginSocket over another WebSocket, at another node.
func (g *guardedNodes) endSocket(n *program, c begunCall) {
	g.t.Helper()
	ws := g.resuming(n, "ada")
	ws.Say(g.t, resumption(c.token))
	ws.Hear(g.t, "did "+c.id)
}

func resumption(token string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":"requests/resume","params":{"resumeToken":%q}}`, token)
}

// beginTask begins a call of revision 2026-07-28 at the first node, which becomes a task.
func (g *guardedNodes) beginTask() begunCall {
	t := g.t
	t.Helper()
	c := begunCall{id: callID(t, "task")}
	q := request{tool: "look", args: workArgs{ID: c.id, Steps: 10, MS: 2_000}}
	said := g.modern(g.one, g.token("ada", "/mcp"), "tools/call", q.params()+","+tasksMeta)
	if c.task = said.Result.TaskID; c.task == "" {
		t.Fatalf("no task: %s", said.text)
	}
	return c
}

// intrude tries at a node to reach ada's calls, by all that ada knows of them, with a token of bob and with an expired token of ada.
func (g *guardedNodes) intrude(n *program, calls map[string]begunCall) {
	t := g.t
	t.Helper()
	h := calls["HTTP"]
	g.hidden(n, h, h.id, attempt{"her session, with a call", http.MethodPost, "", looks(h.id), h.header})
	if _, r := g.dial(n, g.token("bob", "/mcp"), h.header...); r.Status != http.StatusNotFound {
		t.Errorf("another's token, her session over a WebSocket: %d", r.Status)
	}
	_, r := g.dial(n, g.expired("/mcp"), h.header...)
	g.challenges("an expired token, her session over a WebSocket", r, "/mcp", `error="invalid_token"`)
	ws := g.resuming(n, "bob")
	ws.Say(g.t, resumption(calls["WebSocket"].token))
	if said := ws.Hear(t, `"id":5`); !strings.Contains(said, `"code":-32602`) {
		t.Errorf("another's token, her resume token: %s", said)
	}
	_ = ws.CloseNow()
	task := calls["2026-07-28"].task
	for _, method := range []string{"tasks/get", "tasks/cancel"} {
		try := func(id string) answer {
			return g.modern(n, g.token("bob", "/mcp"), method, fmt.Sprintf(`"taskId":%q,%s`, id, tasksMeta))
		}
		hers, none := try(task), try(task+"x")
		if hers.Error == nil || hers.text != strings.ReplaceAll(none.text, task+"x", task) {
			t.Errorf("another's token, %s of her task: %s, want as for none: %s", method, hers.text, none.text)
		}
	}
}

var processOf = regexp.MustCompile(`process \d+`)

// processes makes calls of both principals at nodes, with sessions and without, and notes which process
// each call has reached: no process has two principals.
func (g *guardedNodes) processes(seen map[string]string, nodes ...*program) {
	t := g.t
	t.Helper()
	const call = `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"process","arguments":{}}}`
	for _, n := range nodes {
		for _, who := range []string{"ada", "bob"} {
			token := func() string { return g.token(who, "/mcp") }
			session := g.send(http.MethodPost, n.URL, token(), begins).Session()
			var reached []string
			for _, text := range []string{
				g.send(http.MethodPost, n.URL, token(), call, "Mcp-Session-Id", session).Body,
				g.sendModern(n, token(), "tools/call", `"name":"process","arguments":{},`+inputMeta).Body,
				g.sendModern(n, token(), "tools/call", `"name":"process","arguments":{},`+inputMeta).Body,
			} {
				p := processOf.FindString(text)
				if other := seen[p]; p == "" || other != "" && other != who {
					t.Errorf("a call of %s has reached %q, which is of %q: %s", who, p, other, text)
				}
				seen[p] = who
				reached = append(reached, p)
			}
			if reached[1] != reached[2] {
				t.Errorf("calls of %s like each other have reached %q: nothing is shared", who, reached[1:])
			}
		}
	}
}

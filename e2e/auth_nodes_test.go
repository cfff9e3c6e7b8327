package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// guardedAs is the URL of guarded nodes, as their clients know it.
const guardedAs = "https://mcp.example.com"

// A guardedNodes is two nodes over one store that demand tokens of clients.
type guardedNodes struct {
	t        *testing.T
	ctx      context.Context
	as       *authtest.Server
	one, two *program
}

func newGuardedNodes(t *testing.T, e *sharedEngine, as *authtest.Server, args ...string) *guardedNodes {
	t.Helper()
	g := &guardedNodes{t: t, ctx: bounded(t, 2*time.Minute), as: as}
	args = append([]string{"--store", e.url(e.addrs), "--auth-issuer", g.as.URL, "--auth-resource", guardedAs, "--auth-scopes", "mcp"}, args...)
	g.one, g.two = serve(t, args...), serve(t, args...)
	return g
}

// token returns a new token of a subject, for the endpoint at a path.
func (g *guardedNodes) token(subject, path string) string {
	return g.as.Token(authtest.Claims{"sub": subject, "aud": guardedAs + path, "scope": "mcp"})
}

// expired returns a token of ada that was valid once.
func (g *guardedNodes) expired(path string) string {
	return g.as.Token(authtest.Claims{"aud": guardedAs + path, "scope": "mcp", "exp": time.Now().Add(-time.Hour).Unix()})
}

// header returns the header fields of a request: its token, and the fields in more.
func (g *guardedNodes) header(token string, more []string) []string {
	return append([]string{"Authorization", bearer(token)}, more...)
}

// send makes a request, and reads its answer to the end.
func (g *guardedNodes) send(method, at, token, body string, more ...string) mcptest.Reply {
	g.t.Helper()
	return mcptest.Must(mcptest.Exchange(g.ctx, method, at, body, g.header(token, more)...))(g.t)
}

// events makes a request and returns the stream that answers it. The stream is closed when the test ends.
func (g *guardedNodes) events(method, at, token, body string, more ...string) *mcptest.Stream {
	g.t.Helper()
	return (&mcptest.Client{URL: at, Header: g.header(token, more)}).Stream(g.t, method, body)
}

// challenges checks that a request was refused for its token, with a challenge that names the
// metadata of the endpoint at path.
func (g *guardedNodes) challenges(what string, r mcptest.Reply, path, code string) {
	g.t.Helper()
	challenge := r.Header.Get("WWW-Authenticate")
	if r.Status != http.StatusUnauthorized || !strings.Contains(challenge, fmt.Sprintf("resource_metadata=%q", guardedAs+"/.well-known/oauth-protected-resource"+path)) ||
		strings.Contains(challenge, "error=") != (code != "") || !strings.Contains(challenge, code) {
		g.t.Errorf("%s: %d, challenge %q", what, r.Status, challenge)
	}
}

// asks is a call that ends when its question is answered.
const asks = `{"jsonrpc":"2.0","id":"ask","method":"tools/call","params":{"name":"ask","arguments":{"question":"which colour"}}}`

// answers is the answer to a question with an id.
func answers(id string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"answer":"blue"}}}`, id)
}

// session begins a session of ada at the first node, and returns the headers for it.
func (g *guardedNodes) session() []string {
	g.t.Helper()
	return []string{"Mcp-Session-Id", openSession(g.t, g.one.URL, g.token("ada", "/mcp"), `{"elicitation":{}}`)}
}

// ways returns the two ways to resume a call: the id of the first event of its stream, and the query of the stream's URL.
func (g *guardedNodes) ways(events *mcptest.Stream) (cursor, query string) {
	g.t.Helper()
	first, err := events.Next()
	link, _, _ := strings.Cut(strings.TrimPrefix(events.Header.Get("Link"), "<"), ">")
	u, bad := url.Parse(link)
	if err != nil || first.ID == "" || bad != nil || u.RawQuery == "" {
		g.t.Fatalf("a stream begins with %+v, Link %q: %v %v", first, link, err, bad)
	}
	return first.ID, "?" + u.RawQuery
}

// An attempt is a request by which another principal could reach a call.
type attempt struct {
	what, method, query, body string
	header                    []string
}

// hidden checks at a node that a call of ada is unknown to bob, by all that ada knows of it, and that ada does not reach it with an expired
// token or without one. No answer has the text secret.
func (g *guardedNodes) hidden(n *program, c begunCall, secret string, more ...attempt) {
	g.t.Helper()
	for _, try := range append(more,
		attempt{"her cursor", http.MethodGet, "", "", c.last()}, attempt{"her session", http.MethodGet, "", "", c.header},
		attempt{"her stream", http.MethodGet, c.stream, "", nil}, attempt{"her session, to end it", http.MethodDelete, "", "", c.header}) {
		r := g.send(try.method, n.URL+try.query, g.token("bob", "/mcp"), try.body, try.header...)
		if r.Status != http.StatusNotFound || strings.Contains(r.Body, secret) || r.Header.Get("Mcp-Session-Id") != "" || r.Header.Get("Link") != "" {
			g.t.Errorf("another's token, %s: %d %s %v", try.what, r.Status, r.Body, r.Header)
		}
		g.challenges("an expired token, "+try.what, g.send(try.method, n.URL+try.query, g.expired("/mcp"), try.body, try.header...), "/mcp", `error="invalid_token"`)
		g.challenges("no token, "+try.what, g.send(try.method, n.URL+try.query, "", try.body, try.header...), "/mcp", "")
	}
}

// dial opens a WebSocket at a node, with a token or none. If the node refuses, the socket is nil and the reply is the refusal.
func (g *guardedNodes) dial(n *program, token string, more ...string) (*mcptest.Socket, mcptest.Reply) {
	g.t.Helper()
	ws, r, err := mcptest.Dial(g.ctx, n.URL, g.header(token, more)...)
	if r.Status == 0 {
		g.t.Fatal(err)
	}
	if ws != nil {
		g.t.Cleanup(func() { _ = ws.CloseNow() })
	}
	return ws, r
}

// inputMeta is the _meta of a client of revision 2026-07-28 that answers questions. As with
// tasksMeta, such clients differ by their tokens only.
const inputMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"input","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

// sendModern makes a request of revision 2026-07-28. params includes the client's _meta.
func (g *guardedNodes) sendModern(n *program, token, method, params string) mcptest.Reply {
	g.t.Helper()
	return g.send(http.MethodPost, n.URL, token, mcptest.Request("m", method, "{"+params+"}"))
}

// modern is sendModern that returns the last message of the answer.
func (g *guardedNodes) modern(n *program, token, method, params string) answer {
	g.t.Helper()
	return mcptest.Must(askModern(g.ctx, n.URL, method, "{"+params+"}", "Authorization", bearer(token)))(g.t)
}

// eachGuarded runs a test with guardedNodes over every engine.
func eachGuarded(t *testing.T, test func(t *testing.T, g *guardedNodes)) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		test(t, newGuardedNodes(t, e, authtest.New(t), "--demo", "--task-after", "10ms"))
	})
}

// TestAuthNodesResume begins a call at one node, and resumes it at the other with a refreshed token.
func TestAuthNodesResume(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedNodes) {
		c := begunCall{header: g.session()}
		events := g.events(http.MethodPost, g.one.URL, g.token("ada", "/mcp"), asks, c.header...)
		c.cursor, c.stream = g.ways(events)
		question := string(jsonrpc.Field(events.Until(t, "which colour").Data, "id"))
		events.Close()
		for _, n := range []*program{g.two, g.one} {
			g.hidden(n, c, "colour",
				attempt{"her question", http.MethodPost, "", answers(question), c.header},
				attempt{"her question at her stream", http.MethodPost, c.stream, answers(question), nil},
				attempt{"her cancellation", http.MethodPost, "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"ask"}}`, c.header})
		}
		events = g.events(http.MethodGet, g.two.URL, g.token("ada", "/mcp"), "", c.last()...)
		events.Until(t, "which colour")
		if r := g.send(http.MethodPost, g.two.URL, g.token("ada", "/mcp"), answers(question), c.header...); r.Status != http.StatusAccepted {
			t.Errorf("the answer: %d %s", r.Status, r.Body)
		}
		if ev := events.Until(t, `"ask"`); !strings.Contains(string(ev.Data), "blue") {
			t.Errorf("the call ended with %s", ev.Data)
		}
	})
}

// TestAuthNodesPair has clients of revision 2024-11-05. Their tokens are for the URL of the stream, and they
// post to another URL.
func TestAuthNodesPair(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedNodes) {
		g.challenges("GET without a token", g.send(http.MethodGet, g.one.SSE, "", ""), "/sse", "")
		events := g.events(http.MethodGet, g.one.SSE, g.token("ada", "/sse"), "")
		first, err := events.Next()
		if err != nil || first.Name != "endpoint" {
			t.Fatalf("the first event is %+v: %v", first, err)
		}
		at := func(p *program) string { return "http://" + p.Addr + "/" + string(first.Data) }
		begin := mcptest.Initialize("2024-11-05", `{"elicitation":{}}`)
		if r := g.send(http.MethodPost, at(g.one), g.token("ada", "/sse"), begin); r.Status != http.StatusAccepted {
			t.Fatalf("initialize: %d %s", r.Status, r.Body)
		}
		events.Until(t, "protocolVersion")
		call := func(text string) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":"echo","arguments":{"text":%[1]q}}}`, text)
		}
		for _, n := range []*program{g.two, g.one} {
			if r := g.send(http.MethodPost, at(n), g.token("bob", "/sse"), call("his")); r.Status != http.StatusNotFound {
				t.Errorf("another's token: %d %s", r.Status, r.Body)
			}
			if r := g.send(http.MethodGet, n.SSE, g.token("bob", "/sse"), "", "Last-Event-Id", first.ID); r.Status != http.StatusNotFound {
				t.Errorf("another's token, her cursor: %d %s", r.Status, r.Body)
			}
			g.challenges("an expired token", g.send(http.MethodPost, at(n), g.expired("/sse"), call("old")), "/sse", `error="invalid_token"`)
			g.challenges("a token for another endpoint", g.send(http.MethodPost, at(n), g.token("ada", "/mcp"), call("other")), "/sse", `error="invalid_token"`)
			g.challenges("no token", g.send(http.MethodPost, at(n), "", call("none")), "/sse", "")
			if r := g.send(http.MethodPost, at(n), g.token("ada", "/sse"), call("hers")); r.Status != http.StatusAccepted {
				t.Errorf("a refreshed token: %d %s", r.Status, r.Body)
			}
			ev, err := events.Next()
			if err != nil || !strings.Contains(string(ev.Data), `"hers"`) {
				t.Fatalf("after that comes %s %v", ev.Data, err)
			}
		}
	})
}

// TestAuthNodesSocket opens WebSockets at both nodes, in a session of the first node and in none.
func TestAuthNodesSocket(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedNodes) {
		in := g.session()
		for _, n := range []*program{g.two, g.one} {
			for what, header := range map[string][]string{"new": nil, "hers": in} {
				_, r := g.dial(n, "", header...)
				g.challenges("no token, "+what, r, "/mcp", "")
				_, r = g.dial(n, g.expired("/mcp"), header...)
				g.challenges("an expired token, "+what, r, "/mcp", `error="invalid_token"`)
			}
			if _, r := g.dial(n, g.token("bob", "/mcp"), in...); r.Status != http.StatusNotFound || r.Header.Get("Mcp-Session-Id") != "" {
				t.Errorf("another's token: %d %v", r.Status, r.Header)
			}
			ws, r := g.dial(n, g.token("ada", "/mcp"), in...)
			if ws == nil {
				t.Fatalf("a refreshed token: %d %s", r.Status, r.Body)
			}
			ws.Say(t, mcptest.Call("ws", "echo", `{"text":"hello"}`))
			if text := ws.Hear(t, `"ws"`); !strings.Contains(text, "hello") {
				t.Errorf("the call ended with %s", text)
			}
			_ = ws.CloseNow()
		}
	})
}

// TestAuthNodesTasks has two principals with equal clients begin tasks at two nodes.
func TestAuthNodesTasks(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedNodes) {
		carrier := func(n *program, who string) (task, name string) {
			t.Helper()
			said := g.modern(n, g.token(who, "/mcp"), "tools/call", `"name":"count","arguments":{"to":1,"delay_ms":3600000},`+tasksMeta)
			if said.Result.ResultType != "task" {
				t.Fatalf("%s: no task: %d %s", who, said.Status, said.text)
			}
			name, _, _ = strings.Cut(said.Result.TaskID, ".")
			return said.Result.TaskID, name
		}
		about := func(task string) string { return fmt.Sprintf(`"taskId":%q,%s`, task, tasksMeta) }
		for i, n := range []*program{g.one, g.two} {
			other := []*program{g.two, g.one}[i]
			ada, of := carrier(n, "ada")
			bob, his := carrier(n, "bob")
			again, same := carrier(n, "ada")
			if of == his || of != same || ada == again {
				t.Errorf("tasks of ada %s and %s, of bob %s: want a carrier of each", ada, again, bob)
			}
			for what, who := range map[string][2]string{ada: {"ada", "bob"}, again: {"ada", "bob"}, bob: {"bob", "ada"}} {
				for _, at := range []*program{other, n} {
					for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
						params := about(what)
						if method == "tasks/update" {
							params += `,"inputResponses":{}`
						}
						foreign := g.modern(at, g.token(who[1], "/mcp"), method, params)
						unknown := g.modern(at, g.token(who[1], "/mcp"), method, strings.Replace(params, what, what+"x", 1))
						if foreign.Error == nil || unknown.Error == nil || foreign.text != strings.ReplaceAll(unknown.text, what+"x", what) {
							t.Errorf("%s of a task of %s by %s: %s, want as for no task: %s", method, who[0], who[1], foreign.text, unknown.text)
						}
					}
					if said := g.modern(at, g.token(who[0], "/mcp"), "tasks/get", about(what)); said.Result.Status != "working" {
						t.Errorf("a task of %s: %s", who[0], said.text)
					}
				}
				g.challenges("an expired token", g.sendModern(other, g.expired("/mcp"), "tasks/get", about(what)), "/mcp", `error="invalid_token"`)
			}
			for what, who := range map[string]string{ada: "ada", again: "ada", bob: "bob"} {
				if said := g.modern(other, g.token(who, "/mcp"), "tasks/cancel", about(what)); said.Error != nil {
					t.Errorf("cancelling the task of %s: %s", who, said.text)
				}
			}
		}
	})
}

// TestAuthNodesInput makes a call of revision 2026-07-28 that asks its client; the client answers at the other node.
func TestAuthNodesInput(t *testing.T) {
	eachGuarded(t, func(t *testing.T, g *guardedNodes) {
		call := `"name":"ask","arguments":{"question":"which colour"},` + inputMeta
		said := g.modern(g.one, g.token("ada", "/mcp"), "tools/call", call)
		if len(said.Result.InputRequests) != 1 || said.Result.RequestState == "" {
			t.Fatalf("no question: %s", said.text)
		}
		for key := range said.Result.InputRequests {
			call += fmt.Sprintf(`,"requestState":%q,"inputResponses":{%q:{"action":"accept","content":{"answer":"blue"}}}`, said.Result.RequestState, key)
		}
		for _, n := range []*program{g.two, g.one} {
			if said := g.modern(n, g.token("bob", "/mcp"), "tools/call", call); said.Error == nil || strings.Contains(said.text, "colour") {
				t.Errorf("another's token: %d %s", said.Status, said.text)
			}
		}
		if said := g.modern(g.two, g.token("ada", "/mcp"), "tools/call", call); !strings.Contains(said.text, "blue") {
			t.Errorf("a refreshed token: %d %s", said.Status, said.text)
		}
	})
}

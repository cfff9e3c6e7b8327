package e2e

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testwork"
)

// A bigBody is a message of a client with very many members in it, or in its answer.
type bigBody struct {
	name   string
	method string // "tools/call" if it is ""
	eras   string // "": both
	of     string // the name or URI in the message, which the header Mcp-Name repeats

	// Texts of members, with a comma at the end; each field is named for the place of its members.
	top, params, meta, arguments, capabilities, info func(n int) string
	whole                                            func(n int) string // the whole message, instead of the fields above
	revision                                         string             // of the legacy session; "": 2025-11-25
}

// many returns a function that writes n members.
func many(text string) func(int) string {
	return func(n int) string {
		if n == 0 {
			return ""
		}
		return testwork.Many(n, text) + ","
	}
}

// within is many, between the texts from and to.
func within(from, text, to string) func(int) string {
	return func(n int) string { return from + testwork.Many(n, text) + to + "," }
}

// constantly returns a function that writes text for each n.
func constantly(text string) func(int) string { return func(int) string { return text } }

// answering returns a function that writes the arguments which ask a bodyServer for an answer of n members.
func answering(what string) func(int) string {
	return func(n int) string { return fmt.Sprintf(`"case":%q,"n":%d,`, what, n) }
}

// page returns a function that writes a cursor, by which a bodyServer returns a page of n items.
func page(kind string) func(int) string {
	return func(n int) string {
		cursor := fmt.Sprintf("%s-%d", kind, n)
		return `"cursor":"` + cursor + `",`
	}
}

const member = `"x%d":0`

var bigBodies = []bigBody{
	{name: "top", top: many(member)},
	{name: "params", params: many(member)},
	{name: "params, one name", params: many(`"x":0`)},
	{name: "params, escaped", params: many(`"\u0078%d":0`)},
	{name: "params, name escaped", params: many(`"\u006eame":"say"`)},
	{name: "_meta", meta: many(member)},
	{name: "_meta, one name", meta: many(`"x":{}`)},
	{name: "arguments", arguments: many(member)},
	{name: "nested arguments", arguments: within(`"a":{"b":{`, member, `}}`)},
	{name: "array", arguments: within(`"a":[`, `0`, `]`)},
	{name: "array of objects", arguments: within(`"a":[`, `{"x":0}`, `]`)},
	{name: "array of arrays", arguments: within(`"a":[`, `[[]]`, `]`)},
	{name: "array of texts", arguments: within(`"a":[`, `"\u00e4"`, `]`)},
	{name: "state", params: func(n int) string { return `"requestState":"s",` + many(member)(n) }, arguments: constantly(`"ms":400,`)},
	{name: "inputResponses", params: within(`"inputResponses":{`, member, `}`), arguments: constantly(`"ms":400,`)},
	{name: "task", params: func(n int) string { return `"task":{},` + many(member)(n) }, arguments: constantly(`"ms":400,`)},
	{name: "in task", params: within(`"task":{`, member, `}`), arguments: constantly(`"ms":400,`)},
	{name: "slow", params: many(member), arguments: constantly(`"ms":400,`)},
	{name: "capabilities", eras: "modern", capabilities: many(member)},
	{name: "extensions", eras: "modern", capabilities: within(`"extensions":{"io.modelcontextprotocol/tasks":{},`, member, `}`), arguments: constantly(`"ms":400,`)},
	{name: "clientInfo", eras: "modern", info: many(member)},
	{name: "initialize", eras: "legacy", whole: func(n int) string {
		return `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{` + testwork.Many(n, member) + `},"clientInfo":{"name":"a","version":"1"}}}`
	}},
	{name: "list params", method: "tools/list", params: many(member)},
	{name: "read", method: "resources/read", of: "r:1", params: many(member)},
	{name: "prompt arguments", method: "prompts/get", of: "p1", params: within(`"arguments":{`, `"x%d":""`, `}`)},
	{name: "completion", method: "completion/complete", params: within(`"ref":{"type":"ref/resource","uri":"r:1"},"context":{"arguments":{`, `"x%d":""`, `}}`)},
	{name: "subscribe", eras: "legacy", method: "resources/subscribe", params: func(n int) string { return `"uri":"r:1",` + many(member)(n) }},
	{name: "unknown method", method: "x/y", params: many(member)},
	{name: "listen", eras: "modern", method: "subscriptions/listen", params: within(`"notifications":{`, member, `}`)},
	{name: "listen, taskIds", eras: "modern", method: "subscriptions/listen", params: within(`"notifications":{"taskIds":[`, `"x%d"`, `]}`)},
	{name: "listen, resources", eras: "modern", method: "subscriptions/listen", params: within(`"notifications":{"resourceSubscriptions":[`, `"r:%d"`, `]}`)},
	{name: "tasks/get", method: "tasks/get", of: "x.1.1.1", params: many(member)},
	{name: "tasks/update", method: "tasks/update", of: "x.1.1.1", params: within(`"inputResponses":{`, member, `}`)},
	{name: "resume", method: "requests/resume", params: func(n int) string { return `"resumeToken":"x.1.1",` + many(member)(n) }},
	{name: "notification", eras: "legacy", whole: func(n int) string {
		return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1,` + testwork.Many(n, member) + `}}`
	}},
	{name: "cancellation", eras: "legacy", whole: func(n int) string {
		return `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"none",` + testwork.Many(n, member) + `}}`
	}},
	{name: "response", eras: "legacy", whole: func(n int) string { return `{"jsonrpc":"2.0","id":"none","result":{` + testwork.Many(n, member) + `}}` }},
	{name: "batch of pings", eras: "legacy", revision: "2025-03-26", whole: func(n int) string {
		return `[` + testwork.Many(n/3, `{"jsonrpc":"2.0","id":%d,"method":"ping"}`) + `]`
	}},
	{name: "batch of notifications", eras: "legacy", revision: "2025-03-26", whole: func(n int) string {
		return `[` + testwork.Many(n/3, `{"jsonrpc":"2.0","method":"n/n"}`) + `]`
	}},
	{name: "batch of responses", eras: "legacy", revision: "2025-03-26", whole: func(n int) string {
		return `[` + testwork.Many(n/3, `{"jsonrpc":"2.0","id":%d,"result":{}}`) + `]`
	}},
	{name: "batch of nothing", eras: "legacy", revision: "2025-03-26", whole: func(n int) string { return `[` + testwork.Many(n, `0`) + `]` }},
	{name: "batch of one", eras: "legacy", revision: "2025-03-26", whole: func(n int) string {
		return `[{"jsonrpc":"2.0","id":9,"method":"ping","params":{` + testwork.Many(n, member) + `}}]`
	}},

	{name: "result", arguments: answering("result")},
	{name: "result, one name", arguments: answering("same")},
	{name: "result, _meta", arguments: answering("meta")},
	{name: "structuredContent", arguments: answering("structured")},
	{name: "content", arguments: answering("content")},
	{name: "error", arguments: answering("error")},
	{name: "top of the response", arguments: answering("top")},
	{name: "questions", arguments: answering("questions")},
	{name: "URLs to visit", arguments: answering("visits"), capabilities: constantly(`"elicitation":{"form":{},"url":{}},`)},
	{name: "progress", meta: constantly(`"progressToken":"t",`), arguments: answering("progress")},
	{name: "log", arguments: answering("log"), meta: constantly(`"io.modelcontextprotocol/logLevel":"debug",`)},
	{name: "list changed", arguments: answering("changed")},
	{name: "resource updated", arguments: answering("updated")},
	{name: "cancelled by the server", arguments: answering("cancelled")},
	{name: "asked", arguments: answering("asked"), capabilities: constantly(`"elicitation":{},`)},
	{name: "tools", method: "tools/list", params: page("tools")},
	{name: "members of a tool", method: "tools/list", params: page("members")},
	{name: "properties of a tool", method: "tools/list", params: page("properties")},
	{name: "headers of a tool", method: "tools/list", params: page("headers")},
	{name: "annotations of a property", method: "tools/list", params: page("annotations")},
	{name: "deep schema", method: "tools/list", params: page("deep")},
	{name: "prompts", method: "prompts/list", params: page("p")},
	{name: "resources", method: "resources/list", params: page("r")},
	{name: "templates", method: "resources/templates/list", params: page("t")},
}

func texts(f func(int) string, n int) string {
	if f == nil {
		return ""
	}
	return f(n)
}

// text returns the message with n members.
func (b *bigBody) text(modern bool, n int, prefix string, servers []string) string {
	if b.whole != nil {
		return b.whole(n)
	}
	method, params := b.method, texts(b.params, n)
	of := b.of
	switch method {
	case "", "tools/call":
		method = "tools/call"
		params += fmt.Sprintf(`"name":"%ssay","arguments":{%s"z":0},`, prefix, texts(b.arguments, n))
	case "resources/read":
		params += `"uri":"` + of + `",`
	case "prompts/get":
		params += `"name":"` + prefix + of + `",`
	case "tasks/get", "tasks/update":
		params += `"taskId":"` + of + `",`
	}
	if rest, ok := strings.CutPrefix(params, `"cursor":"`); ok && len(servers) > 0 {
		cursor, rest, _ := strings.Cut(rest, `"`)
		cursors := `{"` + servers[0] + `":"` + cursor + `"}`
		params = `"cursor":"` + base64.RawURLEncoding.EncodeToString([]byte(cursors)) + `"` + rest
	}
	meta := texts(b.meta, n)
	if modern {
		meta += `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{` + texts(b.info, n) + `"name":"a","version":"1"},` +
			`"io.modelcontextprotocol/clientCapabilities":{` + texts(b.capabilities, n)
		if b.name != "extensions" {
			meta += `"extensions":{"io.modelcontextprotocol/tasks":{}},`
		}
		meta += `"roots":{}},`
	}
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `",` + texts(b.top, n) + `"params":{` + params + `"_meta":{` + meta + `"z":0}}}`
}

// A bodySetup is a Holdfast before servers.
type bodySetup struct {
	p       *program
	url     string
	prefix  string   // of the names of tools
	servers []string // the names of the merged servers
	client  *http.Client
}

func (s *bodySetup) post(t *testing.T, modern bool, method, name, session, body string) mcptest.Reply {
	c := &mcptest.Client{URL: s.url, Session: session, HTTP: s.client}
	if modern {
		c.Session, c.Header = "", []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", method, "Mcp-Name", name}
	}
	r, err := c.Exchange(t.Context(), http.MethodPost, body)
	if err != nil {
		t.Logf("post: %v", err)
	}
	if r.Status == 0 {
		r.Body = err.Error()
	}
	return r
}

func (s *bodySetup) begin(t *testing.T, revision string) string {
	r := s.post(t, false, "", "", "", mcptest.Initialize(revision, `{"elicitation":{}}`))
	id := r.Session()
	if id == "" {
		t.Fatal(r.Body)
	}
	s.post(t, false, "", "", id, mcptest.Initialized)
	return id
}

// end ends a session, so that the server removes the calls that it keeps for it.
func (s *bodySetup) end(t *testing.T, id string) {
	_, _ = (&mcptest.Client{URL: s.url, Session: id, HTTP: s.client}).Exchange(t.Context(), http.MethodDelete, "")
}

// cpu returns the processor time that the program has used.
func (p *program) cpu(t *testing.T) time.Duration {
	text := mcptest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)))(t)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] {
		n := mcptest.Must(strconv.Atoi(f))(t)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// A bodyCost is the cost of a message.
type bodyCost struct {
	status int
	cpu    time.Duration
	took   time.Duration
	others time.Duration // the longest wait of another client meanwhile
	text   string
}

// cost sends a message with n members, while another client sends pings.
func (s *bodySetup) cost(t *testing.T, b *bigBody, modern bool, n int) (c bodyCost) {
	session := ""
	if !modern && b.name != "initialize" {
		session = s.begin(t, cmp.Or(b.revision, "2025-11-25"))
		defer s.end(t, session)
	}
	body := b.text(modern, n, s.prefix, s.servers)
	other := s.begin(t, "2025-11-25")
	defer s.end(t, other)
	stop, done := atomic.Bool{}, make(chan time.Duration)
	go func() {
		var most time.Duration
		for !stop.Load() {
			began := time.Now()
			if r := s.post(t, false, "", "", other, strangePing); r.Status != 200 {
				t.Errorf("ping: %d %s", r.Status, r.Body)
				break
			}
			most = max(most, time.Since(began))
			time.Sleep(time.Millisecond)
		}
		done <- most
	}()
	method, name := b.method, b.of
	if method == "" {
		method = "tools/call"
	}
	if method == "tools/call" {
		name = s.prefix + "say"
	}
	if method == "prompts/get" {
		name = s.prefix + b.of
	}
	before, began := s.p.cpu(t), time.Now()
	r := s.post(t, modern, method, name, session, body)
	c.status, c.text = r.Status, r.Body
	if id := r.Session(); id != "" && session == "" {
		defer s.end(t, id)
	}
	c.took = time.Since(began)
	c.cpu = s.p.cpu(t) - before
	stop.Store(true)
	c.others = <-done
	return c
}

// bodyCPU and bodyOthers bound the cost of a message with 200,000 members. On an idle machine it costs a fifth of that.
const (
	bodyCPU    = 10 * time.Second
	bodyOthers = 2 * time.Second
	// bodySlack is the processor time that a message may take beside its linear cost: the system
	// counts in steps of 10 ms, and the garbage collector also works for other messages.
	bodySlack = time.Second
)

// A message with 200,000 members, wherever these are, takes at most five times the processor time of
// one with 50,000, and other clients are served meanwhile.
func TestBodies(t *testing.T) {
	testlong.Only(t, "it sends hundreds of large messages")
	self := mcptest.Must(os.Executable())(t)
	legacy, modern := newBodyServer(false).serve(t), newBodyServer(true).serve(t)
	merged := fileOf(t, fmt.Sprintf(`{"mcpServers":{"a":{"url":%q},"b":{"command":%q,"args":["bodies"],"holdfast":{"share":true}},"c":{"url":%q}},"holdfast":{"merge":true}}`, legacy, self, modern))
	setups := []struct {
		name, prefix string
		servers      []string
		args         []string
		sixth        int  // which sixth of bigBodies is sent to it
		all          bool // with -peers all are sent to it
	}{
		{name: "process", sixth: 1, all: true, args: []string{"--", self, "bodies"}},
		{name: "shared", sixth: 0, args: []string{"--share", "--", self, "bodies"}},
		{name: "handed off", sixth: 4, args: []string{"--handoff-after", "100ms", "--upstream", legacy}},
		{name: "legacy upstream", sixth: 2, args: []string{"--upstream", legacy}},
		{name: "modern upstream", sixth: 3, args: []string{"--upstream", modern}},
		{name: "merged", sixth: 5, all: true, args: []string{"--config", merged}, prefix: "a_", servers: []string{"a"}},
	}
	for _, x := range setups {
		t.Run(x.name, func(t *testing.T) {
			p := serve(t, append([]string{"--eras", "both", "--task-after", "100ms", "--audit", os.DevNull, "--audit-arguments"}, x.args...)...)
			s := &bodySetup{p: p, url: p.URL, prefix: x.prefix, servers: x.servers, client: &http.Client{Timeout: time.Minute}}
			for i := range bigBodies {
				if mine := i%6 == x.sixth || x.all && *peers; !mine {
					continue
				}
				for _, modern := range []bool{false, true} {
					era := map[bool]string{false: "legacy", true: "modern"}[modern]
					if b := &bigBodies[i]; b.eras == "" || b.eras == era {
						t.Run(era+" "+b.name, func(t *testing.T) { // the cost of the message grows linearly with its members
							one := s.cost(t, b, modern, 50_000)
							four := s.cost(t, b, modern, 200_000)
							t.Logf("status %d, %v and %v of the processor, took %v, others %v", four.status, one.cpu, four.cpu, four.took.Round(time.Millisecond), four.others.Round(time.Millisecond))
							if four.status == 0 {
								t.Errorf("no answer: %s", four.text)
							}
							if four.cpu > 5*one.cpu+bodySlack || four.cpu > bodyCPU {
								t.Errorf("50,000 members take %v of the processor, and 200,000 %v", one.cpu, four.cpu)
							}
							if four.others > bodyOthers {
								t.Errorf("another client has waited %v", four.others)
							}
						})
					}
				}
			}
		})
	}
}

// A call that becomes a task, with very many members and a requestState in its params, takes no lock for
// long, and the program can end meanwhile.
func TestBodyOfTask(t *testing.T) {
	t.Parallel()
	upstream := newBodyServer(true).serve(t)
	p := serve(t, "--eras", "both", "--task-after", "20ms", "--drain", "1s", "--upstream", upstream)
	s := &bodySetup{p: p, url: p.URL, client: &http.Client{Timeout: time.Minute}}
	b := bigBody{params: func(n int) string { return `"requestState":"s",` + many(member)(n) }, arguments: constantly(`"ms":3000,`)}
	before := p.cpu(t)
	if r := s.post(t, true, "tools/call", "say", "", b.text(true, 60_000, "", nil)); r.Status != http.StatusOK || !strings.Contains(r.Body, `"resultType":"task"`) {
		t.Errorf("the call was answered with status %d: %.300s", r.Status, r.Body)
	}
	used, began := p.cpu(t)-before, time.Now()
	if err := p.stop(t); err != nil {
		t.Error(err)
	}
	t.Logf("%v of the processor; it ended %v after it was told to", used, time.Since(began).Round(time.Millisecond))
	if used > bodyCPU || time.Since(began) > 20*time.Second {
		t.Errorf("the call took %v of the processor, and the program %v to end", used, time.Since(began))
	}
}

// The cost of a server's questions and of the client's answers grows linearly with their number.
func TestBodyQuestions(t *testing.T) {
	t.Parallel()
	upstream := newBodyServer(false).serve(t)
	p := serve(t, "--eras", "both", "--upstream", upstream, "--task-after", "0")
	s := &bodySetup{p: p, url: p.URL, client: &http.Client{Timeout: time.Minute}}
	ask := func(n int) time.Duration {
		before := p.cpu(t)
		b := bigBody{arguments: answering("ask"), capabilities: constantly(`"elicitation":{},`)}
		for rounds := 0; ; rounds++ {
			r := s.post(t, true, "tools/call", "say", "", b.text(true, n, "", nil))
			var m answer
			if err := r.Decode(&m); err != nil || r.Status != http.StatusOK {
				t.Fatalf("status %d, %v: %.300s", r.Status, err, r.Body)
			}
			if m.Result.ResultType == "complete" {
				if rounds == 0 {
					t.Error("it did not ask")
				}
				return p.cpu(t) - before
			}
			var answers []string
			for key := range m.Result.InputRequests {
				answers = append(answers, fmt.Sprintf(`%q:{"action":"accept","content":{"a":"%s"}}`, key, strings.Repeat("!", 3500)))
			}
			params := fmt.Sprintf(`"requestState":%q,"inputResponses":{%s},`, m.Result.RequestState, strings.Join(answers, ","))
			b.params = constantly(params)
		}
	}
	one, four := ask(240), ask(960)
	t.Logf("%v and %v of the processor", one, four)
	if four > 5*one+bodySlack {
		t.Errorf("240 questions take %v of the processor, and 960 %v", one, four)
	}
}

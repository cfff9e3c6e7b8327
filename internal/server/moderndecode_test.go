package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"holdfast/backend/message"
	"holdfast/internal/server"
	"holdfast/internal/server/modernfront"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// Error codes of revision 2026-07-28.
const (
	codeHeaders    = -32020
	codeCapability = -32021
	codeMethod     = -32601
)

const (
	metaVersion      = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	metaCapabilities = `"io.modelcontextprotocol/clientCapabilities":{}`
	metaWhole        = `"_meta":{` + metaVersion + `,` + metaCapabilities + `}`
)

// modernHead returns the headers of a modern request.
func modernHead(method, name string) map[string]string {
	head := map[string]string{"MCP-Protocol-Version": "MCP-Protocol-Version: 2026-07-28", "Mcp-Method": "Mcp-Method: " + method}
	if name != "" {
		head["Mcp-Name"] = "Mcp-Name: " + name
	}
	return head
}

// refusedModern checks that an answer is an error with the id of its request; "": without an id.
func refusedModern(t *testing.T, what string, r reply, status, code int, id string) {
	t.Helper()
	is, e := r.refusal(t, what)
	switch {
	case r.status != status || e.Code != code || is != id:
		t.Errorf("%s: %d, code %d, id %s; want %d, %d, %s: %s", what, r.status, e.Code, is, status, code, id, e.Message)
	case r.header.Get("Mcp-Session-Id") != "":
		t.Errorf("%s: there is a session id", what)
	}
}

// TestModernRefused sends invalid modern requests, which get the errors and statuses of revision
// 2026-07-28 (Overview, "_meta"; Streamable HTTP, "Server Validation").
func TestModernRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := &peer{n: n}
	const tool = `"name":"steps","arguments":{"key":"bad"}`
	body := func(method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":"c1","method":%q,"params":{%s}}`, method, params)
	}
	call := body("tools/call", metaWhole+","+tool)
	with := func(head map[string]string, changes ...string) map[string]string {
		for i := 0; i < len(changes); i += 2 {
			if head[changes[i]] = changes[i] + ": " + changes[i+1]; changes[i+1] == "" {
				delete(head, changes[i])
			}
		}
		return head
	}
	steps := func(changes ...string) map[string]string { return with(modernHead("tools/call", "steps"), changes...) }
	list := func(changes ...string) map[string]string { return with(modernHead("tools/list", ""), changes...) }
	own := `"c1"`
	huge := strings.Repeat("9", 1025)
	for _, c := range []struct {
		what   string
		head   map[string]string
		body   string
		status int
		code   int
		id     string
	}{
		{"no _meta", list(), body("tools/list", ``), 400, codeParams, own},
		{"no params", list(), `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, 400, codeParams, `7`},
		{"params that are a list", list(), `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":[]}`, 400, codeParams, `7`},
		{"a _meta that is a list", list(), body("tools/list", `"_meta":[]`), 400, codeParams, own},
		{"no revision in _meta", list(), body("tools/list", `"_meta":{`+metaCapabilities+`}`), 400, codeParams, own},
		{"a revision that is a number", list(), body("tools/list", `"_meta":{"io.modelcontextprotocol/protocolVersion":20260728,`+metaCapabilities+`}`), 400, codeParams, own},
		{"an empty revision", list(), body("tools/list", `"_meta":{"io.modelcontextprotocol/protocolVersion":"",`+metaCapabilities+`}`), 400, codeParams, own},
		{"no capabilities", list(), body("tools/list", `"_meta":{`+metaVersion+`}`), 400, codeParams, own},
		{"capabilities that are null", list(), body("tools/list", `"_meta":{`+metaVersion+`,"io.modelcontextprotocol/clientCapabilities":null}`), 400, codeParams, own},
		{"capabilities that are a list", list(), body("tools/list", `"_meta":{`+metaVersion+`,"io.modelcontextprotocol/clientCapabilities":[]}`), 400, codeParams, own},
		{"a clientInfo that is a text", list(), body("tools/list", `"_meta":{`+metaVersion+`,`+metaCapabilities+`,"io.modelcontextprotocol/clientInfo":"me"}`), 400, codeParams, own},

		{"a revision to come", list("MCP-Protocol-Version", "2031-01-01"), strings.ReplaceAll(body("tools/list", metaWhole), "2026-07-28", "2031-01-01"), 400, codeUnsupported, own},
		{"a revision that has initialize", list("MCP-Protocol-Version", "2025-11-25"), strings.ReplaceAll(body("tools/list", metaWhole), "2026-07-28", "2025-11-25"), 400, codeUnsupported, own},
		{"no revision that ever was", list("MCP-Protocol-Version", "new"), strings.ReplaceAll(body("tools/list", metaWhole), "2026-07-28", "new"), 400, codeUnsupported, own},

		{"no header of the revision", list("MCP-Protocol-Version", ""), body("tools/list", metaWhole), 400, codeHeaders, own},
		{"two headers of the revision", list("MCP-Protocol-Version", "2026-07-28\r\nMCP-Protocol-Version: 2026-07-28"), body("tools/list", metaWhole), 400, codeHeaders, own},
		{"another header of the revision", list("MCP-Protocol-Version", "2025-11-25"), body("tools/list", metaWhole), 400, codeHeaders, own},
		{"another revision in _meta", list(), strings.ReplaceAll(body("tools/list", metaWhole), "2026-07-28", "2031-01-01"), 400, codeHeaders, own},
		{"no Mcp-Method", list("Mcp-Method", ""), body("tools/list", metaWhole), 400, codeHeaders, own},
		{"another Mcp-Method", list("Mcp-Method", "tools/call"), body("tools/list", metaWhole), 400, codeHeaders, own},
		{"an Mcp-Method in other letters", list("Mcp-Method", "Tools/List"), body("tools/list", metaWhole), 400, codeHeaders, own},
		{"two of Mcp-Method", list("Mcp-Method", "tools/list\r\nMcp-Method: tools/list"), body("tools/list", metaWhole), 400, codeHeaders, own},
		{"a coded Mcp-Method", list("Mcp-Method", "=?base64?dG9vbHMvbGlzdA==?="), body("tools/list", metaWhole), 400, codeHeaders, own},
		{"no Mcp-Name", steps("Mcp-Name", ""), call, 400, codeHeaders, own},
		{"another Mcp-Name", steps("Mcp-Name", "echo"), call, 400, codeHeaders, own},
		{"an Mcp-Name in other letters", steps("Mcp-Name", "STEPS"), call, 400, codeHeaders, own},
		{"two of Mcp-Name", steps("Mcp-Name", "steps\r\nMcp-Name: echo"), call, 400, codeHeaders, own},
		{"another coded Mcp-Name", steps("Mcp-Name", "=?base64?ZWNobw==?="), call, 400, codeHeaders, own},
		{"an Mcp-Name that is coded badly", steps("Mcp-Name", "=?base64?c3Rlc!?="), call, 400, codeHeaders, own},
		{"an Mcp-Name of nothing", steps(), body("tools/call", metaWhole+`,"arguments":{"key":"bad"}`), 400, jsonrpc.CodeInvalidParams, own},
		{"an Mcp-Name of a number", steps("Mcp-Name", "7"), body("tools/call", metaWhole+`,"name":7,"arguments":{"key":"bad"}`), 400, jsonrpc.CodeInvalidParams, own},
		{"two names", steps(), body("tools/call", metaWhole+","+tool+`,"name":"echo"`), 400, codeInvalid, own},
		{"a resource's URI", modernHead("resources/read", "file:///b"), body("resources/read", metaWhole+`,"uri":"file:///a"`), 400, codeHeaders, own},
		{"a prompt's name", modernHead("prompts/get", "b"), body("prompts/get", metaWhole+`,"name":"a"`), 400, codeHeaders, own},
		{"a task's id", modernHead("tasks/get", "b"), body("tasks/get", metaWhole+`,"taskId":"a"`), 400, codeHeaders, own},

		{"initialize", modernHead("initialize", ""), body("initialize", metaWhole), 404, codeMethod, own},
		{"ping", modernHead("ping", ""), body("ping", metaWhole), 404, codeMethod, own},
		{"logging/setLevel", modernHead("logging/setLevel", ""), body("logging/setLevel", metaWhole+`,"level":"info"`), 404, codeMethod, own},
		{"resources/subscribe", modernHead("resources/subscribe", ""), body("resources/subscribe", metaWhole+`,"uri":"file:///a"`), 404, codeMethod, own},
		{"resources/unsubscribe", modernHead("resources/unsubscribe", ""), body("resources/unsubscribe", metaWhole+`,"uri":"file:///a"`), 404, codeMethod, own},
		{"resources/subscribe to nothing", modernHead("resources/subscribe", ""), body("resources/subscribe", metaWhole), 404, codeMethod, own},
		{"resources/unsubscribe from nothing", modernHead("resources/unsubscribe", ""), body("resources/unsubscribe", metaWhole), 404, codeMethod, own},
		{"a method that nobody has", modernHead("vendor/none", ""), body("vendor/none", metaWhole), 404, codeMethod, own},

		{"a batch", steps(), "[" + call + "]", 400, codeInvalid, ""},
		{"a batch of two", steps(), "[" + call + "," + strings.Replace(call, "c1", "c2", 1) + "]", 400, codeInvalid, ""},
		{"an empty batch", steps(), "[]", 400, codeInvalid, ""},
		{"a response", modernHead("", ""), `{"jsonrpc":"2.0","id":1,"result":{}}`, 400, codeInvalid, ""},
		{"an error", modernHead("", ""), `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`, 400, codeInvalid, ""},
		{"no JSON", steps(), call[:len(call)-1], 400, codeParse, ""},
		{"two texts", steps(), call + call, 400, codeParse, ""},
		{"no UTF-8", steps(), strings.Replace(call, "bad", "\xff", 1), 400, codeParse, ""},
		{"an id that is null", steps(), strings.Replace(call, `"c1"`, "null", 1), 400, codeInvalid, ""},
		{"an id that is a list", steps(), strings.Replace(call, `"c1"`, "[1]", 1), 400, codeInvalid, ""},
		{"an id that is a fraction", steps(), strings.Replace(call, `"c1"`, "1.5", 1), 400, codeInvalid, ""},
		{"an id that is a truth", steps(), strings.Replace(call, `"c1"`, "true", 1), 400, codeInvalid, ""},
		{"a huge id", steps(), strings.Replace(call, `"c1"`, `"`+huge+`"`, 1), 400, codeInvalid, ""},
		{"a huge number as id", steps(), strings.Replace(call, `"c1"`, huge, 1), 400, codeInvalid, ""},
		{"two ids", steps(), strings.Replace(call, `"id":"c1"`, `"id":"c1","id":"c2"`, 1), 400, codeInvalid, ""},
		{"two methods", steps(), strings.Replace(call, `"method":`, `"method":"tools/list","method":`, 1), 400, codeInvalid, own},
		{"two of params", steps(), strings.Replace(call, `"params":`, `"params":{},"params":`, 1), 400, codeInvalid, own},
		{"no jsonrpc", steps(), strings.Replace(call, `"jsonrpc":"2.0",`, "", 1), 400, codeInvalid, own},
		{"two keys", steps("Idempotency-Key", "\"a\"\r\nIdempotency-Key: \"b\""), call, 400, codeInvalid, own},
		{"a key that is none", steps("Idempotency-Key", "\"a"), call, 400, codeInvalid, own},
		{"a key that is a number", steps(), strings.Replace(call, `"_meta":{`, `"_meta":{"holdfast/idempotencyKey":7,`, 1), 400, codeInvalid, own},
	} {
		refusedModern(t, c.what, p.craft(crafted{head: c.head, body: c.body}).all(), c.status, c.code, c.id)
	}
	for what, c := range map[string]struct {
		head   string
		value  string
		status int
	}{
		"Accept of neither": {"Accept", "Accept: text/html", 406},
		"another type":      {"Content-Type", "Content-Type: text/plain", 415},
		"no type":           {"Content-Type", "", 415},
		"another's website": {"Origin", "Origin: http://elsewhere.example", 403},
		"another's name":    {"Host", "Host: elsewhere.example", 403},
	} {
		head := steps()
		head[c.head] = c.value
		refusedModern(t, what, p.craft(crafted{head: head, body: call}).all(), c.status, codeInvalid, "")
	}
	if got := n.runs("bad"); got != 0 {
		t.Errorf("the tool ran %d times", got)
	}
	if got := n.sessions.Calls(); got != 0 {
		t.Errorf("%d calls are in flight", got)
	}
	if r := p.craft(crafted{head: steps(), body: strings.Replace(call, "bad", "good", 1)}).all(); r.status != 200 || n.runs("good") != 1 {
		t.Errorf("after all that: %d %s", r.status, r.body)
	}
}

// TestModernSupported is a client that asks for an unsupported revision: the error lists the supported ones.
func TestModernSupported(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		eras  modernfront.Eras
		asked string
		want  string
	}{
		"both":            {modernfront.ErasBoth, "2031-01-01", `["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`},
		"modern":          {modernfront.ErasModern, "2031-01-01", `["2026-07-28"]`},
		"legacy":          {modernfront.ErasLegacy, "2026-07-28", `["2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`},
		"auto":            {modernfront.ErasAuto, "2026-07-28", `["2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`},
		"auto, a new one": {modernfront.ErasAuto, "2031-01-01", `["2025-11-25","2025-06-18","2025-03-26","2024-11-05"]`},
	} {
		n := newNode(t, config{server: server.Options{Eras: c.eras}})
		asked := c.asked
		head := modernHead("server/discover", "")
		head["MCP-Protocol-Version"] = "MCP-Protocol-Version: " + asked
		r := (&peer{n: n}).craft(crafted{head: head, body: strings.ReplaceAll(modernBody("server/discover", "{}", "{}"), "2026-07-28", asked)}).all()
		refusedModern(t, what, r, 400, codeUnsupported, `"c1"`)
		data := jsonrpc.Field(r.body, "error", "data")
		if got := string(jsonrpc.Field(data, "supported")); got != c.want || jsonrpc.String(jsonrpc.Field(data, "requested")) != asked {
			t.Errorf("%s: %s", what, data)
		}
	}
}

// TestModernTaken sends valid modern requests of unusual forms.
func TestModernTaken(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := &peer{n: n}
	call := `{"jsonrpc":"2.0","id":"c1","method":"tools/call","params":{` + metaWhole + `,"name":"echo","arguments":{"text":"taken"}}}`
	for _, c := range []struct{ what, id, name, body string }{
		{"as usual", `"c1"`, "echo", call},
		{"a number as id", `7`, "echo", strings.Replace(call, `"c1"`, `7`, 1)},
		{"a negative id", `-7`, "echo", strings.Replace(call, `"c1"`, `-7`, 1)},
		{"zero as id", `0`, "echo", strings.Replace(call, `"c1"`, `0`, 1)},
		{"an id above 2^53", `9007199254740993`, "echo", strings.Replace(call, `"c1"`, `9007199254740993`, 1)},
		{"a number as a text", `"7"`, "echo", strings.Replace(call, `"c1"`, `"7"`, 1)},
		{"an empty id", `""`, "echo", strings.Replace(call, `"c1"`, `""`, 1)},
		{"an id with signs of JSON", `"{\"id\":1,"`, "echo", strings.Replace(call, `"c1"`, `"{\"id\":1,"`, 1)},
		{"an id that is not ASCII", `"é"`, "echo", strings.Replace(call, `"c1"`, `"é"`, 1)},
		{"a long id", `"` + strings.Repeat("x", 1000) + `"`, "echo", strings.Replace(call, `c1`, strings.Repeat("x", 1000), 1)},
		{"a coded name", `"c1"`, "=?base64?ZWNobw==?=", call},
		{"a clientInfo", `"c1"`, "echo", strings.Replace(call, `"_meta":{`, `"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"me","version":"1"},`, 1)},
		{"a clientInfo that is null", `"c1"`, "echo", strings.Replace(call, `"_meta":{`, `"_meta":{"io.modelcontextprotocol/clientInfo":null,`, 1)},
		{"spaces and lines", `"c1"`, "echo", strings.NewReplacer(",", " ,\r\n ", ":{", " : {\t").Replace(call)},
		{"the name escaped", `"c1"`, "echo", strings.Replace(call, `"echo"`, `"\u0065cho"`, 1)},
	} {
		r := p.craft(crafted{head: modernHead("tools/call", c.name), body: c.body}).all()
		if r.status != 200 || string(jsonrpc.Field(r.body, "id")) != c.id || !bytes.Contains(r.body, []byte("taken")) {
			t.Errorf("%s: %d %s", c.what, r.status, r.body)
		}
		if r.header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s: there is a session id", c.what)
		}
	}
	for _, extra := range []string{"Mcp-Session-Id: made-up", "Last-Event-ID: made-up", "Mcp-Param-Other: x"} { // these headers are ignored
		head := modernHead("tools/call", "echo")
		name, _, _ := strings.Cut(extra, ":")
		head[name] = extra
		if r := p.craft(crafted{head: head, body: call}).all(); r.status != 200 || !bytes.Contains(r.body, []byte("taken")) {
			t.Errorf("%s: %d %s", extra, r.status, r.body)
		}
	}
	for _, text := range []string{
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c1"}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{` + metaWhole + `,"requestId":"c1"}}`,
		`{"jsonrpc":"2.0","method":"vendor/said"}`,
	} {
		head := modernHead("", "")
		delete(head, "Mcp-Method")
		if r := p.craft(crafted{head: head, body: text}).all(); r.status != 202 || len(r.body) > 0 {
			t.Errorf("%s: %d %s", text, r.status, r.body)
		}
	}
	if n.sessions.Sessions() != 0 {
		t.Errorf("%d sessions were begun", n.sessions.Sessions())
	}
}

// TestModernMethods uses the HTTP methods that revision 2026-07-28 does not have: they get a 405.
func TestModernMethods(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := &peer{n: n}
	for _, method := range []string{"GET", "DELETE", "PUT", "PATCH", "HEAD"} {
		for _, extra := range []map[string]string{{}, {"Mcp-Session-Id": "Mcp-Session-Id: x"}, {"Last-Event-ID": "Last-Event-ID: x"}} {
			extra["MCP-Protocol-Version"] = "MCP-Protocol-Version: 2026-07-28"
			w := p.craft(crafted{method: method, head: extra})
			if method == "HEAD" {
				if got := w.head().StatusCode; got != 405 {
					t.Errorf("HEAD: %d", got)
				}
				continue
			}
			r := w.all()
			refusedModern(t, method, r, 405, codeInvalid, "")
			if got := r.header.Get("Allow"); got != "POST, OPTIONS" {
				t.Errorf("%s: Allow %q", method, got)
			}
		}
	}
	if r := p.craft(crafted{method: "OPTIONS", head: map[string]string{"MCP-Protocol-Version": "MCP-Protocol-Version: 2026-07-28"}}).all(); r.status != 204 {
		t.Errorf("OPTIONS: %d", r.status)
	}
}

// TestModernTooLarge is a body over the limit: the status is 413.
func TestModernTooLarge(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{MaxBody: 1 << 10}})
	p := &peer{n: n}
	text := modernBody("tools/call", `{"name":"steps","arguments":{"key":"k"}}`, "{}")
	fits := text + strings.Repeat(" ", 1<<10-len(text))
	if r := p.craft(crafted{head: modernHead("tools/call", "steps"), body: fits}).all(); r.status != 200 || n.runs("k") != 1 {
		t.Errorf("as much as there may be: %d %s", r.status, r.body)
	}
	refusedModern(t, "a byte more", p.craft(crafted{head: modernHead("tools/call", "steps"), body: fits + " "}).all(), 413, codeInvalid, "")
	if n.runs("k") != 1 {
		t.Errorf("the tool ran %d times", n.runs("k"))
	}
}

// headed is a backend with a tool that has arguments which headers repeat.
type headed struct{}

func (headed) Serve(x *message.Exchange) {
	switch x.Method {
	case "initialize":
		x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"headed","version":"1"}}`))
	case "tools/list":
		x.Result([]byte(`{"tools":[{"name":"headed","inputSchema":{"type":"object","properties":{` +
			`"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"},"dry":{"type":"boolean","x-mcp-header":"Dry"}}}}]}`))
	case "tools/call":
		if jsonrpc.Field(x.Params, "arguments", "ask") == nil {
			x.Result(result("done"))
			return
		}
		x.Request([]byte(`"q"`), "elicitation/create", []byte(`{"message":"?"}`))
	}
}

// TestModernParamsAgain checks these headers in a retry with a requestState, too.
func TestModernParamsAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{backend: message.New(headed{})})
	p := &peer{n: n}
	post := func(params, region string) reply {
		return p.open("POST", "/mcp", modernBody("tools/call", `{"name":"headed","arguments":{"region":"eu","ask":true}`+params+`}`, `{"elicitation":{}}`),
			"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: headed", "Mcp-Param-Region: "+region).all()
	}
	state := jsonrpc.Field(post("", "eu").body, "result", "requestState")
	if state == nil {
		t.Fatal("the client was not asked")
	}
	retry := `,"requestState":` + string(state)
	refusedModern(t, "another", post(retry, "us"), 400, codeHeaders, `"c1"`)
	if r := post(retry, "eu"); jsonrpc.Field(r.body, "result", "inputRequests") == nil {
		t.Errorf("the same: %d %s", r.status, r.body)
	}
}

// TestModernLegacyOnly sends GET and DELETE of revision 2026-07-28 to a handler of legacy clients: the revision is unsupported.
func TestModernLegacyOnly(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Eras: modernfront.ErasLegacy}})
	for _, method := range []string{"GET", "DELETE"} {
		r := (&peer{n: n}).open(method, "/mcp", "", "MCP-Protocol-Version: 2026-07-28").all()
		if r.status != 400 || string(jsonrpc.Field(r.body, "error", "code")) != fmt.Sprint(codeUnsupported) {
			t.Errorf("%s: %d %s", method, r.status, r.body)
		}
	}
}

// TestModernParams is the headers that repeat arguments according to the tool's schema: one that differs, or is missing, is refused.
func TestModernParams(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{backend: message.New(headed{})})
	p := &peer{n: n}
	for _, c := range []struct {
		what, arguments string
		head            []string
		ok              bool
	}{
		{"all", `{"region":"eu","n":7,"dry":true}`, []string{"Mcp-Param-Region: eu", "Mcp-Param-N: 7", "Mcp-Param-Dry: true"}, true},
		{"in other letters", `{"region":"eu"}`, []string{"MCP-PARAM-REGION: eu"}, true},
		{"coded", `{"region":"é"}`, []string{"Mcp-Param-Region: =?base64?w6k=?="}, true},
		{"a number in another way", `{"region":"eu","n":7}`, []string{"Mcp-Param-Region: eu", "Mcp-Param-N: 7.0"}, true},
		{"null", `{"region":null}`, nil, true},
		{"none", `{}`, nil, true},
		{"missing", `{"region":"eu"}`, nil, false},
		{"another", `{"region":"eu"}`, []string{"Mcp-Param-Region: us"}, false},
		{"another case", `{"region":"eu"}`, []string{"Mcp-Param-Region: EU"}, false},
		{"two", `{"region":"eu"}`, []string{"Mcp-Param-Region: eu", "Mcp-Param-Region: us"}, false},
		{"another number", `{"region":"eu","n":7}`, []string{"Mcp-Param-Region: eu", "Mcp-Param-N: 8"}, false},
		{"of nothing", `{}`, []string{"Mcp-Param-Region: eu"}, false},
		{"of null", `{"region":null}`, []string{"Mcp-Param-Region: eu"}, false},
		{"not ASCII", `{"region":"é"}`, []string{"Mcp-Param-Region: é"}, false},
		{"coded badly", `{"region":"é"}`, []string{"Mcp-Param-Region: =?base64?w6k?="}, false},
	} {
		head := append([]string{"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: headed"}, c.head...)
		r := p.open("POST", "/mcp", modernBody("tools/call", `{"name":"headed","arguments":`+c.arguments+`}`, "{}"), head...).all()
		if c.ok && (r.status != 200 || !bytes.Contains(r.body, []byte("done"))) {
			t.Errorf("%s: %d %s", c.what, r.status, r.body)
		}
		if !c.ok {
			refusedModern(t, c.what, r, 400, codeHeaders, `"c1"`)
		}
	}
}

// FuzzModern passes any headers and bodies to the decoder of modern requests. A request that it takes
// has headers that agree with the body, and the error for any other has the request's id, or none.
func FuzzModern(f *testing.F) {
	const call = `{"jsonrpc":"2.0","id":"c1","method":"tools/call","params":{` + metaWhole + `,"name":"echo"}}`
	for _, body := range []string{
		call, strings.Replace(call, `"c1"`, "7", 1), strings.Replace(call, metaVersion+",", "", 1), strings.Replace(call, "}}}", "}}", 1),
		strings.Replace(call, `"name":"echo"`, `"name":"echo","name":"x"`, 1), "[" + call + "]",
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`,
	} {
		f.Add([]byte(body), "2026-07-28", "tools/call", "echo")
	}
	f.Add([]byte(call), "2025-11-25", "tools/call", "=?base64?ZWNobw==?=")
	f.Add([]byte(call), "", "=?base64?dG9vbHMvY2FsbA==?=", "")
	n := newNode(f, config{session: session.Options{Keep: 1}})
	f.Fuzz(func(t *testing.T, body []byte, version, method, name string) {
		r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
		for key, value := range map[string]string{"Mcp-Protocol-Version": version, "Mcp-Method": method, "Mcp-Name": name} {
			if value != "" {
				r.Header[key] = []string{value}
			}
		}
		msgs, batch, err := jsonrpc.ParseBody(bytes.Clone(body))
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		got := n.DecodeModern(w, r, msgs, batch)
		m := &msgs[0]
		var id []byte
		if !batch && m.Kind == jsonrpc.Request {
			id = m.ID
		}
		switch {
		case !got.Modern:
			if version == "2026-07-28" || !batch && m.Method == "server/discover" {
				t.Fatal("it is not taken for modern")
			}
		case got.Taken:
			meta := jsonrpc.Field(m.Params, "_meta")
			if batch || m.Kind != jsonrpc.Request || version != "2026-07-28" || method != m.Method ||
				jsonrpc.String(jsonrpc.Field(meta, "io.modelcontextprotocol/protocolVersion")) != version ||
				!bytes.HasPrefix(jsonrpc.Field(meta, "io.modelcontextprotocol/clientCapabilities"), []byte("{")) {
				t.Fatalf("%s is taken, with %q, %q", body, version, method)
			}
			if want := jsonrpc.String(jsonrpc.Field(m.Params, "name")); m.Method == "tools/call" && name != want && !strings.HasPrefix(name, "=?base64?") {
				t.Fatalf("%s is taken, with the name %q", body, name)
			}
		case !batch && m.Kind == jsonrpc.Notification:
			if w.Code != http.StatusAccepted || w.Body.Len() > 0 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		default:
			if w.Code != http.StatusBadRequest && w.Code != http.StatusNotFound || !json.Valid(w.Body.Bytes()) ||
				jsonrpc.Field(w.Body.Bytes(), "error", "message") == nil || !bytes.Equal(jsonrpc.Field(w.Body.Bytes(), "id"), id) {
				t.Fatalf("%s: %d %s", body, w.Code, w.Body)
			}
		}
	})
}

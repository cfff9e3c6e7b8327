package server_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/server"
	"holdfast/jsonrpc"
)

// JSON-RPC error codes as clients see them.
const (
	codeParse       = -32700
	codeInvalid     = -32600
	codeParams      = -32602
	codeServer      = -32000
	codeUnknown     = -32010
	codeUnsupported = -32022
)

// crafted is a request made by hand. The lines in head replace the usual headers; an empty line
// leaves its header out.
type crafted struct {
	method, target string // POST and /mcp if empty
	head           map[string]string
	body           string
	raw            bool // body is sent unchanged, without a Content-Length
}

func (p *peer) craft(c crafted) *wire {
	p.n.t.Helper()
	head := map[string]string{
		"Host":         "Host: " + p.n.addr,
		"Accept":       "Accept: application/json, text/event-stream",
		"Content-Type": "Content-Type: application/json",
	}
	if p.id != "" {
		head["Mcp-Session-Id"] = "Mcp-Session-Id: " + p.id
	}
	for name, values := range p.header {
		head[name] = name + ": " + values[0]
	}
	if !c.raw && c.body != "" {
		head["Content-Length"] = fmt.Sprintf("Content-Length: %d", len(c.body))
	}
	for name, line := range c.head {
		head[name] = line
	}
	text := cmp.Or(c.method, "POST") + " " + cmp.Or(c.target, "/mcp") + " HTTP/1.1\r\n"
	for _, line := range head {
		if line != "" {
			text += line + "\r\n"
		}
	}
	return p.send(text + "\r\n" + c.body)
}

// refused checks that an answer is a JSON-RPC error about the HTTP request, with a text that
// tells the client how to mend it.
func refused(t testing.TB, what string, r reply, status, code int, says string) {
	t.Helper()
	id, e := r.refusal(t, what)
	if r.status != status {
		t.Errorf("%s: status %d, want %d; body %.300s", what, r.status, status, r.body)
	}
	if id != "" && id != "1" { // the id of all requests here with a legible id
		t.Errorf("%s: the error has the id %s", what, id)
	}
	if e.Code != code {
		t.Errorf("%s: code %d, want %d", what, e.Code, code)
	}
	if !strings.Contains(e.Message, says) {
		t.Errorf("%s: message %q does not say %q", what, e.Message, says)
	}
}

// refusal returns the error in an answer, and the id of its request.
func (r reply) refusal(t testing.TB, what string) (id string, e jsonrpc.Error) {
	t.Helper()
	var m struct {
		JSONRPC    string
		ID, Result json.RawMessage
		Error      *jsonrpc.Error
	}
	if err := json.Unmarshal(r.body, &m); err != nil || m.JSONRPC != "2.0" || m.Result != nil || m.Error == nil || r.header.Get("Content-Type") != "application/json" {
		t.Errorf("%s: the answer is no error (%v): %d %v %.300s", what, err, r.status, r.header, r.body)
		return "", e
	}
	return string(m.ID), *m.Error
}

// works checks that a session answers.
func (p *peer) works(what string) {
	p.n.t.Helper()
	if r := p.post(callAs(`"works"`, "echo", `{"text":"still here"}`)); r.status != 200 || !strings.Contains(string(r.body), "still here") {
		p.n.t.Errorf("after %s the session answers %d %s", what, r.status, r.body)
	}
}

// TestBadBody sends invalid bodies in a POST: each is refused with its error, and none has an effect.
func TestBadBody(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-03-26", nil) // a revision with batches, so that their messages are checked
	run := callAs(`"c"`, "steps", `{"key":"bad"}`)
	for _, tc := range []struct {
		code int
		says string
		list []string
	}{
		{codeParse, "malformed JSON", []string{
			"", " ", "{", "nul", "\"x", "{'a':1}", "[", "\xef\xbb\xbf{}", "\x00",
			`{"jsonrpc":"2.0","id":1,"method":"ping"`,
			`{"jsonrpc":"2.0","id":1,"method":"ping"}}`,
			`{"jsonrpc":"2.0","id":01,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping",}`,
			"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\nng\"}",
			run + run, run + "\n" + run, "[" + run + ",]", "[" + run, "[" + run + " " + run + "]", "[" + run + "]x",
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}",
		}},
		{codeInvalid, "not a JSON-RPC 2.0 message", []string{
			"null", "true", "1", `"ping"`, "{}", "[]", "[ ]", "[1]", "[[]]", "[null]",
			`{"id":1,"method":"ping"}`,
			`{"jsonrpc":"1.0","id":1,"method":"ping"}`,
			`{"jsonrpc":2.0,"id":1,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":null,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":{},"method":"ping"}`,
			`{"jsonrpc":"2.0","id":["a"],"method":"ping"}`,
			`{"jsonrpc":"2.0","id":true,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":1}`,
			`{"jsonrpc":"2.0","id":1,"method":7}`,
			`{"jsonrpc":"2.0","id":1,"method":null}`,
			`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`,
			`{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"m"}}`,
			`{"jsonrpc":"2.0","id":1,"error":"m"}`,
			`{"jsonrpc":"2.0","id":null,"result":{}}`,
			`{"jsonrpc":"2.0","result":{}}`,
			"[" + run + ",{}]", "[" + run + `,{"jsonrpc":"2.0","id":null,"method":"ping"}]`,
		}},
		{codeInvalid, "initialize must not be part of a batch", []string{
			`[{"jsonrpc":"2.0","id":9,"method":"initialize","params":{}},` + run + "]",
			"[" + run + `,{"jsonrpc":"2.0","id":9,"method":"initialize","params":{}}]`,
		}},
		{codeInvalid, "initialized already", []string{
			`{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`,
		}},
		{codeInvalid, "use an id once", []string{"[" + run + "," + run + "]"}},
	} {
		for _, body := range tc.list {
			head := map[string]string{"Content-Length": fmt.Sprintf("Content-Length: %d", len(body))}
			refused(t, fmt.Sprintf("%.60q", body), p.craft(crafted{body: body, head: head}).all(), 400, tc.code, tc.says)
			p.works(body)
			if got := n.sessions.Calls(); got != 0 {
				t.Fatalf("after %.60q %d calls are in flight", body, got)
			}
		}
	}
	if n.runs("bad") > 0 {
		t.Error("a call ran that was part of something bad")
	}
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		p := n.connect(version, nil)
		refused(t, "batch in "+version, p.post("["+run+"]"), 400, codeInvalid, "no batches: send one message")
		older := *p
		older.version, older.header = "", http.Header{"Mcp-Protocol-Version": {"2025-03-26"}} // for this request alone
		refused(t, "batch by header in "+version, older.post("["+run+"]"), 400, codeInvalid, "no batches: send one message")
		p.works("a batch")
	}
	refused(t, "initialize in a batch of no session", (&peer{n: n}).post(
		`[{"jsonrpc":"2.0","id":9,"method":"initialize","params":{}},{"jsonrpc":"2.0","id":1,"method":"ping"}]`), 400, codeInvalid, "initialize")
}

// TestBadHeaders sends Content-Types: any but JSON is refused.
func TestBadHeaders(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	ping := `{"jsonrpc":"2.0","id":"p","method":"ping"}`
	for contentType, ok := range map[string]bool{
		"":                         false,
		"Content-Type:":            false,
		"Content-Type: text/plain": false,
		"Content-Type: application/x-www-form-urlencoded":            false,
		"Content-Type: multipart/form-data; boundary=x":              false,
		"Content-Type: application/json-seq":                         false,
		"Content-Type: application/json\r\nContent-Type: text/plain": false,
		"Content-Type: application/json; charset=utf-8":              true,
		"Content-Type: Application/JSON":                             true,
	} {
		r := p.craft(crafted{head: map[string]string{"Content-Type": contentType}, body: ping}).all()
		if ok != (r.status == 200) {
			t.Errorf("%q: %d", contentType, r.status)
		}
		if !ok {
			refused(t, contentType, r, 415, codeInvalid, "Content-Type must be application/json")
		}
	}
	p.works("bad headers")
}

// TestBadLength is a body that is too large, or incomplete.
func TestBadLength(t *testing.T) {
	t.Parallel()
	const most = 1 << 10
	n := newNode(t, config{server: server.Options{MaxBody: most}})
	p := n.connect("2025-11-25", nil)
	chunked := map[string]string{"Transfer-Encoding": "Transfer-Encoding: chunked"}
	chunk := func(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }
	body := callAs(`"c"`, "echo", `{"text":"exactly"}`)
	body += strings.Repeat(" ", most-len(body))
	for _, c := range []crafted{{body: body}, {body: chunk(body), raw: true, head: chunked}} {
		if r := p.craft(c).all(); r.status != 200 || !strings.Contains(string(r.body), "exactly") {
			t.Errorf("%d bytes: %d %s", most, r.status, r.body)
		}
	}
	run := callAs(`"c"`, "steps", `{"key":"bad"}`)
	long := run + strings.Repeat(" ", most)
	for what, c := range map[string]crafted{
		"one byte too many":     {body: body + " "},
		"a long body":           {body: long},
		"a long body in chunks": {body: chunk(long), raw: true, head: chunked},
		"one byte in chunks":    {body: chunk(body + " "), raw: true, head: chunked},
		"the threat of a body":  {raw: true, head: map[string]string{"Content-Length": "Content-Length: 1099511627776"}},
	} {
		refused(t, what, p.craft(c).all(), 413, codeInvalid, "larger than 1024 bytes")
		p.works(what)
	}
	for what, c := range map[string]crafted{
		"cut short":            {body: run, head: map[string]string{"Content-Length": fmt.Sprintf("Content-Length: %d", len(run)+1)}},
		"cut before it":        {raw: true, head: map[string]string{"Content-Length": "Content-Length: 7"}},
		"cut in chunks":        {body: fmt.Sprintf("%x\r\n%s", len(run)+1, run), raw: true, head: chunked},
		"cut before the end":   {body: fmt.Sprintf("%x\r\n%s\r\n", len(run), run), raw: true, head: chunked},
		"with a garbled chunk": {body: "zz\r\n" + run, raw: true, head: chunked},
	} {
		w := p.craft(c)
		if err := w.c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		refused(t, "a body "+what, w.all(), 400, codeParse, "the body ended early")
		p.works(what)
	}
	if n.runs("bad") > 0 {
		t.Error("a call ran that was not all there, or too long")
	}
}

// A request with very many header fields, of one name or of many, is refused for POST, GET, DELETE and WebSockets, and
// the session goes on.
func TestManyFields(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	for name, field := range map[string]func(i int) string{
		"one name": func(int) string { return "x:\r\n" },
		"many":     func(i int) string { return fmt.Sprintf("x%d: 1\r\n", i) },
	} {
		var fields strings.Builder
		for i := range 251 {
			fields.WriteString(field(i))
		}
		for what, head := range map[string]map[string]string{"POST": {}, "GET": {}, "DELETE": {}, "WebSocket": {"Upgrade": "Upgrade: websocket\r\nConnection: Upgrade"}} {
			method := what
			if what == "WebSocket" {
				method = "GET"
			}
			head["X"] = strings.TrimSuffix(fields.String(), "\r\n")
			if r := p.craft(crafted{method: method, head: head}).all(); r.status != 431 {
				t.Errorf("%s, %s: status %d", name, what, r.status)
			}
		}
	}
	head := map[string]string{"X": strings.TrimSuffix(strings.Repeat("x:\r\n", 251), "\r\n"), "Content-Length": "Content-Length: 8000"}
	if r := p.craft(crafted{body: "{", head: head}).all(); r.status != 431 {
		t.Errorf("before its body has come: status %d", r.status)
	}
	p.works("too many fields")
}

// TestHugeHeader is a header over the server's limit, and a large one within it.
func TestHugeHeader(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{http: func(s *http.Server) { s.MaxHeaderBytes = 128 << 10 }})
	p := n.connect("2025-11-25", nil)
	large, huge := strings.Repeat("x", 100<<10), strings.Repeat("x", 200<<10)
	if r := p.craft(crafted{method: "GET", head: map[string]string{"X": "X: " + huge}}).all(); r.status != 431 {
		t.Errorf("got %d", r.status)
	}
	p.works("a huge header")
	get := func(name string) reply {
		r := p.craft(crafted{method: "GET", head: map[string]string{name: name + ": " + large}}).all()
		if len(r.body) > 1<<10 {
			t.Errorf("a large %s came back in %d bytes", name, len(r.body))
		}
		return r
	}
	refused(t, "a large session id", get("Mcp-Session-Id"), 404, codeServer, "initialize")
	refused(t, "a large event id", get("Last-Event-ID"), 400, codeParams, "resume with an id")
	refused(t, "a large version", get("MCP-Protocol-Version"), 400, codeUnsupported, "unsupported")
	refused(t, "a large Origin", get("Origin"), 403, codeInvalid, "not allowed")
	refused(t, "a large Accept", get("Accept"), 406, codeInvalid, "Accept must")
	p.works("large headers")
}

// TestBadSession is an unknown session id, with every method: the status is 404, so that the
// client starts another session, and 400 if there is no id.
func TestBadSession(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	ended := n.connect("2025-11-25", nil)
	n.end(ended)
	for what, id := range map[string]string{
		"made up":          "AAAAAAAAAAAAAAAAAAAAAAAAAA",
		"ended":            ended.id,
		"truncated":        p.id[:len(p.id)-1],
		"in lower case":    strings.ToLower(p.id),
		"with more":        p.id + "A",
		"two at once":      p.id + ", " + p.id,
		"not even an id":   "../../etc/passwd",
		"not even ASCII":   "s\xc3\xa9ance",
		"a uuid":           "5f0c6b3e-7d5c-4b0e-9a33-0d1d7f2a9d11",
		"the word null":    "null",
		"of another's URL": "?stream=x",
	} {
		head := map[string]string{"Mcp-Session-Id": "Mcp-Session-Id: " + id}
		for _, c := range []crafted{
			{body: call("echo", `{}`)},
			{body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`},
			{body: `{"jsonrpc":"2.0","id":1,"result":{}}`},
			{body: `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`},
			{method: "GET"},
			{method: "DELETE"},
		} {
			c.head = head
			r := p.craft(c).all()
			refused(t, fmt.Sprintf("%s with an id %s (%.60s)", c.method, what, c.body), r, 404, codeServer, "start a new one with an initialize request")
			if r.header.Get("Mcp-Session-Id") != "" {
				t.Errorf("%s: a session id came back", what)
			}
		}
	}
	for _, line := range []string{"", "Mcp-Session-Id:"} {
		head := map[string]string{"Mcp-Session-Id": line}
		for _, c := range []crafted{
			{body: call("echo", `{}`), head: head},
			{body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`, head: head},
			{method: "GET", head: head},
			{method: "DELETE", head: head},
		} {
			refused(t, fmt.Sprintf("%s with %q (%.60s)", c.method, line, c.body), p.craft(c).all(), 400, codeInvalid, "start with an initialize request")
		}
		notification := crafted{body: `{"jsonrpc":"2.0","method":"initialize"}`, head: head} // a notification begins no session
		refused(t, "initialize without an id", p.craft(notification).all(), 400, codeInvalid, `initialize has no "id"`)
	}
	p.works("requests for other sessions")
	if got := n.sessions.Sessions(); got != 1 {
		t.Errorf("there are %d sessions", got)
	}
}

// TestBadVersion is an unsupported protocol revision, with every method.
func TestBadVersion(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	for _, version := range []string{"2099-01-01", "1999-01-01", "latest", "2025-11-25 ,2025-06-18", "DRAFT-2025-v3", ""} {
		head := map[string]string{"Mcp-Protocol-Version": "Mcp-Protocol-Version: " + version}
		for _, c := range []crafted{{body: call("steps", `{"key":"bad"}`)}, {method: "GET"}, {method: "DELETE"}} {
			c.head = head
			r := p.craft(c).all()
			refused(t, fmt.Sprintf("%s with version %q", c.method, version), r, 400, codeUnsupported, "unsupported protocol version")
			var e struct {
				Error struct{ Data struct{ Supported []string } }
			}
			if err := json.Unmarshal(r.body, &e); err != nil || !slices.Contains(e.Error.Data.Supported, "2025-11-25") {
				t.Errorf("%s does not say what is supported", r.body)
			}
		}
		c := crafted{body: `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`, head: map[string]string{
			"Mcp-Protocol-Version": head["Mcp-Protocol-Version"], "Mcp-Session-Id": "",
		}}
		refused(t, "initialize with version "+version, p.craft(c).all(), 400, codeUnsupported, "unsupported protocol version")
	}
	p.works("other versions")
	if n.runs("bad") > 0 || n.sessions.Sessions() != 1 {
		t.Error("a request of an unknown version had an effect")
	}
}

// TestBadMethod has HTTP methods that an endpoint does not allow: the status is 405, with Allow.
func TestBadMethod(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	for target, allow := range map[string]string{
		"/mcp": "GET, POST, DELETE, OPTIONS", "/sse": "GET, POST, OPTIONS", "/messages?sessionId=x": "GET, POST, OPTIONS",
	} {
		for _, method := range []string{"PUT", "PATCH", "TRACE", "FOO", "HEAD", "DELETE", "get"} {
			if method == "DELETE" && target == "/mcp" {
				continue
			}
			w := p.craft(crafted{method: method, target: target, body: call("steps", `{"key":"bad"}`)})
			if method == "HEAD" {
				if got := w.head().StatusCode; got != 405 {
					t.Errorf("HEAD %s: %d", target, got)
				}
				continue
			}
			r := w.all()
			refused(t, method+" "+target, r, 405, codeInvalid, "method "+method+" is not allowed")
			if got := r.header.Get("Allow"); got != allow {
				t.Errorf("%s %s: Allow is %q", method, target, got)
			}
		}
	}
	p.works("other methods")
	if n.runs("bad") > 0 {
		t.Error("a call ran that came by another method")
	}
}

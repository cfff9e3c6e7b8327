package server_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/engine/memory"
	"holdfast/jsonrpc"
	"holdfast/server"
)

// JSON-RPC error codes as clients see them.
const (
	codeParse       = -32700
	codeInvalid     = -32600
	codeParams      = -32602
	codeServer      = -32000
	codeUnsupported = -32022
)

// crafted is a request made by hand. Headers in head stand instead of the usual
// ones; an empty line leaves one out.
type crafted struct {
	method, target string // POST and /mcp if empty
	head           map[string]string
	body           string
	raw            bool // body is sent as it is, and nothing said of its length
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
	if c.method == "" {
		c.method = "POST"
	}
	if c.target == "" {
		c.target = "/mcp"
	}
	text := c.method + " " + c.target + " HTTP/1.1\r\n"
	for _, line := range head {
		if line != "" {
			text += line + "\r\n"
		}
	}
	conn, err := net.Dial("tcp", p.n.addr)
	if err != nil {
		p.n.t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, text, "\r\n", c.body); err != nil {
		p.n.t.Fatal(err)
	}
	w := &wire{t: p.n.t, c: conn.(*net.TCPConn)}
	p.n.t.Cleanup(func() { w.c.Close() })
	return w
}

// refused checks that an answer is a JSON-RPC error about the HTTP request,
// which says what is to be done.
func refused(t testing.TB, what string, r reply, status, code int, says string) {
	t.Helper()
	var e struct {
		JSONRPC string
		ID      json.RawMessage
		Result  json.RawMessage
		Error   *jsonrpc.Error
	}
	if r.status != status {
		t.Errorf("%s: status %d, want %d; body %.300s", what, r.status, status, r.body)
		return
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("%s: content type %q", what, got)
	}
	if err := json.Unmarshal(r.body, &e); err != nil || e.JSONRPC != "2.0" || e.ID != nil || e.Result != nil || e.Error == nil {
		t.Errorf("%s: the body is no error of a request (%v): %.300s", what, err, r.body)
		return
	}
	if e.Error.Code != code {
		t.Errorf("%s: code %d, want %d", what, e.Error.Code, code)
	}
	if !strings.Contains(e.Error.Message, says) {
		t.Errorf("%s: message %q does not say %q", what, e.Error.Message, says)
	}
}

// works checks that a session answers.
func (p *peer) works(what string) {
	p.n.t.Helper()
	if r := p.post(callAs(`"works"`, "echo", `{"text":"still here"}`)); r.status != 200 || !strings.Contains(string(r.body), "still here") {
		p.n.t.Errorf("after %s the session answers %d %s", what, r.status, r.body)
	}
}

// TestBadBody is what a POST may not carry.
func TestBadBody(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-03-26", nil) // has batches, so that what is in them is looked at
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
			`{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}}`,
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
		p.works("a batch")
	}
	refused(t, "initialize in a batch of no session", (&peer{n: n}).post(
		`[{"jsonrpc":"2.0","id":9,"method":"initialize","params":{}},{"jsonrpc":"2.0","id":1,"method":"ping"}]`), 400, codeInvalid, "initialize")
}

// TestBadHeaders is content negotiation: what must be accepted, and what must
// not be sent.
func TestBadHeaders(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	ping := `{"jsonrpc":"2.0","id":"p","method":"ping"}`
	for accept, ok := range map[string]bool{
		"":                          false,
		"Accept:":                   false,
		"Accept: application/json":  false,
		"Accept: text/event-stream": false,
		"Accept: text/html":         false,
		"Accept: application/jsonx, text/event-streams":      false,
		"Accept: application/json, text/event-stream;q=0":    false,
		"Accept: application/json; q=0.0, text/event-stream": false,
		"Accept: */*;q=0":                                      false,
		"Accept: */*, text/event-stream;q=0":                   false,
		"Accept: text/*":                                       false,
		"Accept: */*":                                          true,
		"Accept: application/*, text/*;q=0.1":                  true,
		"Accept: */*;q=0, application/json, text/event-stream": true,
		"Accept: text/event-stream , Application/JSON":         true,
		"Accept: text/html, application/json;q=0.9, text/event-stream;charset=utf-8":    true,
		"Accept: application/json\r\nAccept: text/event-stream":                         true,
		"Accept: application/json;q=0.001, text/event-stream;q=0.001, text/plain;q=0.9": true,
	} {
		r := p.craft(crafted{head: map[string]string{"Accept": accept}, body: ping}).all()
		if ok != (r.status == 200) {
			t.Errorf("POST with %q: %d", accept, r.status)
		}
		if !ok {
			refused(t, accept, r, 406, codeInvalid, "Accept must list both application/json and text/event-stream")
		}
	}
	for accept, status := range map[string]int{
		"":                                 406,
		"Accept: application/json":         406,
		"Accept: text/event-stream;q=0":    406,
		"Accept: text/event-stream; q=0.2": 200,
		"Accept: text/*":                   200,
		"Accept: */*":                      200,
	} {
		w := p.craft(crafted{method: "GET", head: map[string]string{"Accept": accept}})
		if got := w.head().StatusCode; got != status {
			t.Errorf("GET with %q: %d", accept, got)
		}
		if status == 406 {
			refused(t, accept, w.all(), 406, codeInvalid, "Accept must list text/event-stream")
		}
		w.c.Close()
	}
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

// TestBadLength is a body that is too large, or not all there.
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

// TestBadSession is a session that is not there, on every method: exactly 404,
// so that the client starts another, and 400 where none is named.
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
			{body: `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`},
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
			{body: `{"jsonrpc":"2.0","method":"initialize"}`, head: head}, // a notification begins nothing
			{method: "GET", head: head},
			{method: "DELETE", head: head},
		} {
			refused(t, fmt.Sprintf("%s with %q (%.60s)", c.method, line, c.body), p.craft(c).all(), 400, codeInvalid, "start with an initialize request")
		}
	}
	p.works("requests for other sessions")
	if got := n.sessions.Sessions(); got != 1 {
		t.Errorf("there are %d sessions", got)
	}
}

// TestBadVersion is a protocol revision that is not spoken here, on every
// method.
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

// TestBadMethod is HTTP methods that the doors do not know.
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

// TestBadEventID is a Last-Event-ID that leads nowhere. The answer says so,
// carries nothing, and whoever reads the stream reads on.
func TestBadEventID(t *testing.T) {
	t.Parallel()
	const secret = "not-for-others"
	n := newNode(t, config{})
	p, other := n.connect("2025-11-25", nil), n.connect("2025-11-25", nil)
	p.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"` + secret + `"}}`)
	get := p.open("GET", "/mcp", "")
	listened := get.message().ID
	w := p.open("POST", "/mcp", call("hold", `{}`))
	link := &follower{p: p, seen: map[string]bool{}}
	if err := link.take(reply{header: w.head().Header}); err != nil {
		t.Fatal(err)
	}
	held := n.release(1)
	progress(held[0], 1, 1)
	id := w.message().ID
	theirs := other.open("POST", "/mcp", callAs(`"c"`, "hold", `{}`))
	heldToo := n.release(1)
	heldToo[0].Notify("notifications/message", []byte(`{"data":"`+secret+`"}`))
	foreign := theirs.message().ID

	dot := strings.Index(id, ".")
	if dot < 0 || strings.Count(id, ".") != 2 || !strings.HasSuffix(id, ".1") {
		t.Fatalf("the first message has the id %s", id)
	}
	stream, place := id[:dot], id[dot:] // MAC and number; epoch and sequence
	turned := "A"
	if stream[0] == 'A' {
		turned = "B"
	}
	for _, tc := range []struct {
		status, code int
		says         string
		ids          map[string]string
	}{
		{400, codeParams, "resume with an id that was received in this session", map[string]string{
			"garbled":                     "?",
			"a number":                    "7",
			"a uuid":                      "5f0c6b3e-7d5c-4b0e-9a33-0d1d7f2a9d11",
			"as other servers have them":  "5f0c6b3e-7d5c-4b0e-9a33-0d1d7f2a9d11_42",
			"long":                        strings.Repeat("a", 200),
			"not ASCII":                   strings.Repeat("\xc3\xa9", 20),
			"only dots":                   strings.Repeat(".", 30),
			"with another mark":           turned + id[1:],
			"without its end":             id[:len(id)-1],
			"without a place":             stream,
			"without a sequence":          id[:strings.LastIndex(id, ".")],
			"cut in the mark":             id[:10],
			"with more":                   id + "." + "1",
			"with a sign":                 stream + strings.Replace(place, ".1", ".-1", 1),
			"with a zero before":          id[:len(id)-1] + "01",
			"with a number too large":     id[:len(id)-1] + "zzzzzzzzzzzzzzzz",
			"of a call that is not":       stream[:len(stream)-1] + "9" + place,
			"of a call that is another's": foreign,
			"moved to another stream":     stream[:len(stream)-1] + "0" + place,
			"of a call, for the standalone one's name": listened[:strings.Index(listened, ".")-1] + "1" + place,
			"with a session before it":                 "AAAAAAAAAAAAAAAA." + id,
		}},
		{410, codeServer, "outcome unknown: messages after this cursor are no longer kept", map[string]string{
			"far ahead":               id[:len(id)-1] + "zzz",
			"just ahead":              id[:len(id)-1] + "2",
			"under another epoch":     stream + ".7.1",
			"ahead on the standalone": listened[:strings.LastIndex(listened, ".")] + ".zz",
		}},
	} {
		for what, bad := range tc.ids {
			r := p.open("GET", "/mcp", "", "Last-Event-ID: "+bad).all()
			refused(t, "an id "+what, r, tc.status, tc.code, tc.says)
			if strings.Contains(string(r.body), secret) {
				t.Errorf("an id %s: %s", what, r.body)
			}
			r = p.open("GET", link.link, "", "Last-Event-ID: "+bad).all()
			want := tc.status
			if what == "ahead on the standalone" {
				want = 400 // not this URL's stream
			}
			if r.status != want || strings.Contains(string(r.body), secret) {
				t.Errorf("an id %s at the stream URL: %d %s", what, r.status, r.body)
			}
		}
	}
	// A stream URL, and an id of the session's other stream.
	refused(t, "a standalone id at a call's URL", p.open("GET", link.link, "", "Last-Event-ID: "+listened).all(), 400, codeParams, "resume with")
	// The URL itself: who guesses learns nothing.
	for what, url := range map[string]string{
		"garbled":        "/mcp?stream=x",
		"cut":            link.link[:len(link.link)-12],
		"for another":    strings.Replace(link.link, "=", "=A", 1),
		"of two":         "/mcp?stream=" + strings.SplitN(strings.SplitN(link.link, "=", 2)[1], ".", 2)[0] + "." + foreign,
		"with no name":   "/mcp?stream=." + id,
		"with no stream": "/mcp?stream=" + strings.SplitN(strings.SplitN(link.link, "=", 2)[1], ".", 2)[0],
	} {
		refused(t, "GET of a URL "+what, p.open("GET", url, "").all(), 404, codeServer, "initialize")
		refused(t, "POST to a URL "+what, p.open("POST", url, `{"jsonrpc":"2.0","id":1,"result":{}}`).all(), 404, codeServer, "initialize")
	}
	refused(t, "another session at the URL", other.open("GET", link.link, "").all(), 404, codeServer, "initialize")

	p.works("bad event ids")
	held[0].Result(result("mine"))
	heldToo[0].Result(result("theirs"))
	p.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"more"}}`)
	for w, want := range map[*wire]string{w: "mine", theirs: "theirs", get: "more"} {
		if ev := w.message(); !strings.Contains(string(ev.Data), want) {
			t.Errorf("the good reader got %s, want %s", ev.Data, want)
		}
	}
}

// TestBadEventIDKeepsTheBroken is a call whose connection broke before any id: a
// bad cursor of the same client must not make it forgotten.
func TestBadEventIDKeepsTheBroken(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
	p := n.connect("2025-06-18", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	held := n.release(1)
	url := w.head().Header.Get("Link")
	ahead := strings.Split(strings.TrimSuffix(strings.SplitN(url, ">", 2)[0], "0"), ".")
	w.c.Close()
	n.sessionsQuiet()
	r := p.open("GET", "/mcp", "", "Last-Event-ID: "+strings.Join(ahead[1:], ".")+"7").all()
	refused(t, "an id ahead", r, 410, codeServer, "no longer kept")
	held[0].Result(result("late"))
	if ev := p.open("GET", "/mcp", "").message(); !strings.Contains(string(ev.Data), "late") {
		t.Errorf("got %s", ev.Data)
	}
}

// TestExpiredEventID is an id of a call that ended too long ago.
func TestExpiredEventID(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{memory: memory.Options{Keep: 20 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	f := &follower{p: p, seen: map[string]bool{}}
	if err := f.take(p.post(call("steps", `{"n":2}`))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream to go", func() bool { return n.store.Bytes() == 0 })
	for _, target := range []string{"/mcp", f.link} {
		refused(t, "an expired id at "+target, p.open("GET", target, "", "Last-Event-ID: "+f.last).all(), 410, codeServer, "outcome unknown")
	}
	p.works("an expired id")
}

// TestBadID is a request whose id is in flight, in every form that it can come
// in. It is refused with all that came with it, and the first call goes on.
func TestBadID(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-03-26", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	held := n.release(1)
	again := callAs(`"c"`, "steps", `{"key":"bad"}`)
	fresh := callAs(`"f"`, "steps", `{"key":"bad"}`)
	for _, body := range []string{
		again, "[" + again + "]", "[" + again + "," + fresh + "]", "[" + fresh + "," + again + "]",
		`{"jsonrpc":"2.0","id":"c","method":"ping"}`, // light
	} {
		refused(t, body, p.post(body), 400, codeInvalid, "use an id once")
		if got := n.sessions.Calls(); got != 1 {
			t.Fatalf("%d calls are in flight", got)
		}
	}
	if n.runs("bad") > 0 {
		t.Error("a call ran that was refused")
	}
	if r := p.post(fresh); r.status != 200 || n.runs("bad") != 1 { // the refused one's id is free
		t.Errorf("got %d %s", r.status, r.body)
	}
	held[0].Result(result("unharmed"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "unharmed") {
		t.Errorf("got %s", ev.Data)
	}
	if r := p.post(again); r.status != 200 || n.runs("bad") != 2 { // free once it is answered
		t.Errorf("got %d %s", r.status, r.body)
	}
}

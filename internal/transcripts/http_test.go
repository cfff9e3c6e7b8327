package transcripts_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"holdfast"
)

// TestHTTP records POST, GET and DELETE of Streamable HTTP.
func TestHTTP(t *testing.T) {
	t.Parallel()
	record(t, []scenario{
		{name: "http-light", talk: light},
		{name: "http-light-sse", o: holdfast.Options{Response: holdfast.ResponseSSE}, talk: light},
		{name: "http-light-json", o: holdfast.Options{Response: holdfast.ResponseJSON}, talk: light},
		{name: "http-stored", talk: func(c *client) { stored(c, "gated", "2025-11-25") }},
		{name: "http-stored-2025-06-18", talk: func(c *client) { stored(c, "gated", "2025-06-18") }},
		{name: "http-promoted", talk: func(c *client) { stored(c, "safe_gated", "2025-11-25") }},
		{name: "http-resumed", talk: resumed},
		{name: "http-stream-url", talk: streamURL},
		{name: "http-session-only", talk: sessionOnly},
		{name: "http-standalone", talk: standalone},
		{name: "http-question", talk: question},
		{name: "http-batch", talk: batch},
		{name: "http-keyed", talk: keyed},
		{name: "http-token", talk: token},
		{name: "http-cancelled", talk: cancelled},
		{name: "http-deleted", talk: deleted},
		{name: "http-errors", stays: true, talk: refused},
		{name: "http-stateless", stays: true, o: holdfast.Options{Stateless: true}, talk: stateless},
	})
}

// light has the calls that are answered without a stored stream, in each revision.
func light(c *client) {
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		c.session, c.node = "", c.nodes.all[0]
		c.greet(version, "{}")
		c.goOver()
		c.post(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	}
	c.post(call("1", "echo", `{"text":"one"}`))
	c.post(call("2", "safe_count", `{"to":0}`))
	c.post(call("3", "count", `{"to":0}`))
	c.move()
	c.post(call("4", "echo", `{"text":"two"}`))
	c.post(call("5", "count", `{"to":1}`))
}

// stored has a call with a stored stream, read on one response to its end.
func stored(c *client, tool, version string) {
	c.begin(version, "{}")
	a := c.request("POST", "/mcp", call("1", tool, `{"key":"g"}`))
	a.event()
	c.move()
	c.open("g")
	a.follow()
}

// resumed loses the connection of a call, and resumes with the last event id, also
// when the call has ended.
func resumed(c *client) {
	c.begin("2025-11-25", "{}")
	for i, moves := range []bool{false, true} {
		gate := fmt.Sprint("g", i)
		a := c.request("POST", "/mcp", call(fmt.Sprint(i+1), "safe_gated", fmt.Sprintf(`{"key":%q}`, gate)))
		a.event()
		a.cut()
		first := a.last
		if moves {
			c.move()
		}
		b := c.request("GET", "/mcp", "", "Last-Event-ID: "+first)
		b.head()
		c.open(gate)
		b.follow()
		c.request("GET", "/mcp", "", "Last-Event-ID: "+first).rest() // once more
		c.request("GET", "/mcp", "", "Last-Event-ID: "+b.last).rest()
	}
}

// streamURL resumes at a stream's own URL, without a session, and answers there.
func streamURL(c *client) {
	c.begin("2025-06-18", "{}")
	a := c.request("POST", "/mcp", call("1", "safe_gated", `{"key":"g"}`))
	a.event()
	a.cut()
	session := c.session
	c.session = ""
	b := c.request("GET", a.link, "", "Last-Event-ID: "+a.last)
	b.head()
	b.cut()
	c.move()
	b = c.request("GET", a.link, "", "Last-Event-ID: "+a.last)
	b.head()
	c.open("g")
	b.follow()
	c.request("GET", a.link, "").rest()
	c.request("GET", a.link+"x", "").rest()
	c.session = session
	a = c.request("POST", "/mcp", call("2", "ask", `{}`))
	asked := a.event()
	a.cut()
	c.session = ""
	c.request("POST", a.link, accept(asked), "Last-Event-ID: "+a.last).rest()
}

// sessionOnly comes back with nothing but the session id (decision 1).
func sessionOnly(c *client) {
	c.begin("2025-11-25", "{}")
	a := c.request("POST", "/mcp", call("1", "safe_gated", `{"key":"a"}`))
	a.event()
	a.cut()
	c.move()
	get := c.request("GET", "/mcp", "")
	get.event() // the event of the call, as its client has not come back for it
	get.cut()
	c.open("a")
	c.request("GET", "/mcp", "", "Last-Event-ID: "+a.last).follow()
}

// standalone has the stream of messages that belong to no call.
func standalone(c *client) {
	c.begin("2025-11-25", "{}")
	say := func(text string) {
		c.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/say","params":{"data":%q}}`, text))
	}
	say("zero")
	get := c.request("GET", "/mcp", "")
	get.event()
	say("one")
	get.event()
	get.cut()
	say("two")
	say("three")
	get2 := c.request("GET", "/mcp", "", "Last-Event-ID: "+get.last)
	get2.event()
	get2.event()
	c.move()
	if c.moved && c.place.at == 0 {
		get3 := c.request("GET", "/mcp", "", "Last-Event-ID: "+get2.last)
		get3.head()
		get2 = get3
	}
	say("four")
	get2.event()
	get2.cut()
}

// question has a server's request to its client in the middle of a call.
func question(c *client) {
	c.begin("2025-11-25", "{}")
	a := c.request("POST", "/mcp", call("1", "ask", `{}`))
	c.post(accept(a.event()))
	a.follow()
	c.post(`{"jsonrpc":"2.0","id":"nobody-asked","result":{}}`)
	a = c.request("POST", "/mcp", call("2", "ask", `{}`))
	asked := a.event()
	c.move()
	c.post(accept(asked))
	a.follow()
}

// batch is JSON-RPC batching, which only 2025-03-26 has.
func batch(c *client) {
	c.begin("2025-03-26", "{}")
	ping := func(id string) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping"}`, id) }
	note := `{"jsonrpc":"2.0","method":"notifications/x"}`
	c.post("[" + note + "]")
	c.post("[" + note + "," + ping("1") + "," + ping("2") + "]")
	c.post("[]")
	c.post("[" + ping("1") + "," + ping("1") + "]")
	a := c.request("POST", "/mcp", "["+call("3", "count", `{"to":1}`)+","+call("4", "safe_gated", `{"key":"g"}`)+"]")
	a.event()
	a.event()
	a.event()
	c.move()
	c.open("g")
	a.follow()
}

// keyed makes requests again under their idempotency keys.
func keyed(c *client) {
	c.begin("2025-11-25", "{}")
	key := func(name string) string { return fmt.Sprintf("Idempotency-Key: %q", name) }
	count := call("1", "count", `{"to":1}`)
	c.post(count, key("a"))
	c.post(count, key("a"))
	c.post(call("2", "count", `{"to":0}`), key("a")) // another request
	c.post(count, "Idempotency-Key: ")
	a := c.request("POST", "/mcp", call("3", "gated", `{"key":"g"}`), key("b"))
	a.event()
	a.cut()
	one := c.session
	c.session, c.node = "", c.nodes.all[len(c.nodes.all)-1]
	c.begin("2025-06-18", "{}")
	c.post(count, key("a")) // in another session
	b := c.request("POST", "/mcp", call("3", "gated", `{"key":"g"}`), key("b"))
	b.event()
	b.cut()
	c.session, c.version = one, "2025-11-25"
	c.move()
	b = c.request("POST", "/mcp", call("3", "gated", `{"key":"g"}`), key("b"))
	b.head()
	c.open("g")
	b.follow()
	c.post(count, key("a"))
}

var tokenOf = regexp.MustCompile(`"resumeToken":"([^"]+)"`)

// token resumes requests by their tokens, and asks for their status (SEP-975).
func token(c *client) {
	c.begin("2025-11-25", `{"resumableRequests":{}}`)
	a := c.request("POST", "/mcp", call("1", "safe_gated", `{"key":"g"}`))
	tok := tokenOf.FindStringSubmatch(a.event())[1]
	a.event()
	a.cut()
	resume := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"requests/resume","params":{"resumeToken":%q}}`, tok)
	status := fmt.Sprintf(`{"jsonrpc":"2.0","id":"s","method":"requests/getStatus","params":{"requestId":1,"resumeToken":%q}}`, tok)
	all := `{"jsonrpc":"2.0","id":"all","method":"requests/getStatus/all"}`
	c.post(status)
	one := c.session
	c.session = ""
	b := c.request("POST", "/mcp", resume) // without a session
	b.event()
	b.event()
	b.cut()
	c.session = one
	c.move()
	b = c.request("POST", "/mcp", resume, "Last-Event-ID: "+b.last)
	b.head()
	c.open("g")
	b.follow()
	c.post(status)
	c.post(all)
	c.post(resume)
	c.post(strings.Replace(resume, tok, "made-up", 1))
	c.post(strings.Replace(status, tok, "made-up", 1))
}

// cancelled cancels a call.
func cancelled(c *client) {
	c.begin("2025-11-25", "{}")
	a := c.request("POST", "/mcp", call("1", "safe_gated", `{"key":"g"}`))
	a.event()
	c.move()
	c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"nobody"}}`)
	c.post(call("2", "echo", `{"text":"after it"}`))
	a.cut()
}

// deleted ends a session with a call in flight.
func deleted(c *client) {
	c.begin("2025-11-25", "{}")
	a := c.request("POST", "/mcp", call("1", "safe_gated", `{"key":"g"}`))
	a.event()
	c.move()
	c.request("DELETE", "/mcp", "").rest()
	c.post(call("2", "echo", `{"text":"x"}`))
	c.request("DELETE", "/mcp", "").rest()
	c.request("GET", "/mcp", "", "Last-Event-ID: "+a.last).rest()
}

// refused has the requests that are answered with an error alone.
func refused(c *client) {
	c.begin("2025-11-25", "{}")
	for _, body := range []string{
		`{`, `null`, `1`, `{}`, `{"jsonrpc":"1.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":{},"method":"ping"}`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":""}`,
		`{"jsonrpc":"2.0","id":1,"method":"no/such"}`, call("1", "no_such", "{}"), `[` + call("1", "echo", `{}`) + `]`,
		initialize("2025-11-25", "{}"),
	} {
		c.post(body)
	}
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	c.exactly("POST", "/mcp", ping, takesBoth).rest()
	c.exactly("POST", "/mcp", ping, takesBoth, "Content-Type: text/plain").rest()
	c.exactly("POST", "/mcp", ping, isJSON, "Accept: text/html").rest()
	c.exactly("POST", "/mcp", ping, isJSON).rest()
	c.exactly("GET", "/mcp", "", "Accept: application/json").rest()
	c.request("PUT", "/mcp", ping).rest()
	c.request("POST", "/mcp?stream=made-up.1", ping).rest()
	c.request("GET", "/mcp?stream=made-up.1", "").rest()
	get := c.request("GET", "/mcp?stream=", "")
	get.head()
	get.cut()
	c.request("GET", "/mcp", "", "Last-Event-ID: made-up").rest()
	c.request("GET", "/mcp", "", "Last-Event-ID: made-up.0.1").rest()
	session := c.session
	c.session = "made-up"
	c.post(ping)
	c.request("GET", "/mcp", "").rest()
	c.request("DELETE", "/mcp", "").rest()
	c.session = ""
	c.post(ping)
	c.request("GET", "/mcp", "").rest()
	c.request("DELETE", "/mcp", "").rest()
	c.post(initialize("1999-01-01", "{}"), "MCP-Protocol-Version: 1999-01-01")
	c.session, c.who = session, "mallory"
	c.post(ping)
	c.request("GET", "/mcp", "").rest()
	c.request("DELETE", "/mcp", "").rest()
	c.who = ""
	c.version = ""
	c.post(ping, "MCP-Protocol-Version: 1999-01-01")
	c.post(ping, "MCP-Protocol-Version: 2025-03-26")
	c.post(ping, "Origin: https://evil.example")
	c.post(ping)
}

// stateless has a handler without sessions.
func stateless(c *client) {
	c.version = "2025-06-18"
	c.post(initialize("2025-06-18", "{}"))
	c.session = ""
	c.goOver()
	c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	c.post(call("1", "echo", `{"text":"one"}`))
	c.post(call("2", "count", `{"to":1}`))
	c.request("GET", "/mcp", "").rest()
	c.request("DELETE", "/mcp", "").rest()
}

package translate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// facts are the result of the tests' legacy server for initialize.
const facts = `{"protocolVersion":"2025-11-25","capabilities":{"logging":{},"tools":{"listChanged":true},` +
	`"resources":{"subscribe":true},"tasks":{"list":{}},"extensions":{"a/b":{}}},"serverInfo":{"name":"s","version":"2"},"instructions":"be kind"}`

const info = `"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"2"}}`

// initialize answers as a legacy server.
func initialize(s *script, in backend.Inbound) bool {
	switch in.Method {
	case protocol.MethodInitialize:
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, in.ID, facts))
	case protocol.MethodInitialized:
	default:
		return false
	}
	return true
}

// modernConversation returns a conversation with an initialized legacy server.
func modernConversation(t *testing.T) (*holdfast, *script) { return modernTalk(t, initialize) }

// modernTalk is modernConversation with a function that answers other requests for the server, too.
func modernTalk(t *testing.T, answer func(*script, backend.Inbound) bool) (*holdfast, *script) {
	t.Helper()
	s := newScript(t, backend.Legacy)
	s.answer = answer
	h := converse(t, New(s, quiet), protocol.V20260728)
	h.deliver(&call{"d"}, modernRequest("0", "server/discover", "", ""))
	h.next()
	t.Cleanup(s.untold)
	return h, s
}

func TestHandshake(t *testing.T) {
	t.Parallel()
	s := newScript(t, backend.Legacy)
	h := converse(t, New(s, quiet), protocol.V20260728)
	if start := <-s.opened; start.Revision != "" {
		t.Errorf("opened with revision %s", start.Revision)
	}
	a, b, c := &call{"a"}, &call{"b"}, &call{"c"}
	h.deliver(nil, `{"jsonrpc":"2.0","id":"own","method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/clientInfo":`+protocol.OwnClientInfo+`,"io.modelcontextprotocol/clientCapabilities":{}}}}`)
	s.untold() // the server must not take Holdfast itself for the client
	h.deliver(a, modernRequest("1", "server/discover", "", ""))
	h.deliver(b, modernRequest("2", "tools/call", `"name":"t"`, ""))
	h.deliver(c, modernRequest("3", "tools/call", `"name":"u"`, ""))
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{"elicitation":{},"roots":{},"extensions":{"x/y":{}}},"clientInfo":{"name":"c","version":"1"}}}`)
	s.untold()
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, facts))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],`+
		`"capabilities":{"logging":{},"tools":{"listChanged":true},"resources":{"subscribe":true},"extensions":{"a/b":{}}},`+
		`"instructions":"be kind","resultType":"complete","ttlMs":0,"cacheScope":"private",`+info+`}}`)
	s.hears(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	s.hears(`{"jsonrpc":"2.0","id":"own","method":"tools/list","params":{}}`)
	s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t"}}`)
	s.untold()
}

// A request that Holdfast makes on behalf of a client's request has that client's clientInfo. The
// server is initialized for it, as the client's request may wait for the answer.
func TestHandshakeForClient(t *testing.T) {
	t.Parallel()
	s := newScript(t, backend.Legacy)
	h := converse(t, New(s, quiet), protocol.V20260728)
	own := func(id, client string) {
		h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/clientInfo":%s,"io.modelcontextprotocol/clientCapabilities":{}}}}`, id, client))
	}
	own("nobody", protocol.OwnClientInfo)
	s.untold()
	own("somebody", `{"name":"c","version":"1"}`)
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, facts))
	s.hears(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	s.hears(`{"jsonrpc":"2.0","id":"nobody","method":"tools/list","params":{}}`)
	s.hears(`{"jsonrpc":"2.0","id":"somebody","method":"tools/list","params":{}}`)
	s.untold()
}

// If a server refuses initialize, or ends, the waiting requests have not run.
func TestHandshakeFails(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(s *script, id []byte){
		"refused": func(s *script, id []byte) {
			s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"go away"}}`, id))
		},
		"nonsense": func(s *script, id []byte) { s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)) },
		"ended":    func(s *script, _ []byte) { s.sink.Closed(errors.New("exit status 1"), true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, backend.Legacy)
			h := converse(t, New(s, quiet), protocol.V20260728)
			a, b := &call{"a"}, &call{"b"}
			h.deliver(a, modernRequest("1", "tools/list", "", ""))
			h.deliver(b, modernRequest("2", "tools/list", "", ""))
			fail(s, (<-s.heard).ID)
			for _, c := range []*call{a, b} {
				if got := h.next(); got.call != c || !strings.Contains(string(got.m.Error), "was not delivered") {
					t.Errorf("%v: %s", got.call, got.m.Raw)
				}
			}
			if got := h.next(); got.closed == nil {
				t.Errorf("not closed: %s", got.m.Raw)
			}
		})
	}
}

// Where the first client is refused, the server is initialized for the next one that waits. If that is refused, too, its call
// knows why before its client does: its status says that.
func TestHandshakeNext(t *testing.T) {
	t.Parallel()
	s := newScript(t, backend.Legacy)
	came, refuse := s.refusesFirst()
	h := converse(t, New(s, quiet), protocol.V20260728)
	refused := h.deliverLater(&call{"refused"}, modernRequest("1", "tools/list", "", ""))
	<-came
	next := &heard{}
	deliver := func(id string, of backend.Call) {
		m := mcptest.Parse(modernRequest(id, "tools/list", "", ""))
		mcptest.Check(t, h.conn.Deliver(backend.Inbound{Message: m, Call: of}))
	}
	deliver("2", next)
	s.mu.Lock()
	s.refuse = errors.New("nor you")
	s.mu.Unlock()
	close(refuse)
	if err := <-refused; err == nil || err.Error() != "not you" {
		t.Errorf("the first delivery: %v", err)
	}
	h.expect(nil, `{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"tools/list was not delivered: nor you"}}`)
	if !errors.Is(next.why, s.refuse) {
		t.Errorf("its call heard %v", next.why)
	}

	s = newScript(t, backend.Legacy)
	came, refuse = s.refusesFirst()
	h = converse(t, New(s, quiet), protocol.V20260728)
	refused = h.deliverLater(&call{"refused"}, modernRequest("1", "tools/list", "", ""))
	<-came
	deliver("2", &call{"a"})
	deliver("3", &call{"a"})
	close(refuse)
	if <-refused == nil {
		t.Error("the first delivery was taken")
	}
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{"elicitation":{},"roots":{},"extensions":{"x/y":{}}},"clientInfo":{"name":"c","version":"1"}}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, facts))
	s.hears(initializedNotice)
	s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`)
	s.hears(`{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{}}`)
}

// An ending is a server that refuses two initialize requests. It ends while it refuses the second one, or once its client hears of own, an
// error for a request of Holdfast's own.
type ending struct {
	*script
	*holdfast
	came, refuse chan struct{} // of the first request
	own          bool
}

func (e *ending) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	conn, err := e.script.Open(ctx, start, sink)
	return &endingConn{conn, e}, err
}

func (e *ending) Emit(of backend.Call, m jsonrpc.Message) {
	if e.holdfast.Emit(of, m); string(m.ID) == `"own"` {
		e.sink.Closed(errors.New("gone"), true)
	}
}

type endingConn struct {
	backend.Conn
	e *ending
}

func (c *endingConn) Deliver(backend.Inbound) error {
	select {
	case <-c.e.refuse:
		if !c.e.own {
			c.e.sink.Closed(errors.New("gone"), true)
		}
	default:
		c.e.came <- struct{}{}
		<-c.e.refuse
	}
	return errors.New("not you")
}

// A request is answered once if its server refuses initialize, and ends in that moment.
func TestHandshakeRefusedAtEnd(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		h := &holdfast{t: t, more: make(chan struct{})}
		e := &ending{newScript(t, backend.Legacy), h, make(chan struct{}), make(chan struct{}), own}
		h.conn = mcptest.Must(New(e, quiet).Open(t.Context(), backend.Start{Session: "s", Revision: protocol.V20260728}, e))(t)
		refused := h.deliverLater(&call{"refused"}, modernRequest("1", "tools/list", "", ""))
		<-e.came
		h.deliver(&call{"a"}, modernRequest("2", "tools/list", "", ""))
		if own {
			h.deliver(nil, `{"jsonrpc":"2.0","id":"own","method":"tools/list"}`)
		}
		close(e.refuse)
		if <-refused == nil {
			t.Error("the first delivery was taken")
		}
		if own {
			h.expect(nil, `{"jsonrpc":"2.0","id":"own","error":{"code":-32000,"message":"tools/list was not delivered: not you"}}`)
			if h.next().closed == nil {
				t.Error("not closed")
			}
		}
		if got := h.next(); string(got.m.ID) != "2" || got.m.Error == nil {
			t.Errorf("own %v: the client is told %s", own, got.m.Raw)
		}
		mcptest.Check(t, h.conn.Close())
		if !own && h.next().closed == nil {
			t.Error("not closed")
		}
		h.quiet()
	}
}

func TestNotTaken(t *testing.T) {
	t.Parallel()
	s := newScript(t, backend.Legacy)
	h := converse(t, New(s, quiet), protocol.V20260728)
	s.refuse = errors.New("full")
	in := backend.Inbound{Message: newRequest([]byte("1"), "tools/list", nil), Call: &call{"a"}}
	if err := h.conn.Deliver(in); !errors.Is(err, s.refuse) {
		t.Errorf("not initialized: %v", err)
	}
	s.refuse, s.answer = nil, initialize
	h.deliver(&call{"d"}, modernRequest("0", "server/discover", "", ""))
	h.next()
	for { // until the outbox is empty
		s.mu.Lock()
		s.refuse = errors.New("full")
		s.mu.Unlock()
		if err := h.conn.Deliver(in); errors.Is(err, s.refuse) {
			break
		}
		h.next()
	}
	if c := h.conn.(*legacyServer); len(c.inFlight) != 0 {
		t.Errorf("in flight: %v", c.inFlight)
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	h, s := modernConversation(t)
	for _, test := range []struct{ request, heard, answer, said string }{
		{
			modernRequest("1", "tools/list", "", `"traceparent":"00-1"`), `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"traceparent":"00-1"}}}`,
			`"result":{"tools":[ {"name":"\u00e9"} ]}`, `"result":{"tools":[ {"name":"\u00e9"} ],"resultType":"complete","ttlMs":0,"cacheScope":"private",` + info + `}`,
		},
		{
			modernRequest(`"x"`, "tools/call", `"name":"a","arguments":{"_meta":1, "b" : 1.0}`, ""),
			`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"a","arguments":{"_meta":1, "b" : 1.0}}}`,
			`"result":{"_meta":{"own":1},"resultType":"task","content":[]}`,
			`"result":{"_meta":{"own":1,"io.modelcontextprotocol/serverInfo":{"name":"s","version":"2"}},"resultType":"complete","content":[]}`,
		},
		{
			modernRequest("2", "resources/read", `"uri":"file:///a"`, ""), `{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"file:///a"}}`,
			`"error":{"code":-32002,"message":"none"}`, `"error":{"code":-32602,"message":"none","data":{"uri":"file:///a"}}`,
		},
		{
			modernRequest("3", "resources/read", `"uri":"file:///a"`, ""), `{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"file:///a"}}`,
			`"error":{"code":-32002,"message":"none","data":"x"}`, `"error":{"code":-32602,"message":"none","data":{"uri":"file:///a"}}`,
		},
		{
			modernRequest("4", "no/such", "", ""), `{"jsonrpc":"2.0","id":4,"method":"no/such","params":{}}`,
			`"error":{"code":-32601,"message":"what?","data":[1]}`, `"error":{"code":-32601,"message":"what?","data":[1]}`,
		},
		{
			modernRequest("5", "completion/complete", "", ""), `{"jsonrpc":"2.0","id":5,"method":"completion/complete","params":{}}`,
			`"result":{}`, `"result":{"resultType":"complete",` + info + `}`,
		},
	} {
		c := &call{test.request}
		h.deliver(c, test.request)
		id := s.hears(test.heard)
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, id, test.answer))
		h.expect(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, id, test.said))
	}
	for _, method := range []string{"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/get"} {
		c := &call{method}
		h.deliver(c, modernRequest("9", method, "", ""))
		h.expect(c, `{"jsonrpc":"2.0","id":9,"error":{"code":-32601,"message":"method not found: revision 2026-07-28 has no `+method+`"}}`)
	}
}

// Clients that share a conversation may use the same progress token.
func TestProgress(t *testing.T) {
	t.Parallel()
	h, s := modernConversation(t)
	a, b := &call{"a"}, &call{"b"}
	h.deliver(a, modernRequest("1", "tools/call", "", `"progressToken":"p"`))
	h.deliver(b, modernRequest("2", "tools/call", "", `"progressToken":"p"`))
	s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`)
	s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"progressToken":2}}}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":2}}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":5}}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":3,"progress":5}}`)
	h.expect(b, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":"p"}}`)
	h.expect(a, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":5}}`)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"r"}}`)
	s.hears(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"r"}}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":5}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}`)
}

// If a server answers logging/setLevel before its Deliver returns, it gets the waiting
// request once.
func TestLogLevelAtOnce(t *testing.T) {
	t.Parallel()
	h, s := modernTalk(t, func(s *script, in backend.Inbound) bool {
		if in.Method == "logging/setLevel" {
			s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, in.ID))
		}
		return in.Method == "logging/setLevel" || initialize(s, in)
	})
	a := &call{"a"}
	h.deliver(a, modernRequest("1", "tools/call", "", `"io.modelcontextprotocol/logLevel":"info"`))
	s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`)
	h.deliver(a, modernRequest("2", "tools/list", "", ""))
	s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`)
}

func TestLogLevel(t *testing.T) {
	t.Parallel()
	h, s := modernConversation(t)
	a, b, c := &call{"a"}, &call{"b"}, &call{"c"}
	level := func(l string) string { return `"io.modelcontextprotocol/logLevel":"` + l + `"` }
	message := func(l string) string {
		return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + l + `","data":1}}`
	}
	setLevel := func(l string) string {
		return `{"jsonrpc":"2.0","id":ID,"method":"logging/setLevel","params":{"level":"` + l + `"}}`
	}
	h.deliver(c, modernRequest("1", "tools/call", "", ""))
	s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`)
	s.say(nil, message("emergency"))
	h.deliver(a, modernRequest("2", "tools/call", "", level("warning")))
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, s.hears(setLevel("warning"))))
	s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{}}`)
	s.say(nil, message("info"))
	s.say(nil, message("warning"))
	h.expect(a, message("warning"))
	h.deliver(b, modernRequest("3", "tools/call", "", level("info")))
	id := s.hears(setLevel("info"))
	h.deliver(b, modernRequest("30", "tools/call", "", level("warning"))) // waits for the answer, too
	h.deliver(b, modernRequest("31", "tools/call", "", level("info")))
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":31}}`) // the server does not have this request
	h.deliver(c, modernRequest("32", "tools/list", "", ""))
	s.hears(`{"jsonrpc":"2.0","id":32,"method":"tools/list","params":{}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"no"}}`, id))
	s.hears(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{}}`)
	s.hears(`{"jsonrpc":"2.0","id":30,"method":"tools/call","params":{}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":30,"result":{}}`)
	h.next()
	s.say(nil, message("info"))
	h.expect(b, message("info"))
	s.say(a, message("error"))
	h.expect(a, message("error"))
	s.say(c, message("error"))
	s.say(nil, message("error"))
	for range 2 { // in any order
		if got := h.next(); got.call == c {
			t.Error("a request that wants no messages got one")
		}
	}
	h.deliver(c, modernRequest("4", "tools/call", "", level("loud")))
	h.expect(c, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"io.modelcontextprotocol/logLevel is no log level: \"loud\""}}`)
	h.deliver(c, modernRequest("5", "tools/call", "", level("info"))) // the server has this level already
	s.hears(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{}}`)
}

// A request that waits until its server knows the level has not begun if the server ends.
func TestEndsAsLevelIsSet(t *testing.T) {
	t.Parallel()
	h, s := modernConversation(t)
	a := &call{"a"}
	h.deliver(a, modernRequest("1", "tools/call", "", `"io.modelcontextprotocol/logLevel":"info"`))
	s.hears(`{"jsonrpc":"2.0","id":ID,"method":"logging/setLevel","params":{"level":"info"}}`)
	s.sink.Closed(errors.New("gone"), true)
	h.expect(a, `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"tools/call was not delivered: gone"}}`)
	if got := h.next(); got.closed == nil {
		t.Errorf("not closed: %s", got.m.Raw)
	}
}

// Over HTTP the response to a request may overtake a log message, as the response has a stream of its own.
func TestLogAfterResponse(t *testing.T) {
	t.Parallel()
	h, s := modernTalk(t, func(s *script, in backend.Inbound) bool {
		if in.Method == protocol.MethodSetLevel {
			s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, in.ID))
			return true
		}
		return initialize(s, in)
	})
	a, b := &call{"a"}, &call{"b"}
	log := func(level string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":%q,"data":"x"}}`, level)
	}
	h.deliver(a, modernRequest("1", "tools/call", "", `"io.modelcontextprotocol/logLevel":"warning"`))
	s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`)
	h.deliver(b, modernRequest("2", "tools/list", "", ""))
	s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":1,"result":{"again":true}}`)
	s.say(nil, log("info"))
	s.say(nil, log("warning"))
	h.expect(a, log("warning"))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete",`+info+`}}`)
	s.say(nil, log("warning"))
	s.say(nil, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	h.expect(b, `{"jsonrpc":"2.0","id":2,"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private",`+info+`}}`)

	h.deliver(a, modernRequest("3", "tools/call", "", `"io.modelcontextprotocol/logLevel":"warning"`))
	s.hears(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":3,"result":{}}`)
	s.sink.Closed(errors.New("gone"), true) // the response that has come is not lost
	h.expect(a, `{"jsonrpc":"2.0","id":3,"result":{"resultType":"complete",`+info+`}}`)
	h.next()
}

func TestServerRequests(t *testing.T) {
	t.Parallel()
	h, s := modernConversation(t)
	a, b := &call{"a"}, &call{"b"}
	ask := func(id, method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s}}`, id, method, params)
	}
	s.say(nil, ask("1", "elicitation/create", ""))
	s.hears(`{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"elicitation/create: no one call in flight that this belongs to, and revision 2026-07-28 asks clients nothing else"}}`)
	h.deliver(b, modernRequest("1", "tools/list", "", ""))
	s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`)
	h.deliver(a, modernRequest("2", "tools/call", "", ""))
	s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{}}`)
	s.say(nil, ask(`"q"`, "elicitation/create", `"message":"?"`))
	h.expect(a, ask(`"q"`, "elicitation/create", `"message":"?"`))
	h.deliver(nil, `{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}`)
	s.hears(`{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}`)
	h.expect(a, `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}`)
	h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}`)

	for method, want := range map[string]string{
		"sampling/createMessage": `-32601,"message":"sampling/createMessage: the client has not declared sampling"`,
		"other/method":           `-32601,"message":"other/method: revision 2026-07-28 has no such request to a client"`,
	} {
		s.say(nil, ask("7", method, ""))
		s.hears(`{"jsonrpc":"2.0","id":7,"error":{"code":` + want + `}}`)
	}
	s.say(nil, ask("8", "ping", ""))
	s.hears(`{"jsonrpc":"2.0","id":8,"result":{}}`)

	s.say(a, ask("9", "roots/list", ""))
	h.expect(a, ask("9", "roots/list", ""))
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/x"}`)
	h.expect(a, `{"jsonrpc":"2.0","method":"notifications/x"}`)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	s.hears(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	s.say(nil, ask("10", "roots/list", ""))
	s.hears(`{"jsonrpc":"2.0","id":10,"error":{"code":-32600,"message":"roots/list: no one call in flight that this belongs to, and revision 2026-07-28 asks clients nothing else"}}`)
}

func TestMayAsk(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		client, method, params string
		code                   int
	}{
		{`{}`, "elicitation/create", `{}`, -32601},
		{`{"elicitation":{}}`, "elicitation/create", `{}`, 0},
		{`{"elicitation":{}}`, "elicitation/create", `{"mode":"form"}`, 0},
		{`{"elicitation":{}}`, "elicitation/create", `{"mode":"url"}`, -32602},
		{`{"elicitation":{"url":{}}}`, "elicitation/create", `{"mode":"url"}`, 0},
		{`{"elicitation":{"url":{}}}`, "elicitation/create", `{}`, -32602},
		{`{"elicitation":{"url":{},"form":{}}}`, "elicitation/create", `{}`, 0},
		{`{"sampling":{}}`, "sampling/createMessage", `{}`, 0},
		{`{"sampling":{}}`, "sampling/createMessage", `{"tools":[]}`, -32602},
		{`{"sampling":{"tools":{}}}`, "sampling/createMessage", `{"tools":[]}`, 0},
		{`{"roots":{}}`, "roots/list", `{}`, 0},
		{``, "roots/list", `{}`, -32601},
	} {
		_, err := protocol.MayAsk([]byte(test.client), test.method, []byte(test.params))
		if (err == nil) != (test.code == 0) || err != nil && err.Code != test.code {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

package translate

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// discoverable is the result of the tests' modern server for server/discover.
const discoverable = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},` +
	`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"2"}},"instructions":"be kind","ttlMs":0,"cacheScope":"private"}`

// theClient is the _meta of a modern request on behalf of the tests' legacy client.
const theClient = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"l","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}`

const initializeRequest = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{},"tasks":{}},"clientInfo":{"name":"l","version":"1"}}}`

const initializeResult = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},` +
	`"serverInfo":{"name":"s","version":"2"},"instructions":"be kind"}}`

const initializedNotice = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// listens is a subscriptions/listen as the server gets it.
func listens(filter string) string {
	return `{"jsonrpc":"2.0","id":ID,"method":"subscriptions/listen","params":{"notifications":` + filter + `,"_meta":{` + theClient + `}}}`
}

// legacyConversation returns a conversation with a modern server, without notifications/initialized.
func legacyConversation(t *testing.T) (*holdfast, *script) {
	t.Helper()
	s := newScript(t, backend.Unknown)
	b := New(s, quiet)
	b.(*translator).speaks.learn(no, yes)
	h := converse(t, b, "")
	a := &call{"initialize"}
	h.deliver(a, initializeRequest)
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"server/discover","params":{"_meta":{` + theClient + `}}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, discoverable))
	h.expect(a, initializeResult)
	t.Cleanup(s.untold)
	return h, s
}

func TestLegacyRequests(t *testing.T) {
	t.Parallel()
	h, s := legacyConversation(t)
	request := func(method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s}}`, method, params)
	}
	for _, test := range []struct{ method, params, heard, answer, said string }{
		{
			"tools/list", "", `"_meta":{` + theClient + `}`,
			`"result":{"tools":[ 1 ],"resultType":"complete","ttlMs":5,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{}}}`, `"result":{"tools":[ 1 ]}`,
		},
		{
			"tools/call", `"name":"a","_meta":{"progressToken":"p"}`, `"name":"a","_meta":{` + theClient + `,"progressToken":"p"}`,
			`"result":{"content":[],"ttlMs":5,"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{},"x":1}}`, `"result":{"content":[],"ttlMs":5,"_meta":{"x":1}}`,
		},
		{
			"resources/read", `"uri":"r:/1"`, `"uri":"r:/1","_meta":{` + theClient + `}`,
			`"error":{"code":-32602,"message":"none","data":{"uri":"r:/1"}}`, `"error":{"code":-32002,"message":"none","data":{"uri":"r:/1"}}`,
		},
		{
			"resources/read", `"uri":1`, `"uri":1,"_meta":{` + theClient + `}`,
			`"error":{"code":-32602,"message":"uri?"}`, `"error":{"code":-32602,"message":"uri?"}`,
		},
		{
			"tools/call", ``, `"_meta":{` + theClient + `}`, `"result":{"resultType":"task","taskId":"t"}`,
			`"error":{"code":-32000,"message":"tools/call: the server's result is of type \"task\", which revisions up to 2025-11-25 do not have"}`,
		},
	} {
		c := &call{test.method}
		h.deliver(c, request(test.method, test.params))
		s.hears(request(test.method, test.heard))
		s.say(nil, `{"jsonrpc":"2.0","id":1,`+test.answer+`}`)
		h.expect(c, `{"jsonrpc":"2.0","id":1,`+test.said+`}`)
	}
	a := &call{"a"}
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	h.deliver(a, request("logging/setLevel", `"level":"loud"`))
	if got := h.next(); string(jsonrpc.Field(got.m.Error, "code")) != "-32602" {
		t.Errorf("a wrong level: %s", got.m.Raw)
	}
	h.deliver(a, request("logging/setLevel", `"level":"info"`))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	h.deliver(a, `{"jsonrpc":"2.0","id":2,"method":"tools/call"}`)
	s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{` + theClient + `,"io.modelcontextprotocol/logLevel":"info"}}}`)
	message := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`
	s.say(a, message)
	h.expect(a, message)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"r"}}`)
	s.hears(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"r"}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":2,"method":"roots/list"}`)
	s.hears(`{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"revision 2026-07-28 has no requests to a client"}}`)
}

// If the server requires input, Holdfast repeats the request, until the server has its input.
func TestRounds(t *testing.T) {
	t.Parallel()
	h, s := legacyConversation(t)
	a := &call{"a"}
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n"}}`)
	s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n","_meta":{` + theClient + `}}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","requestState":"st\u0061te","inputRequests":{`+
		`"who":{"method":"elicitation/create","params":{"message":"?"}},"go":{"method":"elicitation/create","params":{"mode":"url","url":"u:"}}}}}`)
	who, url := h.next(), h.next()
	if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"message":"?"}}`, who.m.ID); string(who.m.Raw) != want || who.call != a {
		t.Errorf("asked %s", who.m.Raw)
	}
	if want := fmt.Sprintf(`{"mode":"url","url":"u:","elicitationId":"%s"}`, url.m.ID); string(url.m.Params) != want || url.call != a {
		t.Errorf("asked %s", url.m.Raw)
	}
	h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, url.m.ID))
	s.untold()
	h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"n":1}}}`, who.m.ID))
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"n","_meta":{` + theClient + `},` +
		`"inputResponses":{"go":{"action":"accept"},"who":{"action":"accept","content":{"n":1}}},"requestState":"st\u0061te"}}`)
	if string(id) == "1" {
		t.Error("the same id again")
	}

	// A state alone: the request is repeated without any input of the client.
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","requestState":"2"}}`, id))
	id = s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"n","_meta":{` + theClient + `},"requestState":"2"}}`)
	h.deliver(nil, `{"jsonrpc":"2.0","id":99,"result":{}}`) // answers no request
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","content":[]}}`, id))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
}

// The progress of a request grows, although each round of the server counts from the start.
func TestRoundsProgress(t *testing.T) {
	t.Parallel()
	h, s := legacyConversation(t)
	a := &call{"a"}
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n","_meta":{"progressToken":"p"}}}`)
	s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n","_meta":{` + theClient + `,"progressToken":"p"}}}`)
	says := func(token string, value float64, told bool) {
		text := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%q,"progress":%v}}`, token, value)
		s.say(a, text)
		if told {
			h.expect(a, text)
		}
	}
	says("p", 1, true)
	says("p", 2.5, true)
	s.say(nil, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","requestState":"2"}}`)
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"n","_meta":{` + theClient + `,"progressToken":"p"},"requestState":"2"}}`)
	says("p", 1, false)
	says("p", 2.5, false)
	says("other", 1, true)
	says("p", 3, true)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","content":[]}}`, id))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
	if left := h.conn.(*modernServer).tokens; len(left) != 0 {
		t.Errorf("tokens are kept: %v", left)
	}
}

func TestRoundsEnd(t *testing.T) {
	t.Parallel()
	h, s := legacyConversation(t)
	a := &call{"a"}
	begin := func() (question said) {
		t.Helper()
		h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"prompts/get"}`)
		s.hears(`{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"_meta":{` + theClient + `}}}`)
		s.say(nil, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"q":{"method":"roots/list"}}}}`)
		return h.next()
	}
	q := begin()
	h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no"}}`, q.m.ID))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"prompts/get: the client could not answer the server's question \"q\": no"}}`)

	q = begin()
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`) // the server has no request to cancel
	h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, q.m.ID))

	q = begin()
	h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, q.m.ID))
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"prompts/get","params":{"_meta":{` + theClient + `},"inputResponses":{"q":{"roots":[]}}}}`)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	s.hears(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id))

	q = begin()
	for range mostRounds {
		h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, q.m.ID))
		in := <-s.heard
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"q":{"method":"roots/list"}}}}`, in.ID))
		q = h.next()
	}
	if !strings.Contains(string(q.m.Error), "again and again") {
		t.Errorf("after %d rounds: %s", mostRounds, q.m.Raw)
	}
	if c := h.conn.(*modernServer); len(c.inFlight)+len(c.questions)+len(c.timers) != 0 {
		t.Errorf("kept: %+v", c)
	}
}

// A result with more input requests than a client may get at once ends its call.
func TestManyQuestions(t *testing.T) {
	t.Parallel()
	h, s := legacyConversation(t)
	a := &call{"a"}
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"prompts/get"}`)
	s.hears(`{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"_meta":{` + theClient + `}}}`)
	var questions strings.Builder
	for i := range mostQuestions + 1 {
		fmt.Fprintf(&questions, `"q%d":{"method":"roots/list"},`, i)
	}
	s.say(nil, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{`+strings.TrimSuffix(questions.String(), ",")+`}}}`)
	if said := h.next(); !strings.Contains(string(said.m.Error), "more than 1000 questions") {
		t.Errorf("the client hears %.200s", said.m.Raw)
	}
}

func TestLegacySubscriptions(t *testing.T) {
	t.Parallel()
	h, s := legacyConversation(t)
	acknowledge := func(id []byte, filter string) {
		s.say(nil, acknowledged(string(id), filter))
	}
	tag := func(id []byte) string { return `"_meta":{"io.modelcontextprotocol/subscriptionId":` + string(id) + `}` }
	gone := func(id []byte) {
		s.hears(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id))
	}
	h.deliver(nil, initializedNotice)
	lists := s.hears(listens(`{"toolsListChanged":true}`))
	acknowledge(lists, `{"toolsListChanged":true}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{`+tag(lists)+`}}`)
	h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{}}`)

	a, b := &call{"a"}, &call{"b"}
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"r:/1"}}`)
	one := s.hears(listens(`{"toolsListChanged":true,"resourceSubscriptions":["r:/1"]}`))
	h.deliver(b, `{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"r:/2"}}`)
	s.untold()
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{`+tag(lists)+`}}`) // the old listen is still valid
	h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{}}`)
	acknowledge(one, `{"toolsListChanged":true,"resourceSubscriptions":["r:/1"]}`)
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	gone(lists)
	two := s.hears(listens(`{"toolsListChanged":true,"resourceSubscriptions":["r:/1","r:/2"]}`))
	acknowledge(two, `{"toolsListChanged":true,"resourceSubscriptions":["r:/1"]}`)
	h.expect(b, `{"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"resources/subscribe: the server does not tell of changes of r:/2"}}`)
	gone(one)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"r:/1",`+tag(two)+`}}`)
	h.expect(nil, updated("r:/1", ""))
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"r:/1",`+tag(one)+`}}`)

	h.deliver(a, `{"jsonrpc":"2.0","id":3,"method":"resources/unsubscribe","params":{"uri":"r:/1"}}`)
	h.expect(a, `{"jsonrpc":"2.0","id":3,"result":{}}`)
	three := s.hears(listens(`{"toolsListChanged":true}`))
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no more"}}`, three))

	h.deliver(a, `{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"r:/4"}}`)
	four := s.hears(listens(`{"toolsListChanged":true,"resourceSubscriptions":["r:/4"]}`))
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no more"}}`, four))
	h.expect(a, `{"jsonrpc":"2.0","id":4,"error":{"code":-1,"message":"no more"}}`)
}

// If a client unsubscribes from a resource before any listen has it, both of its requests are answered.
func TestUnsubscribedAtOnce(t *testing.T) {
	t.Parallel()
	h, s := legacyConversation(t)
	a := &call{"a"}
	subscribe := func(id int, what, uri string) {
		h.deliver(a, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"resources/%s","params":{"uri":%q}}`, id, what, uri))
	}
	subscribe(1, "subscribe", "r:/1")
	one := s.hears(listens(`{"resourceSubscriptions":["r:/1"]}`))
	subscribe(2, "subscribe", "r:/2")
	subscribe(3, "unsubscribe", "r:/2")
	h.expect(a, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	h.expect(a, `{"jsonrpc":"2.0","id":3,"result":{}}`)
	s.say(nil, acknowledged(string(one), `{"resourceSubscriptions":["r:/1"]}`))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	s.hears(listens(`{"resourceSubscriptions":["r:/1"]}`)) // the wanted changes were others meanwhile
}

// If a server ends a listen, Holdfast sends it again.
func TestListenTorn(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{
		"result":    `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`,
		"cancelled": `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, s := legacyConversation(t)
			h.deliver(nil, initializedNotice)
			id := s.hears(listens(`{"toolsListChanged":true}`))
			s.say(nil, acknowledged(string(id), `{"toolsListChanged":true}`))
			s.say(nil, fmt.Sprintf(end, id))
			c := h.conn.(*modernServer)
			c.mu.Lock()
			waits := len(c.timers)
			c.mu.Unlock()
			if waits != 1 {
				t.Errorf("%d timers", waits)
			}
			c.renew(backend.Inbound{}) // as after the pause
			s.hears(listens(`{"toolsListChanged":true}`))
		})
	}
}

// A server that has ended a listen, and is away when it is asked again, is asked until it is back.
func TestListenTornForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, s := legacyConversation(t)
		h.deliver(nil, initializedNotice)
		id := s.hears(listens(`{"toolsListChanged":true}`))
		s.say(nil, acknowledged(string(id), `{"toolsListChanged":true}`))
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, id))
		for i := range 3 {
			id = s.hears(listens(`{"toolsListChanged":true}`))
			if i == 1 {
				time.Sleep(subscribeTimeout)
				s.hears(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id))
				continue
			}
			s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"out of reach"}}`, id))
		}
		id = s.hears(listens(`{"toolsListChanged":true}`))
		s.say(nil, acknowledged(string(id), `{"toolsListChanged":true}`))
		h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		s.say(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":`+string(id)+`}}}`)
		h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{}}`)
	})
}

// However often listens end before the next one is due, one timer renews them.
func TestListenTornTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, s := legacyConversation(t)
		c := h.conn.(*modernServer)
		h.deliver(nil, initializedNotice)
		const end, lists, both = `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, `{"toolsListChanged":true}`, `{"toolsListChanged":true,"resourceSubscriptions":["r:/1"]}`
		id := s.hears(listens(lists))
		s.say(nil, acknowledged(string(id), lists))
		s.say(nil, fmt.Sprintf(end, id))
		a := &call{"a"}
		h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"r:/1"}}`)
		id = s.hears(listens(both))
		s.say(nil, acknowledged(string(id), both))
		h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		s.say(nil, fmt.Sprintf(end, id))
		c.mu.Lock()
		waits := len(c.timers)
		c.mu.Unlock()
		if waits != 1 {
			t.Errorf("%d timers", waits)
		}
		id = s.hears(listens(both))
		s.say(nil, acknowledged(string(id), both))
		h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		h.expect(nil, updated("r:/1", ""))
		time.Sleep(time.Hour)
		synctest.Wait()
	})
}

// The log has each reason for which a server no longer tells of changes once, until it does again.
func TestListenRefusedForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, s := legacyConversation(t)
		log := new(mcptest.Log)
		h.conn.(*modernServer).log = slog.New(slog.NewTextHandler(log, nil))
		h.deliver(nil, initializedNotice)
		const ends = `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`
		hears := func() []byte { return s.hears(listens(`{"toolsListChanged":true}`)) }
		acknowledges := func() (id []byte) {
			id = hears()
			s.say(nil, acknowledged(string(id), `{"toolsListChanged":true}`))
			return id
		}
		s.say(nil, fmt.Sprintf(ends, acknowledges()))
		lines := 0
		refuses := func(why string, logged int) {
			t.Helper()
			s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":%q}}`, hears(), why))
			if lines += logged; strings.Count(log.String(), "no longer tells of changes") != lines {
				t.Errorf("%q is logged: %s", why, log.String())
			}
		}
		refuses("away", 1)
		refuses("away", 0)
		refuses("forbidden", 1)
		s.say(nil, fmt.Sprintf(ends, acknowledges()))
		h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		refuses("forbidden", 1)
	})
}

// What may have changed while no listen was heard is told: the lists and resources that the client has listened to before.
func TestListenAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, s := legacyConversation(t)
		h.deliver(nil, initializedNotice)
		s.say(nil, acknowledged(string(s.hears(listens(`{"toolsListChanged":true}`))), `{"toolsListChanged":true}`))
		a := &call{"a"}
		h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"r:/1"}}`)
		const both = `{"toolsListChanged":true,"resourceSubscriptions":["r:/1"]}`
		id := s.hears(listens(both))
		s.say(nil, acknowledged(string(id), both))
		h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		synctest.Wait()
		<-s.heard // the cancellation of the first listen
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, id))
		h.deliver(a, `{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"r:/2"}}`)
		const all = `{"toolsListChanged":true,"resourceSubscriptions":["r:/1","r:/2"]}`
		s.say(nil, acknowledged(string(s.hears(listens(all))), all))
		h.expect(a, `{"jsonrpc":"2.0","id":2,"result":{}}`)
		h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		h.expect(nil, updated("r:/1", ""))
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		for len(s.heard) > 0 {
			<-s.heard
		}
	})
}

// A listen that a modern server does not acknowledge is cancelled: over HTTP each has a connection.
func TestListenNotAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, s := legacyConversation(t)
		c := h.conn.(*modernServer)
		for i := range 3 {
			h.deliver(&call{"a"}, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"resources/subscribe","params":{"uri":"r:/1"}}`, i))
			id := s.hears(listens(`{"resourceSubscriptions":["r:/1"]}`))
			time.Sleep(subscribeTimeout)
			synctest.Wait()
			if got := h.next(); got.m.Error == nil {
				t.Errorf("the client is told %s", got.m.Raw)
			}
			s.hears(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id))
			s.untold()
		}
		c.own.mu.Lock()
		defer c.own.mu.Unlock()
		if n := len(c.own.waiting); n != 0 {
			t.Errorf("%d requests are kept", n)
		}
	})
}

func TestDiscoverFails(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`"error":{"code":-32601,"message":"what?"}`:     `"error":{"code":-32601,"message":"what?"}`,
		`"result":{"supportedVersions":["2027-01-01"]}`: `"error":{"code":-32602,"message":"the server does not speak revision 2026-07-28, but [\"2027-01-01\"]"}`,
	} {
		s := newScript(t, backend.Unknown)
		b := New(s, quiet)
		b.(*translator).speaks.learn(no, yes)
		h := converse(t, b, "")
		if start := <-s.opened; start.Revision != protocol.V20260728 {
			t.Errorf("opened with %q", start.Revision)
		}
		a := &call{"a"}
		h.deliver(a, initializeRequest)
		in := <-s.heard
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, in.ID, answer))
		h.expect(a, `{"jsonrpc":"2.0","id":0,`+want+`}`)
	}
}

func TestLegacyNotTaken(t *testing.T) {
	t.Parallel()
	h, s := legacyConversation(t)
	s.mu.Lock()
	s.refuse = errors.New("full")
	s.mu.Unlock()
	in := backend.Inbound{Message: newRequest([]byte("1"), "tools/list", nil), Call: &call{"a"}}
	if err := h.conn.Deliver(in); !errors.Is(err, s.refuse) {
		t.Errorf("got %v", err)
	}
	s.sink.Closed(errors.New("over"), true)
	if got := h.next(); got.closed == nil {
		t.Errorf("not closed: %s", got.m.Raw)
	}
	if err := h.conn.Deliver(in); !errors.Is(err, errOver) {
		t.Errorf("got %v", err)
	}
}

// A server that told of changes, and agrees to tell of none when it is asked again, is asked until it does. The log says so once.
func TestListenAgreesToNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, s := legacyConversation(t)
		log := new(mcptest.Log)
		h.conn.(*modernServer).log = slog.New(slog.NewTextHandler(log, nil))
		h.deliver(nil, initializedNotice)
		agrees := func(to string) []byte {
			id := s.hears(listens(`{"toolsListChanged":true}`))
			s.say(nil, acknowledged(string(id), to))
			return id
		}
		withdraws := func(id []byte) {
			s.hears(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id))
		}
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, agrees(`{"toolsListChanged":true}`)))
		first := agrees(`{}`)
		second := agrees(`{}`)
		withdraws(first)
		agrees(`{"toolsListChanged":true}`)
		withdraws(second)
		h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		if n := strings.Count(log.String(), "agrees to tell of none"); n != 1 {
			t.Errorf("that is logged %d times", n)
		}
		time.Sleep(time.Hour) // no other listen takes its place
		synctest.Wait()
	})
}

package translate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A server of 2025-11-25 answers with an error if its client must first visit a URL.
func TestURLRequired(t *testing.T) {
	t.Parallel()
	const required = `"error":{"code":-32042,"message":"sign in","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"u:","message":"m"}]}}`
	h, s := modernConversation(t)
	a := &call{"a"}
	h.deliver(a, modernRequest("1", "tools/call", "", ""))
	s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":1,`+required+`}`)
	if got := h.next(); string(jsonrpc.Field(got.m.Error, "code")) != "-32021" {
		t.Errorf("without the capability: %s", got.m.Raw)
	}

	s = newScript(t, backend.Legacy)
	s.answer = initialize
	h = converse(t, New(s, quiet), protocol.V20260728)
	request := strings.ReplaceAll(modernRequest("1", "tools/call", `"name":"n"`, `"progressToken":"p"`), `"elicitation":{}`, `"elicitation":{"url":{}}`)
	begin := func() (question said) {
		t.Helper()
		h.deliver(a, request)
		in := <-s.heard
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, in.ID, required))
		question = h.next()
		if question.call != a || question.m.Method != "elicitation/create" || string(question.m.Params) != `{"mode":"url","elicitationId":"e","url":"u:","message":"m"}` {
			t.Errorf("asked %s", question.m.Raw)
		}
		return question
	}
	answer := func(q said, action string) {
		h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":%q}}`, q.m.ID, action))
	}
	answer(begin(), "accept")
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"n","_meta":{"progressToken":1}}}`)
	if string(id) == "1" {
		t.Error("the same id again")
	}
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
	h.expect(a, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete",`+info+`}}`)

	answer(begin(), "decline")
	h.expect(a, `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"tools/call: the server wants its client to visit a URL, and the client does not"}}`)

	cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`
	q := begin()
	h.deliver(nil, fmt.Sprintf(cancel, "1")) // the server has no request to cancel
	answer(q, "accept")
	s.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, q.m.ID)) // like any late answer

	answer(begin(), "accept")
	again := <-s.heard
	h.deliver(nil, fmt.Sprintf(cancel, "1"))
	s.hears(fmt.Sprintf(cancel, again.ID))

	q = begin()
	for range mostRounds {
		answer(q, "accept")
		s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, (<-s.heard).ID, required))
		q = h.next()
	}
	if !strings.Contains(string(q.m.Error), "sign in") {
		t.Errorf("after %d rounds: %s", mostRounds, q.m.Raw)
	}

	answer(begin(), "accept")
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, (<-s.heard).ID, required))
	h.next()
	s.sink.Closed(errors.New("gone"), true) // the server has no request
	h.expect(a, `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"tools/call was not delivered: gone"}}`)
	if h.next().closed == nil {
		t.Error("not closed")
	}
	if c := h.conn.(*legacyServer); len(c.inFlight)+len(c.visits)+len(c.tokens) != 0 {
		t.Errorf("kept: %v %v %v", c.inFlight, c.visits, c.tokens)
	}
}

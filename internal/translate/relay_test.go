package translate

import (
	"errors"
	"fmt"
	"testing"

	"holdfast/backend"
	"holdfast/internal/protocol"
)

// A pipe is a script that counts as a process.
type pipe struct{ *script }

func (pipe) Processes() bool { return true }

// TestRelay has clients share the one connection of a modern server: each client gets its own messages.
func TestRelay(t *testing.T) {
	t.Parallel()
	s := newScript(t, backend.Unknown)
	tr := New(pipe{s}, quiet).(*translator)
	for i, known := range []bool{false, true} { // the first conversation discovers the era
		h := converse(t, tr, protocol.V20260728)
		a, b, l := &call{"a"}, &call{"b"}, &call{"l"}
		first := modernRequest("1", "tools/call", "", `"progressToken":"p","io.modelcontextprotocol/logLevel":"warning"`)
		if known {
			h.deliver(a, first)
		} else {
			done := make(chan struct{})
			go func() {
				defer close(done)
				h.deliver(a, first)
			}()
			id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"server/discover","params":{"_meta":{` + aClient + `}}}`)
			s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"]}}`, id))
			<-done
		}
		s.hears(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{` + aClient + `,"progressToken":1,"io.modelcontextprotocol/logLevel":"warning"}}}`)
		h.deliver(b, modernRequest("2", "tools/call", "", `"progressToken":"p"`))
		s.hears(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{` + aClient + `,"progressToken":2}}}`)
		h.deliver(l, modernRequest("3", "subscriptions/listen", "", ""))
		s.hears(`{"jsonrpc":"2.0","id":3,"method":"subscriptions/listen","params":{"_meta":{` + aClient + `}}}`)

		progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`
		s.say(nil, fmt.Sprintf(progress, "2"))
		h.expect(b, fmt.Sprintf(progress, `"p"`))
		s.say(nil, fmt.Sprintf(progress, "9")) // a token of no request
		message := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1}}`
		s.say(nil, message)
		h.expect(a, message)
		changed := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%d}}}`
		s.say(nil, fmt.Sprintf(changed, 3))
		h.expect(l, fmt.Sprintf(changed, 3))
		s.say(nil, fmt.Sprintf(changed, 9))
		s.say(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`) // the server ends the listen
		h.expect(l, `{"jsonrpc":"2.0","id":3,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":3},"resultType":"complete"}}`)
		s.say(nil, fmt.Sprintf(changed, 3))

		s.say(nil, `{"jsonrpc":"2.0","id":2,"result":{}}`)
		h.expect(nil, `{"jsonrpc":"2.0","id":2,"result":{}}`)
		s.say(nil, fmt.Sprintf(progress, "2"))
		h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		s.hears(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		s.say(nil, message)
		s.untold()
		if t.Failed() {
			t.Fatalf("in conversation %d", i+1)
		}
	}
}

// A request that has waited for the server's era, and that the server then does not take, is in flight no more: a message that names no
// request belongs to the only other one.
func TestRelayNotTaken(t *testing.T) {
	t.Parallel()
	s := newScript(t, backend.Unknown)
	h := converse(t, New(pipe{s}, quiet), protocol.V20260728)
	first := h.deliverLater(&call{"a"}, modernRequest("1", "tools/call", "", ""))
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"server/discover","params":{"_meta":{` + aClient + `}}}`)
	h.deliver(&call{"b"}, modernRequest("2", "tools/call", "", ""))
	refuse := func(why error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refuse = why
	}
	refuse(errors.New("full"))
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"]}}`, id))
	answers := 1
	if <-first == nil { // it has waited behind the other one
		answers++
	}
	for range answers {
		if got := h.next(); got.m.Error == nil {
			t.Errorf("a client is told %s", got.m.Raw)
		}
	}
	refuse(nil)
	c := &call{"c"}
	h.deliver(c, modernRequest("3", "tools/call", "", ""))
	s.hears(modernRequest("3", "tools/call", "", ""))
	const news = `{"jsonrpc":"2.0","method":"notifications/x","params":{}}`
	s.say(nil, news)
	h.expect(c, news)
}

// A progress token that is null, as some libraries write it for none, is none.
func TestProgressTokenNull(t *testing.T) {
	t.Parallel()
	if m := readMeta([]byte(`{"_meta":{"progressToken":null,"a":1}}`)); m.token != nil {
		t.Errorf("the token is %s", m.token)
	}
}

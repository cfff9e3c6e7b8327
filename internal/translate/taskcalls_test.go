package translate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
)

// needsTasks returns a legacy conversation with a server that has a tool which must be called
// as a task.
func needsTasks(t *testing.T) (*holdfast, *script) {
	t.Helper()
	s := newScript(t, backend.Legacy)
	s.answer = func(s *script, in backend.Inbound) bool {
		switch in.Method {
		case protocol.MethodInitialize:
			s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"requests":{"tools":{"call":{}}}}}}}`, in.ID))
		case protocol.MethodToolsList:
			page := `{"tools":[{"name":"plain"}],"nextCursor":"more"}`
			if strings.Contains(string(in.Params), "more") {
				page = `{"tools":[{"name":"slow","execution":{"taskSupport":"required"}},{"name":"both","execution":{"taskSupport":"optional"}}]}`
			}
			s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, in.ID, page))
		default:
			return false
		}
		return true
	}
	h := converse(t, New(s, quiet), "")
	h.deliver(&call{"i"}, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`)
	h.next()
	t.Cleanup(s.untold)
	return h, s
}

const aTask = `{"taskId":"T","status":%q,"createdAt":"","lastUpdatedAt":"","ttl":null,"pollInterval":1}`

func TestTaskCalls(t *testing.T) {
	t.Parallel()
	h, s := needsTasks(t)
	a, b := &call{"a"}, &call{"b"}
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","_meta":{"progressToken":7}}}`)
	made := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"slow","_meta":{"progressToken":7},"task":{}}}`)
	for id, tool := range map[int]string{2: `"plain"`, 3: `"both"`, 4: `"slow","task":{"ttl":1}`} {
		text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%s}}`, id, tool)
		h.deliver(b, text)
		s.hears(text)
	}
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":`+aTask+`}}`, made, "working"))
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tasks/get","params":{"taskId":"T"}}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/tasks/status","params":`+fmt.Sprintf(aTask, "working")+`}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":`+aTask+`}`, id, "working"))
	id = s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tasks/get","params":{"taskId":"T"}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":`+aTask+`}`, id, "input_required"))
	id = s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tasks/result","params":{"taskId":"T"}}`)
	s.say(nil, `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"T"}}}}`)
	h.expect(a, `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?"}}`)
	h.deliver(nil, `{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}`)
	s.hears(`{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[],"_meta":{"x":1,"io.modelcontextprotocol/related-task":{"taskId":"T"}}}}`, id))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"result":{"content":[],"_meta":{"x":1}}}`)
	s.say(nil, `{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"theirs"}}`)
	h.expect(nil, `{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"theirs"}}`)
}

// Tools that change while they are listed are listed again before the next call.
func TestTaskCallToolsChange(t *testing.T) {
	t.Parallel()
	h, s := needsTasks(t)
	s.mu.Lock()
	s.answer = nil
	s.mu.Unlock()
	const list = `{"jsonrpc":"2.0","id":ID,"method":"tools/list","params":{}}`
	const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	const plain = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"plain"}}`
	a := &call{"a"}
	h.deliver(a, plain)
	id := s.hears(list)
	s.say(nil, changed)
	h.expect(nil, changed)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"plain"}]}}`, id))
	s.hears(plain)
	h.deliver(a, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow"}}`)
	id = s.hears(list)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"slow","execution":{"taskSupport":"required"}}]}}`, id))
	s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"slow","task":{}}}`)
}

// If the task fails, the response to the call is its error.
func TestTaskCallFails(t *testing.T) {
	t.Parallel()
	h, s := needsTasks(t)
	a := &call{"a"}
	const slow = `{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"slow","task":{}}}`
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow"}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"full"}}`, s.hears(slow)))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"full"}}`)
	h.deliver(a, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow"}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":`+aTask+`}}`, s.hears(slow), "failed"))
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tasks/result","params":{"taskId":"T"}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-2,"message":"why"}}`, id))
	h.expect(a, `{"jsonrpc":"2.0","id":2,"error":{"code":-2,"message":"why"}}`)
}

// Calls that wait until the tools are listed have not begun if their server ends: before a page of the list comes, or as they are released.
// They are answered before the session hears of the end, but the one that is being handed over, which the server may have.
func TestTaskCallsEndAsListed(t *testing.T) {
	t.Parallel()
	for _, releasing := range []bool{false, true} {
		h, s := needsTasks(t)
		lists := s.answer
		s.answer = func(s *script, in backend.Inbound) bool { return in.Method != protocol.MethodToolsList && lists(s, in) }
		a, b := &call{"a"}, &call{"b"}
		const refused = `{"jsonrpc":"2.0","id":%d,"error":{"code":-32000,"message":"tools/call was not delivered: gone"}}`
		h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"plain"}}`)
		h.deliver(b, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow"}}`)
		s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tools/list","params":{}}`)
		if releasing {
			c := h.conn.(*taskCaller).calls.Load()
			c.mu.Lock()
			c.releasing = true // as if release had just taken the first call
			c.mu.Unlock()
		}
		s.sink.Closed(errors.New("gone"), true)
		if !releasing {
			h.expect(a, fmt.Sprintf(refused, 1))
		}
		h.expect(b, fmt.Sprintf(refused, 2))
		if h.next().closed == nil {
			t.Error("not closed")
		}
	}
}

// A call that has begun as a task, and whose result cannot be had, has an unknown outcome.
func TestTaskCallLost(t *testing.T) {
	t.Parallel()
	h, s := needsTasks(t)
	a := &call{"a"}
	const slow = `{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"slow","task":{}}}`
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow"}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":`+aTask+`}}`, s.hears(slow), "working"))
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tasks/get","params":{"taskId":"T"}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no such task"}}`, id))
	h.expect(a, `{"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"outcome unknown: the server does not tell of the task: no such task"}}`)
	h.deliver(a, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow"}}`)
	made := s.hears(slow)
	s.mu.Lock()
	s.refuse = errors.New("gone")
	s.mu.Unlock()
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":`+aTask+`}}`, made, "completed"))
	h.expect(a, `{"jsonrpc":"2.0","id":2,"error":{"code":-32010,"message":"outcome unknown: gone"}}`)
}

// A cancellation of the call becomes one of its task, whether or not the task's id is known yet.
func TestTaskCallCancelled(t *testing.T) {
	t.Parallel()
	h, s := needsTasks(t)
	a := &call{"a"}
	const slow = `{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"slow","task":{}}}`
	const cancel = `{"jsonrpc":"2.0","id":ID,"method":"tasks/cancel","params":{"taskId":"T"}}`
	h.deliver(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow"}}`)
	made := s.hears(slow)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":`+aTask+`}}`, made, "working"))
	s.hears(cancel)
	h.deliver(a, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"slow"}}`)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":`+aTask+`}}`, s.hears(slow), "input_required"))
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tasks/result","params":{"taskId":"T"}}`)
	h.deliver(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	s.hears(cancel)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-2,"message":"cancelled"}}`, id))
	const other = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`
	h.deliver(nil, other)
	s.hears(other)
}

// No state is kept of a cancelled call if the server sends nothing more about its task. If a server does not list its tools,
// they are called all the same.
func TestTaskCallNeverAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, s := needsTasks(t)
		const slow = `{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"slow","task":{}}}`
		for i := range 3 {
			h.deliver(&call{"a"}, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"slow"}}`, i))
			made := s.hears(slow)
			if i > 0 {
				s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":`+aTask+`}}`, made, "working"))
				s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tasks/get","params":{"taskId":"T"}}`)
			}
			h.deliver(nil, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, i))
			if i > 0 {
				s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tasks/cancel","params":{"taskId":"T"}}`)
			}
		}
		time.Sleep(answerTimeout)
		synctest.Wait()
		calls := h.conn.(*taskCaller).calls.Load()
		calls.own.mu.Lock()
		n := len(calls.own.waiting)
		calls.own.mu.Unlock()
		if n != 0 {
			t.Errorf("%d requests are kept", n)
		}

		s.mu.Lock()
		s.answer = nil
		s.mu.Unlock()
		s.say(nil, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		h.next()
		const plain = `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"plain"}}`
		h.deliver(&call{"a"}, plain)
		s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tools/list","params":{}}`)
		time.Sleep(answerTimeout)
		s.hears(plain)
	})
}

// The id of a cancelled call may be used again. The server's later messages about the first call
// then do not hide the second call. A third call is refused while the second runs.
func TestTaskCallIDAgain(t *testing.T) {
	t.Parallel()
	h, s := needsTasks(t)
	a, b, c := &call{"a"}, &call{"b"}, &call{"c"}
	const slow = `{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"slow","task":{}}}`
	const again = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow"}}`
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
	h.deliver(a, again)
	first := s.hears(slow)
	h.deliver(nil, cancel)
	h.deliver(b, again)
	second := s.hears(slow)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"full"}}`, first))
	h.deliver(c, again)
	h.expect(c, `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"a request with this id is in flight"}}`)
	h.deliver(nil, cancel)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"task":`+aTask+`}}`, second, "working"))
	s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tasks/cancel","params":{"taskId":"T"}}`)
}

// A cancellation stays behind its call until the tools are listed.
func TestTaskCallCancelledEarly(t *testing.T) {
	t.Parallel()
	s := newScript(t, backend.Legacy)
	s.answer = func(s *script, in backend.Inbound) bool {
		if in.Method == protocol.MethodInitialize {
			s.say(nil, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tasks":{"requests":{"tools":{"call":{}}}}}}}`)
		}
		return in.Method == protocol.MethodInitialize
	}
	h := converse(t, New(s, quiet), "")
	h.deliver(&call{"i"}, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`)
	h.next()
	t.Cleanup(s.untold)
	const plain = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"plain"}}`
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
	h.deliver(&call{"a"}, plain)
	id := s.hears(`{"jsonrpc":"2.0","id":ID,"method":"tools/list","params":{}}`)
	h.deliver(nil, cancel)
	s.say(nil, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"plain"}]}}`, id))
	s.hears(plain)
	s.hears(cancel)
}

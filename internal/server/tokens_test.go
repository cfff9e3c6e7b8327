package server_test

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// TestProgressTokens is progress that a server sends outside its call. With the token of a call in flight, as a number
// or a string, it comes on the call's stream. With the token of a call that has ended, or of none, it is dropped,
// unless it may belong to a task of the server.
func TestProgressTokens(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	get := p.open("GET", "/mcp", "")
	get.head()
	withToken := func(id int, token string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"hold","arguments":{},"_meta":{"progressToken":%s}}}`, id, token)
	}
	for i, c := range []struct{ given, said string }{{`7`, `7`}, {`"a"`, `"a"`}, {`8`, `"8"`}, {`"9"`, `9`}} {
		w := p.open("POST", "/mcp", withToken(i, c.given))
		held := n.release(1)[0]
		progress := func(token string) {
			for _, emit := range []func(jsonrpc.Message){func(m jsonrpc.Message) { held.Sink.Emit(nil, m) }, held.Sink.EmitUnrelated} {
				emit(mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, token, i+1)))
			}
		}
		progress(`"made up"`)
		progress(c.said)
		for range 2 {
			if ev := w.message(); !strings.Contains(string(ev.Data), `"progressToken":`+c.said+`,`) {
				t.Errorf("%s for %s: %s", c.said, c.given, ev.Data)
			}
		}
		held.Result(result("done"))
		if ev := w.message(); !strings.Contains(string(ev.Data), "done") {
			t.Errorf("%s for %s: %s", c.said, c.given, ev.Data)
		}
		progress(c.said)
		progress(`"made up"`)
		p.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"after %d"}}`, i))
		if ev := get.message(); !strings.Contains(string(ev.Data), fmt.Sprint("after ", i)) {
			t.Errorf("%s was told after its call: %s", c.said, ev.Data)
		}
	}
	// Progress without a token belongs to no call. The go-sdk's servers can send it, and the client gets it on the standalone stream.
	p.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"before"}}`)
	get.message()
	w := p.open("POST", "/mcp", withToken(99, `"none"`))
	held := n.release(1)[0]
	for _, params := range []string{`{"progress":1}`, `{"progressToken":null,"progress":1}`} {
		held.Sink.EmitUnrelated(mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/progress","params":` + params + `}`))
		if ev := get.message(); !strings.Contains(string(ev.Data), params) {
			t.Errorf("progress without a token: %s", ev.Data)
		}
	}
	held.Result(result("done"))
	w.message()
	// A call that has become a task of the server itself gets progress after its answer.
	w = p.open("POST", "/mcp", withToken(100, `"task"`))
	held = n.release(1)[0]
	held.Result([]byte(`{"task":{"taskId":"1","status":"working"}}`))
	w.message()
	held.Sink.Emit(nil, mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"task","progress":1}}`))
	if ev := get.message(); !strings.Contains(string(ev.Data), `"progressToken":"task"`) {
		t.Errorf("a task: %s", ev.Data)
	}
}

package server_test

import (
	"testing"
	"testing/synctest"

	"holdfast/jsonrpc"
)

// Each notification on the stream of a listen names the subscription by the listen's id, also if the backend does not
// (2026-07-28, Subscriptions).
func TestModernListenNamesSubscription(t *testing.T) {
	t.Parallel()
	inBubble(t, config{}, func(t *testing.T, b *bubble) {
		b.tools.tells = []string{
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"its own","status":"working"}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b","_meta":{"x":1,"io.modelcontextprotocol/subscriptionId":7}}}`,
		}
		leave, answer := b.begin(wish{method: "subscriptions/listen", params: `{"notifications":{"toolsListChanged":true}}`})
		synctest.Wait()
		leave()
		all := reply{body: (<-answer).body}.events()
		seen := 0
		for _, e := range all {
			if jsonrpc.Field(e.Data, "method") == nil {
				continue
			}
			seen++
			if got := string(jsonrpc.Field(e.Data, "params", "_meta", "io.modelcontextprotocol/subscriptionId")); got != `"c1"` {
				t.Errorf("%s has the subscription %s", e.Data, got)
			}
		}
		if want := 1 + len(b.tools.tells); seen != want {
			t.Errorf("%d notifications, want %d", seen, want)
		}
	})
}

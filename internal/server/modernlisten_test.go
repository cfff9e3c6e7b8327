package server_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// While the store is away, a listen reads one of its tasks at a time, and more and more rarely. It hears how all have ended once the store is back.
func TestTaskListenStoreAwayForLong(t *testing.T) {
	t.Parallel()
	var store endlessStore
	c := tasksConfig()
	c.store = store.over
	inBubble(t, c, func(t *testing.T, b *bubble) {
		const n = 10
		var ids []string
		for i := range n {
			made := b.do(wish{params: tool("hold", fmt.Sprint(i)), caps: aware}).response()
			ids = append(ids, string(jsonrpc.Field([]byte(made), "result", "taskId")))
		}
		_, answer := b.begin(wish{method: "subscriptions/listen", params: `{"notifications":{"taskIds":[` + strings.Join(ids, ",") + `]}}`, caps: aware})
		synctest.Wait()
		store.on.Store(true)
		for i := range n {
			b.tools.release(fmt.Sprint(i))
		}
		synctest.Wait()
		before := store.fails.Load()
		time.Sleep(time.Minute)
		if reads := store.fails.Load() - before; reads < 2 || reads > 20 { // each ping of the stream has it read, too
			t.Errorf("the store is asked %d times in a minute", reads)
		}
		store.on.Store(false)
		if told := string((<-answer).body); strings.Count(told, `"completed"`) != n {
			t.Errorf("the listen is told %s", told)
		}
	})
}

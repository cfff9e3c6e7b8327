package server_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/server"
	"holdfast/jsonrpc"
)

// TestModernLeft has clients that leave before they are answered: that cancels their calls
// (2026-07-28, Cancellation).
func TestModernLeft(t *testing.T) {
	t.Parallel()
	inBubble(t, config{server: server.Options{KeepAlive: time.Second}}, func(t *testing.T, b *bubble) {
		for what, after := range map[string]time.Duration{"light": 0, "in a stream": 10 * time.Second} {
			leave, answer := b.begin(wish{params: tool("hold", what)})
			synctest.Wait()
			time.Sleep(after)
			if b.tools.count(&b.tools.cancelled, what) != 0 {
				t.Errorf("%s: cancelled while its client is there", what)
			}
			leave()
			if is := <-answer; is.response() != "" && len(is.body) > 0 {
				t.Errorf("%s: %d %s", what, is.status, is.body)
			}
			synctest.Wait()
			if got := b.tools.count(&b.tools.cancelled, what); got != 1 || b.sessions.Calls() != 0 {
				t.Errorf("%s: the backend was told %d times, and %d calls are in flight", what, got, b.sessions.Calls())
			}
		}
		leave, _ := b.begin(wish{params: tool("who", "answered")})
		synctest.Wait()
		leave()
		synctest.Wait()
		if b.tools.count(&b.tools.cancelled, "answered") != 0 {
			t.Error("a call is cancelled that was answered")
		}
	})
}

// TestModernLeftTask has a client that leaves after its call has become a task: the task goes on.
func TestModernLeftTask(t *testing.T) {
	t.Parallel()
	inBubble(t, config{tasks: time.Second}, func(t *testing.T, b *bubble) {
		early, _ := b.begin(wish{params: tool("hold", "early"), caps: aware})
		synctest.Wait()
		early()
		leave, answer := b.begin(wish{params: tool("hold", "k"), caps: aware})
		id := jsonrpc.String(jsonrpc.Field([]byte((<-answer).response()), "result", "taskId"))
		leave()
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "early"); got != 1 {
			t.Errorf("left before it was a task: the backend was told %d times", got)
		}
		if got := b.tools.count(&b.tools.cancelled, "k"); got != 0 || id == "" {
			t.Fatalf("task %q, and the backend was told %d times", id, got)
		}
		b.tools.release("k")
		is := b.do(wish{method: "tasks/get", params: `{"taskId":"` + id + `"}`, caps: aware})
		if !strings.Contains(string(is.body), "released in") {
			t.Errorf("%d %s", is.status, is.body)
		}
	})
}

// TestModernLeftKeyed has a client that leaves a call with an idempotency key: the call goes on,
// and only the same request of the same principal finds it again.
func TestModernLeftKeyed(t *testing.T) {
	t.Parallel()
	inBubble(t, config{}, func(t *testing.T, b *bubble) {
		holds := wish{who: "alice", params: tool("hold", "k"), key: "once"}
		leave, _ := b.begin(holds)
		synctest.Wait()
		leave()
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "k"); got != 0 {
			t.Fatalf("the backend was told %d times", got)
		}
		holds.id, holds.info = `"again"`, `{"name":"another kind","version":"2"}`
		_, answer := b.begin(holds)
		synctest.Wait()
		b.tools.release("k")
		is := <-answer
		if !strings.HasPrefix(is.text(), "released in ") || string(jsonrpc.Field([]byte(is.response()), "id")) != `"again"` {
			t.Errorf("found again: %d %s", is.status, is.body)
		}
		if is := b.do(holds); !strings.HasPrefix(is.text(), "released in ") { // the call has ended
			t.Errorf("after its end: %d %s", is.status, is.body)
		}
		other := holds
		other.params = tool("who", "k")
		if is := b.do(other); is.status != 422 || is.code() != codeInvalid {
			t.Errorf("another request under the key: %d %s", is.status, is.body)
		}
		other.who = "bob"
		if is := b.do(other); !strings.HasPrefix(is.text(), "k in ") {
			t.Errorf("another principal under the key: %d %s", is.status, is.body)
		}
		if got := b.tools.count(&b.tools.ran, "k"); got != 2 {
			t.Errorf("the tools ran %d times", got)
		}
	})
}

// TestModernSameKey has many clients that make a request under one key at once: the tool runs
// once, and all of them are answered, except those that leave.
func TestModernSameKey(t *testing.T) {
	t.Parallel()
	inBubble(t, config{server: server.Options{KeepAlive: time.Second}}, func(t *testing.T, b *bubble) {
		for _, after := range []time.Duration{0, 5 * time.Second} { // after 5 s the answers are streams
			holds := wish{params: tool("hold", after.String()), key: after.String()}
			var answers []<-chan reply
			for i := range 8 {
				leave, answer := b.begin(holds)
				synctest.Wait()
				if i%3 == 2 {
					leave()
				} else {
					answers = append(answers, answer)
				}
			}
			time.Sleep(after)
			synctest.Wait()
			b.tools.release(after.String())
			for i, answer := range answers {
				if is := <-answer; !strings.HasPrefix(is.text(), "released in ") {
					t.Errorf("after %v, %d: %d %s", after, i, is.status, is.body)
				}
			}
			if got := b.tools.count(&b.tools.ran, after.String()); got != 1 {
				t.Errorf("after %v: it ran %d times", after, got)
			}
			if got := b.tools.count(&b.tools.cancelled, after.String()); got != 0 {
				t.Errorf("after %v: it was cancelled %d times", after, got)
			}
		}
	})
}

// TestModernLeftInput has clients that leave calls which wait for input: the calls go on waiting. A
// client that leaves after it has sent the input cancels the call, unless it has an idempotency key.
func TestModernLeftInput(t *testing.T) {
	t.Parallel()
	inBubble(t, config{}, func(t *testing.T, b *bubble) {
		for _, key := range []string{"", "once"} {
			name := "k" + key
			asks := wish{params: tool("ask", name), caps: `{"elicitation":{}}`, key: key}
			leave, answer := b.begin(asks)
			_, retry := (<-answer).state(t)
			leave()
			time.Sleep(30 * time.Minute)
			synctest.Wait()
			if got := b.tools.count(&b.tools.cancelled, name); got != 0 {
				t.Fatalf("while it waits the backend was told %d times", got)
			}
			b.tools.mute(name)
			again := asks
			again.params = with(asks.params, retry)
			leave, answer = b.begin(again)
			synctest.Wait()
			leave()
			<-answer
			synctest.Wait()
			want := 1
			if key != "" {
				want = 0
			}
			if got := b.tools.count(&b.tools.cancelled, name); got != want {
				t.Errorf("with the key %q the backend was told %d times", key, got)
			}
			if key == "" {
				continue
			}
			_, answer = b.begin(asks)
			synctest.Wait()
			b.tools.release(name)
			if is := <-answer; !strings.HasPrefix(is.text(), "released in ") {
				t.Errorf("found again: %d %s", is.status, is.body)
			}
		}
	})
}

// TestModernInputTwice has a client that sends the same input in two requests at once: the tool
// runs once, and each request is answered, also if the client of the other one leaves.
func TestModernInputTwice(t *testing.T) {
	t.Parallel()
	for leaves := range 3 { // the client of the first request leaves, of the second, or of none
		inBubble(t, config{}, func(t *testing.T, b *bubble) {
			asks := wish{params: tool("ask2", "k"), caps: `{"elicitation":{}}`}
			first := b.do(asks)
			state, _ := first.state(t)
			inputs := jsonrpc.Field([]byte(first.response()), "result", "inputRequests")
			half := asks
			jsonrpc.Each(inputs, func(name, _ []byte) {
				half.params = with(asks.params, fmt.Sprintf(`"requestState":%q,"inputResponses":{%q:{"action":"accept"}}`, state, name))
			})
			var answers [2]<-chan reply
			var leave [2]func()
			for i := range answers {
				leave[i], answers[i] = b.begin(half)
				synctest.Wait()
			}
			if leaves < 2 {
				leave[leaves]()
			}
			rest := ""
			for i, answer := range answers {
				is := <-answer
				if i == leaves {
					continue
				}
				if _, rest = is.state(t); strings.Count(rest, "accept") != 1 {
					t.Errorf("half of the input was brought, and it asks for %s", is.body)
				}
			}
			asks.params = with(asks.params, rest)
			if is := b.do(asks); !strings.HasPrefix(is.text(), "answered") {
				t.Errorf("%d %s", is.status, is.body)
			}
			if got := b.tools.count(&b.tools.ran, "k"); got != 1 {
				t.Errorf("it ran %d times", got)
			}
		})
	}
}

// A listen ends with its connection, also if it has an idempotency key.
func TestModernLeftListen(t *testing.T) {
	t.Parallel()
	inBubble(t, config{}, func(t *testing.T, b *bubble) {
		for _, key := range []string{"", "once"} {
			leave, _ := b.begin(wish{method: "subscriptions/listen", params: `{"notifications":{"toolsListChanged":true}}`, key: key})
			synctest.Wait()
			leave()
			synctest.Wait()
			if n := b.sessions.Calls(); n != 0 {
				t.Errorf("with the key %q %d listens are in flight", key, n)
			}
		}
	})
}

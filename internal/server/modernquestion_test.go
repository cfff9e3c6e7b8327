package server_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// The node of retry-safe calls is lost. They run again on another node, and ask questions there,
// but their clients do not come: they end after MaxWait, except a task that its client asks about.
func TestModernQuestionsOfLostNode(t *testing.T) {
	testlong.Only(t, "a node takes a while to be lost")
	t.Parallel()
	c := tasksConfig()
	c.session.MaxWait = time.Second
	f := newFarm(t, 2, c)
	at, other := &peer{n: f.nodes[0].node}, &peer{n: f.nodes[1].node}
	at.under("key").callModern("safe_hold", `{"key":"keyed"}`)
	at.begun("safe_hold", `{"key":"resumable"}`)
	task := at.task("safe_hold", `{"key":"task"}`).TaskID
	mcptest.Eventually(t, "the calls to run", time.Minute, func() bool { return f.runs("keyed")+f.runs("resumable")+f.runs("task") == 3 })
	f.nodes[0].kill()
	mcptest.Eventually(t, "the task to be on the other node", time.Minute, func() bool { return other.about("tasks/get", task, "").Result.Status == "working" })
	for _, again := range f.nodes[1].release(3) {
		f.nodes[1].ask(again, "?")
	}
	other.until(task, "input_required")
	mcptest.Eventually(t, "the calls to end whose clients do not come", time.Minute, func() bool { return f.nodes[1].sessions.Calls() == 1 })
	other.until(task, "input_required")
}

// A call under an idempotency key asks a question after its client has left: it ends MaxWait
// after that, and not before.
func TestModernQuestionUnseen(t *testing.T) {
	t.Parallel()
	inBubble(t, config{session: session.Options{MaxWait: 10 * time.Minute}}, func(t *testing.T, b *bubble) {
		asks := wish{params: tool("later", "k"), caps: `{"elicitation":{}}`, key: "once"}
		leave, _ := b.begin(asks)
		synctest.Wait()
		leave()
		time.Sleep(time.Hour) // the call has not asked yet
		synctest.Wait()
		b.tools.release("k")
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "k"); got != 0 {
			t.Fatalf("after 9 minutes the backend was told %d times", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "k"); got != 1 {
			t.Errorf("after 11 minutes the backend was told %d times", got)
		}
	})
}

// A client brings only one of two answers to a call under an idempotency key, and leaves before it is
// asked for the other: the call ends after MaxWait.
func TestModernQuestionLeftAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, config{session: session.Options{MaxWait: 10 * time.Minute}}, func(t *testing.T, b *bubble) {
		asks := wish{params: tool("ask2", "k"), caps: `{"elicitation":{}}`, key: "once"}
		first := b.do(asks)
		state, _ := first.state(t)
		one := fmt.Sprintf(`"requestState":%q`, state)
		jsonrpc.Each(jsonrpc.Field([]byte(first.response()), "result", "inputRequests"), func(name, _ []byte) {
			one = fmt.Sprintf(`"requestState":%q,"inputResponses":{%q:{"action":"accept"}}`, state, name)
		})
		again := asks
		again.params = with(asks.params, one)
		leave, answer := b.begin(again)
		synctest.Wait() // the missing answer is asked for 20 ms later
		leave()
		if is := <-answer; is.response() != "" && len(is.body) > 0 {
			t.Fatalf("it was answered: %s", is.body)
		}
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "k"); got != 0 {
			t.Fatalf("after 9 minutes the backend was told %d times", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "k"); got != 1 || b.sessions.Calls() != 0 {
			t.Errorf("after 11 minutes the backend was told %d times, and %d calls are in flight", got, b.sessions.Calls())
		}
	})
}

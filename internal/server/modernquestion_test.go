package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/session"
	"holdfast/internal/testlong"
)

// A node is lost of calls that may run again. They ask their clients on another node, where none
// comes: they end when the time for that is over, but for a task that its client asks for.
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
	eventually(t, "the calls to run", func() bool { return f.runs("keyed")+f.runs("resumable")+f.runs("task") == 3 })
	f.nodes[0].kill()
	eventually(t, "the task to be on the other node", func() bool { return other.about("tasks/get", task, "").Result.Status == "working" })
	for _, again := range f.nodes[1].release(3) {
		f.nodes[1].ask(again, "?")
	}
	other.until(task, "input_required")
	eventually(t, "the calls to end whose clients do not come", func() bool { return f.nodes[1].sessions.Calls() == 1 })
	other.until(task, "input_required")
}

// A call under an idempotency key asks its client after that has left: it ends when the time for
// its answer is over, and not before.
func TestModernQuestionUnseen(t *testing.T) {
	t.Parallel()
	inBubble(t, config{session: session.Options{MaxWait: 10 * time.Minute}}, func(t *testing.T, b *bubble) {
		asks := wish{params: tool("later", "k"), caps: `{"elicitation":{}}`, key: "once"}
		leave, _ := b.begin(asks)
		synctest.Wait()
		leave()
		time.Sleep(time.Hour) // it does not ask yet
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

package server_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// TestModernApart has clients of several principals with the same clientInfo and capabilities:
// they share no conversation with the backend. Equal clients of one principal share one.
func TestModernApart(t *testing.T) {
	t.Parallel()
	inBubble(t, config{}, func(t *testing.T, b *bubble) {
		const info = `{"name":"same","version":"1"}`
		seen := make(map[string]string)
		for _, who := range []string{"alice", "bob", "", "alice\x00", "Alice"} {
			for _, kind := range []wish{{info: info}, {info: info, caps: `{"roots":{}}`}, {}} {
				first := ""
				for range 3 {
					kind.who, kind.params = who, tool("who", "k")
					is := b.do(kind).text()
					if !strings.HasPrefix(is, "k in ") {
						t.Fatal(is)
					}
					if first == "" {
						first = is
					}
					if is != first {
						t.Errorf("one kind of client of %q is served %q and %q", who, first, is)
					}
				}
				if other, taken := seen[first]; taken {
					t.Errorf("%q and %q share a conversation", who, other)
				}
				seen[first] = who
			}
		}
	})
}

// TestModernState has wrong uses of a requestState. It is good once, for the request that it was
// given for, of the same principal.
func TestModernState(t *testing.T) {
	t.Parallel()
	inBubble(t, config{session: session.Options{MaxWait: time.Minute}}, func(t *testing.T, b *bubble) {
		const form = `{"elicitation":{}}`
		asks := wish{who: "alice", params: tool("ask", "k"), caps: form}
		state, retry := b.do(asks).state(t)
		refused := func(what string, a wish) {
			t.Helper()
			if is := b.do(a); is.status != 400 || is.code() != codeParams || strings.Contains(string(is.body), "alice") {
				t.Errorf("%s: %d %s", what, is.status, is.body)
			}
		}
		of := func(state string) wish {
			a := asks
			a.params = with(a.params, strings.Replace(retry, string(jsonrpc.Field([]byte("{"+retry+"}"), "requestState")), fmt.Sprintf("%q", state), 1))
			return a
		}
		for _, who := range []string{"bob", "", "alice\x00", "Alice"} {
			a := of(state)
			a.who = who
			refused("another principal "+who, a)
		}
		for i := len("holdfast."); i < len(state); i++ {
			other := byte('A')
			if state[i] == other {
				other = 'B'
			}
			refused(fmt.Sprint("changed at ", i), of(state[:i]+string(other)+state[i+1:]))
			refused(fmt.Sprint("cut at ", i), of(state[:i]))
			refused(fmt.Sprint("longer at ", i), of(state[:i]+string(state[i])+state[i:]))
		}
		parts := strings.Split(state, ".")
		later := append(append([]string{}, parts[:len(parts)-1]...), "zzzzzz")
		for what, text := range map[string]string{
			"nothing": "holdfast.", "points": "holdfast.....", "a long one": "holdfast." + strings.Repeat("x", 1<<12),
			"a later time": strings.Join(later, "."), "its name alone": "holdfast." + parts[1], "in capitals": "holdfast." + strings.ToUpper(state[9:]),
		} {
			refused(what, of(text))
		}
		for what, params := range map[string]string{
			"other arguments": tool("ask", "other"), "another tool": tool("who", "k"), "no arguments": `{"name":"ask"}`,
			"more": with(tool("ask", "k"), `"more":1`),
		} {
			a := asks
			a.params = with(params, retry)
			refused(what, a)
		}
		a := of(state)
		a.method, a.params = "prompts/get", with(tool("ask", "k"), retry)
		refused("another method", a)
		if got := b.tools.count(&b.tools.ran, "k"); got != 1 {
			t.Fatalf("it ran %d times", got)
		}

		good := of(state)
		good.id, good.params = `"c2"`, with(good.params, `"_meta":{"progressToken":1}`)
		is := b.do(good)
		if !strings.HasPrefix(is.text(), `answered {"action":"accept"} in `) || string(jsonrpc.Field([]byte(is.response()), "id")) != `"c2"` {
			t.Fatalf("after all that: %d %s", is.status, is.body)
		}
		refused("used again", good)
		if got := b.tools.count(&b.tools.ran, "k"); got != 1 {
			t.Errorf("it ran %d times", got)
		}
	})
}

// TestModernStateExpires has a client that comes back in time, and one that comes too late: its call was cancelled, and its requestState is refused.
func TestModernStateExpires(t *testing.T) {
	t.Parallel()
	inBubble(t, config{session: session.Options{MaxWait: time.Minute}}, func(t *testing.T, b *bubble) {
		asks := func(key string) (wish, string) {
			a := wish{who: "alice", params: tool("ask", key), caps: `{"elicitation":{}}`}
			_, retry := b.do(a).state(t)
			return a, retry
		}
		early, retry := asks("early")
		time.Sleep(58 * time.Second)
		early.params = with(early.params, retry)
		if is := b.do(early); !strings.HasPrefix(is.text(), "answered") {
			t.Errorf("in time: %d %s", is.status, is.body)
		}
		late, retry := asks("late")
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "late"); got != 1 {
			t.Errorf("the backend was told %d times that nobody comes back", got)
		}
		late.params = with(late.params, retry)
		if is := b.do(late); is.code() != codeParams {
			t.Errorf("too late: %d %s", is.status, is.body)
		}
		if n := b.sessions.Calls(); n != 0 {
			t.Errorf("%d calls are in flight", n)
		}
	})
}

// TestModernStateNotAwaited has a backend that asks a question, and ends its call before the answer: the
// client that comes back with the answer gets the call's result, each time. Another principal does not.
func TestModernStateNotAwaited(t *testing.T) {
	t.Parallel()
	inBubble(t, config{}, func(t *testing.T, b *bubble) {
		asks := wish{who: "alice", params: tool("ask", "k"), caps: `{"elicitation":{}}`}
		_, retry := b.do(asks).state(t)
		b.tools.mu.Lock()
		end := b.tools.held["k"]
		b.tools.mu.Unlock()
		end("over")
		synctest.Wait()
		asks.params = with(asks.params, retry)
		for range 2 {
			if is := b.do(asks); !strings.HasPrefix(is.text(), "over") {
				t.Errorf("%d %s", is.status, is.body)
			}
		}
		asks.who = "bob"
		if is := b.do(asks); is.code() != codeParams {
			t.Errorf("another principal: %d %s", is.status, is.body)
		}
		if got := b.tools.count(&b.tools.ran, "k"); got != 1 {
			t.Errorf("it ran %d times", got)
		}
	})
}

// TestModernStateOfCredential has clients without a principal: their requestState is good only with the Authorization that
// it was given for. That of a principal is good with another token, too.
func TestModernStateOfCredential(t *testing.T) {
	t.Parallel()
	inBubble(t, config{}, func(t *testing.T, b *bubble) {
		for i, c := range []struct {
			who, first, then string
			good             bool
		}{
			{"", "a", "a", true}, {"", "", "", true},
			{"", "a", "b", false}, {"", "a", "", false}, {"", "", "b", false},
			{"alice", "a", "b", true}, {"alice", "a", "", true},
		} {
			key := fmt.Sprint("k", i)
			a := wish{who: c.who, token: c.first, params: tool("ask", key), caps: `{"elicitation":{}}`}
			_, retry := b.do(a).state(t)
			a.params = with(a.params, retry)
			a.token = c.then
			is := b.do(a)
			if good := strings.HasPrefix(is.text(), "answered"); good != c.good || !good && (is.status != 400 || is.code() != codeParams) {
				t.Errorf("%q with the token %q, and then %q: %d %s", c.who, c.first, c.then, is.status, is.body)
			}
			a.token = c.first // the first client's answer is still good
			if is := b.do(a); !c.good && !strings.HasPrefix(is.text(), "answered") {
				t.Errorf("%q with the token %q again: %d %s", c.who, c.first, is.status, is.body)
			}
			if got := b.tools.count(&b.tools.ran, key); got != 1 {
				t.Errorf("it ran %d times", got)
			}
		}
	})
}

// TestModernStateIsNoTask uses a task's id as a requestState, and a requestState as a task's id: both are
// refused, and so is another principal's task.
func TestModernStateIsNoTask(t *testing.T) {
	t.Parallel()
	c := config{tasks: time.Second}
	inBubble(t, c, func(t *testing.T, b *bubble) {
		asks := wish{who: "alice", params: tool("ask", "k"), caps: `{"elicitation":{}}`}
		state, retry := b.do(asks).state(t)
		holds := wish{who: "alice", params: tool("hold", "h"), caps: aware}
		id := jsonrpc.String(jsonrpc.Field([]byte(b.do(holds).response()), "result", "taskId"))
		seal, parts := id[:strings.LastIndexByte(id, '.')], strings.Split(state, ".")
		asks.params = with(asks.params, strings.Replace(retry, state, "holdfast."+seal+"."+strings.Join(parts[3:], "."), 1))
		if is := b.do(asks); is.code() != codeParams {
			t.Errorf("a task's id as requestState: %d %s", is.status, is.body)
		}
		get := wish{who: "alice", method: "tasks/get", caps: aware}
		for _, text := range []string{state, parts[1] + "." + parts[2], parts[1] + "." + parts[2] + "." + id[len(seal)+1:]} {
			get.params = fmt.Sprintf(`{"taskId":%q}`, text)
			if is := b.do(get); is.code() != codeParams {
				t.Errorf("a requestState as a task's id: %d %s", is.status, is.body)
			}
		}
		get.params = fmt.Sprintf(`{"taskId":%q}`, id)
		if is := b.do(get); jsonrpc.String(jsonrpc.Field([]byte(is.response()), "result", "status")) != "working" {
			t.Errorf("the task: %d %s", is.status, is.body)
		}
		get.who = "bob"
		if is := b.do(get); is.code() != codeParams {
			t.Errorf("another's task: %d %s", is.status, is.body)
		}
		listen := wish{who: "bob", method: "subscriptions/listen", caps: aware, params: fmt.Sprintf(`{"notifications":{"taskIds":[%q]}}`, id)}
		if is := b.do(listen); strings.Contains(string(is.body), id) || !strings.Contains(string(is.body), `"notifications":{}`) {
			t.Errorf("a listen to another's task: %d %s", is.status, is.body)
		}
	})
}

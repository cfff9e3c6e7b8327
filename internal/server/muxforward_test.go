package server_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A far is a call on the first of three nodes, read by a connection that goes both ways at the
// second.
type far struct {
	*farm
	token string
	held  *message.Exchange
	c     *talker
	step  int // the last step of progress
}

// newFar begins a call, resumes it on a connection at another node, and reads one step of
// progress there.
func newFar(t *testing.T, open dialer, silence time.Duration) *far {
	t.Helper()
	c := config{server: server.Options{Principal: named, Retry: 20 * time.Millisecond, UpgradeAfter: time.Minute}, silence: silence}
	f := &far{farm: newFarm(t, 3, c)}
	p := f.nodes[0].able("2025-11-25", "me")
	w := p.open("POST", "/mcp", call("hold", `{}`))
	f.token = w.token()
	f.held = f.nodes[0].release(1)[0]
	f.c = f.connect(open, 1)
	f.says()
	f.c.say(again(`"c"`, f.token))
	f.c.policy(`"c"`)
	f.hears(f.c, 1)
	return f
}

// connect opens a connection that goes both ways at a node.
func (f *far) connect(open dialer, n int) *talker {
	f.t.Helper()
	c := open(f.nodes[n].node, 0, me)
	c.begin("2025-11-25", resumes)
	return c
}

// says makes a step of progress in the call.
func (f *far) says() {
	f.step++
	progress(f.held, f.step, 1)
}

// hears wants the next messages to be all steps of progress from the given one on, and returns
// the event id of the last.
func (f *far) hears(c *talker, from int) (last string) {
	f.t.Helper()
	for i := from; i <= f.step; i++ {
		last = jsonrpc.String(jsonrpc.Field(c.hears("notifications/progress", fmt.Sprintf(`"progress":%d,`, i)), "params", "_meta", "holdfast/eventId"))
	}
	return last
}

// after returns a request that resumes the call after an event.
func after(token, last string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"c","method":"requests/resume","params":{"resumeToken":%q,"_meta":{"holdfast/lastEventId":%q}}}`, token, last)
}

// TestFarResumes resumes a call of a living node on a connection at another node. Its earlier and
// later messages arrive once and in order, with event ids, and so does its response; the
// connection's own calls are answered meanwhile. Another connection supersedes this one, and is
// superseded in turn.
func TestFarResumes(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		f := newFar(t, open, unhurried) // no node counts as lost
		f.says()
		last := f.hears(f.c, 2)
		if last == "" {
			t.Error("no event id")
		}
		f.c.say(ask(`"c"`, f.token))
		f.c.hears(`"status"`, `"processing"`)
		f.c.say(callAs(`"own"`, "echo", `{"text":"beside"}`))
		f.c.hears(`"own"`, "beside")
		f.c.say(callAs(`"c"`, "echo", `{}`))
		f.c.fails(`"c"`, codeInvalid, "use an id once")

		// Once the new connection gets the call's messages, the old one gets none.
		d := f.connect(open, 2)
		for _, on := range []*talker{d, f.c, f.c} {
			on.say(again(`"c"`, f.token))
			for { // a superseded connection may have got one more message
				if m := on.message(); m.Method == "notifications/requests/resumePolicy" {
					break
				}
			}
			f.hears(on, 1)
			f.says()
			last = f.hears(on, f.step)
		}
		f.says()
		f.hears(f.c, f.step)
		f.c.say(after(f.token, last))
		last = f.hears(f.c, f.step)
		f.held.Result(result("one"))
		f.c.hears(`"id":"c"`, "one")
		f.c.say(callAs(`"c"`, "echo", `{"text":"free again"}`))
		f.c.hears("free again")
		e := f.connect(open, 2)
		e.say(after(f.token, last)) // a call that has ended can be resumed too
		e.hears(`"id":"c"`, "one")
		e.say(again(`"c"`, f.token))
		e.policy(`"c"`)
		f.hears(e, 1)
		e.hears(`"id":"c"`, "one")
	})
}

// TestFarOwnerLost kills the node of a call that a connection at another node reads. The call is
// not retry-safe: it ends with "outcome unknown".
func TestFarOwnerLost(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		f := newFar(t, open, 0)
		f.nodes[0].kill()
		f.c.fails(`"c"`, codeUnknown, "outcome unknown")
	})
}

// TestFarOwnerLostAgain is TestFarOwnerLost for a retry-safe call. The connection gets the rest
// of the call, which is made again or, on a busy machine, had ended before, and no event twice.
func TestFarOwnerLostAgain(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		f := newFar(t, open, 0)
		f.held.Result(result("one"))
		f.c.hears(`"id":"c"`, "one")
		f.nodes[0].kill() // now the node that takes the call over is the one with the connection

		const steps = 20
		p := f.nodes[2].able("2025-11-25", "me")
		p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
		w := p.open("POST", "/mcp", call("safe_steps", fmt.Sprintf(`{"key":"k","n":%d,"pause":50}`, steps)))
		token := w.token()
		f.c.say(again(`"c"`, token))
		f.c.policy(`"c"`)
		f.c.hears(`"progress":1,`)
		f.nodes[2].kill()
		seen := map[string]bool{}
		for {
			m := f.c.message()
			if m.Kind == jsonrpc.Response {
				if m.Error != nil || string(m.ID) != `"c"` {
					t.Errorf("ended with %s", m.Raw)
				}
				break
			}
			id := jsonrpc.String(jsonrpc.Field(m.Params, "_meta", "holdfast/eventId"))
			if id == "" || seen[id] {
				t.Errorf("event id %q: %s", id, m.Raw)
			}
			seen[id] = true
		}
		if f.runs("k") != 2 {
			t.Log("a busy machine: the call had ended before its node was lost")
		}
	})
}

// TestFarRefused resumes a call of another node with a wrong principal, token, id or event id:
// each is refused.
func TestFarRefused(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		f := newFar(t, open, 0)
		thief := open(f.nodes[1].node, 0, "Authorization: Bearer thief")
		thief.begin("2025-11-25", resumes)
		for _, x := range []string{again(`"c"`, f.token), again(`"d"`, f.token), again(`"c"`, f.token[:len(f.token)-1]+"x"), after(f.token, "nonsense")} {
			id := string(jsonrpc.Field([]byte(x), "id"))
			thief.say(x)
			thief.fails(id, jsonrpc.CodeInvalidParams, "no such request")
		}
		c := f.connect(open, 2)
		c.say(after(f.token, "nonsense"))
		c.fails(`"c"`, jsonrpc.CodeInvalidParams, "")
		f.held.Result(result("one"))
		f.c.hears(`"id":"c"`, "one") // the refused requests have not disturbed the reader
	})
}

// TestFarKeyed makes a request again under its idempotency key, on a connection at another node:
// it continues the call.
func TestFarKeyed(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		f := newFar(t, open, 0)
		body := strings.Replace(callAs(`"k"`, "hold", `{}`), `"_meta":{`, `"_meta":{"holdfast/idempotencyKey":"a",`, 1)
		p := f.nodes[0].able("2025-11-25", "me")
		w := p.open("POST", "/mcp", body)
		w.token()
		held := f.nodes[0].release(1)[0]
		progress(held, 1, 1)
		f.c.say(body)
		f.c.policy(`"k"`)
		f.c.hears(`"progress":1,`)
		f.c.say(strings.Replace(body, "hold", "echo", 1))
		f.c.fails(`"k"`, codeInvalid, "")
		held.Result(result("once"))
		f.c.hears(`"id":"k"`, "once")
	})
}

// TestFarEnds ends a connection, and a node, that read a call of another node: the reader at the
// owner ends soon, and the call goes on.
func TestFarEnds(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		f := newFar(t, open, 0)
		f.c.cut(fin)
		mcptest.Eventually(t, "the reading to end", time.Minute, func() bool { return f.nodes[0].sessions.Readers() <= 1 })
		d := f.connect(open, 2)
		d.say(again(`"c"`, f.token))
		d.policy(`"c"`)
		f.hears(d, 1)
		f.nodes[2].Close() // ends the node's forwarding
		if d.over == nil {
			d.ended(1001, "going away")
		} else {
			d.fails(`"c"`, jsonrpc.CodeServer, "try again later")
		}
		e := f.connect(open, 1)
		e.say(again(`"c"`, f.token))
		e.policy(`"c"`)
		f.hears(e, 1)
		f.held.Result(result("one"))
		e.hears(`"id":"c"`, "one")
	})
}

// take makes the node to take a session over, and the node from notice it.
func (f *farm) take(from, to *farmNode, key string) {
	f.t.Helper()
	_, at, err := to.sessions.Locate(f.t.Context(), stream.SessionKey(key), caller.At("", "me"))
	if err == nil {
		_, err = to.sessions.TakeOver(f.t.Context(), at)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	from.sessions.VerifySession(stream.SessionKey(key))
}

// sessionOf returns the name of the session of a token.
func sessionOf(token string) string {
	name, _, _ := strings.Cut(token, ".")
	return name
}

// TestPipesSessionLeaves makes another node take over the session of a pair of pipes with calls
// in flight. The client can't come back at that node: a retry-safe call is made again there, a
// resumed call is read on, and a later request is answered too. After that the connection ends.
func TestPipesSessionLeaves(t *testing.T) {
	t.Parallel()
	c := config{server: server.Options{Principal: named, UpgradeAfter: time.Minute}}
	f := newFarm(t, 2, c)
	w := f.nodes[1].able("2025-11-25", "me").open("POST", "/mcp", callAs(`"far"`, "hold", `{}`))
	token := w.token()
	far := f.nodes[1].release(1)[0]
	d := openPipes(f.nodes[0].node, 0, me)
	d.begin("2025-11-25", resumes)
	d.say(again(`"far"`, token))
	d.policy(`"far"`)
	d.say(callAs(`"unsafe"`, "hold", `{}`))
	own := d.policy(`"unsafe"`)
	d.say(callAs(`"safe"`, "safe_steps", `{"key":"k","n":0,"pause":2000}`))
	mcptest.Eventually(t, "the calls to run", time.Minute, func() bool { return f.runs("k") == 1 })

	f.take(f.nodes[0], f.nodes[1], sessionOf(own))
	want := map[string]string{`"safe"`: "done", `"unsafe"`: "outcome unknown: the node"}
	for len(want) > 0 {
		m := d.message()
		if text, ok := want[string(m.ID)]; !ok || !strings.Contains(string(m.Raw), text) {
			t.Errorf("got %s", m.Raw)
		}
		delete(want, string(m.ID))
	}
	if f.runs("k") != 2 {
		t.Log("a busy machine: the call had ended before the session was taken")
	}
	d.say(callAs(`"later"`, "echo", `{"text":"still served"}`))
	d.hears(`"later"`, "still served")
	far.Result(result("the last"))
	d.hears(`"far"`, "the last")
	d.ended(0, "")
	if !errors.Is(d.err, session.ErrClosing) {
		t.Errorf("ended with %v", d.err)
	}
}

// TestFarSessionLeaves reads, on a connection, a call of another session of the same node. Then
// another node takes that session over: the connection gets the call's end, and can resume it there.
func TestFarSessionLeaves(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		f := newFarm(t, 2, config{server: server.Options{Principal: named}})
		w := f.nodes[0].able("2025-11-25", "me").open("POST", "/mcp", call("hold", `{}`))
		token := w.token()
		progress(f.nodes[0].release(1)[0], 1, 1)
		c := open(f.nodes[0].node, 0, me)
		c.begin("2025-11-25", resumes)
		c.say(again(`"c"`, token))
		c.policy(`"c"`)
		c.hears(`"progress":1,`)
		f.take(f.nodes[0], f.nodes[1], sessionOf(token))
		c.fails(`"c"`, codeUnknown, "outcome unknown: the node")
		c.say(again(`"c"`, token))
		c.policy(`"c"`)
		c.hears(`"progress":1,`)
		c.fails(`"c"`, codeUnknown, "outcome unknown: the node")
	})
}

// overPipes opens a pair of pipes at the first node, with calls that are held and can be made again. Their ids are numbers from 1 on. It
// returns the pair's session, too.
func (f *farm) overPipes(calls int) (d *talker, own string) {
	f.t.Helper()
	d = openPipes(f.nodes[0].node, 0, me)
	d.begin("2025-11-25", `{"elicitation":{}}`)
	for id := range calls {
		d.say(callAs(strconv.Itoa(id+1), "safe_hold", `{}`))
	}
	f.nodes[0].release(calls)
	if err := f.nodes[0].store.Sessions(f.t.Context(), func(s shared.Session) bool { own = string(s.Key); return true }); err != nil {
		f.t.Fatal(err)
	}
	return d, own
}

// asks has a call of a pair of pipes, which runs as x now, ask the client, which answers. It returns the id of the call.
func (n *farmNode) asks(d *talker, x *message.Exchange) (id string) {
	n.t.Helper()
	n.script.mu.Lock()
	n.script.held = []*message.Exchange{x}
	n.script.mu.Unlock()
	x.Request([]byte("1"), "elicitation/create", []byte(`{"message":"?"}`))
	asked := d.message()
	if asked.Method != "elicitation/create" {
		n.t.Fatalf("got %s", asked.Raw)
	}
	d.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, asked.ID))
	answered := d.message()
	if !strings.Contains(string(answered.Raw), "accept") {
		n.t.Errorf("got %s", answered.Raw)
	}
	return string(answered.ID)
}

// cancels has the client cancel a call.
func (d *talker) cancels(id int) {
	d.t.Helper()
	d.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
}

// TestPipesAfterSessionLeft has another node take over the session of a pair of pipes, and make a call again. The client answers a question
// of that call, and cancels another one.
func TestPipesAfterSessionLeft(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{server: server.Options{Principal: named, UpgradeAfter: time.Minute}})
	d, own := f.overPipes(2)
	f.take(f.nodes[0], f.nodes[1], own)
	other := 1
	if f.nodes[1].asks(d, f.nodes[1].release(2)[0]) == "1" {
		other = 2
	}
	d.cancels(other)
	mcptest.Eventually(t, "the other call to end", time.Minute, func() bool { return f.nodes[1].sessions.Calls() == 0 })
}

// TestPipesSessionComesBack has another node take over the session of a pair of pipes, and the first node take it back. The client answers
// a question of a call that was made again at each of them.
func TestPipesSessionComesBack(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, config{server: server.Options{Principal: named, UpgradeAfter: time.Minute}})
	d, own := f.overPipes(1)
	f.take(f.nodes[0], f.nodes[1], own)
	f.nodes[1].release(1)
	f.take(f.nodes[1], f.nodes[0], own)
	f.nodes[0].asks(d, f.nodes[0].release(1)[0])
	d.say(callAs("2", "safe_hold", `{}`))
	f.nodes[0].release(1)
	d.cancels(2)
	mcptest.Eventually(t, "the cancelled call to end", time.Minute, func() bool { return f.nodes[0].sessions.Calls() == 0 })
}

// TestPipesCancelWhileSessionLeaves has a client cancel calls just as another node takes over the session of its pair of pipes. The calls
// are made again there, and must not run on.
func TestPipesCancelWhileSessionLeaves(t *testing.T) {
	t.Parallel()
	const calls = 8
	f := newFarm(t, 2, config{server: server.Options{Principal: named, UpgradeAfter: time.Minute}})
	d, own := f.overPipes(calls)
	f.take(f.nodes[0], f.nodes[1], own)
	for id := range calls {
		d.cancels(id + 1)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := d.recv()
		ended <- err
	}()
	select {
	case err := <-ended: // as no call is left, and the session is on the other node
		if err == nil {
			t.Error("a cancelled call was answered")
		}
	case <-time.After(time.Minute):
		t.Errorf("%d cancelled calls run on", f.nodes[1].sessions.Calls())
	}
}

package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// attaching are options with which a call that comes again is attached, as by default.
var attaching = config{
	session: session.Options{AttachWithin: 2 * time.Minute, CallIDs: []string{"acme/callId"}},
	server:  server.Options{CutGrace: 30 * time.Second, Principal: func(r *http.Request) string { return r.Header.Get("Who") }},
}

// An asker makes calls in one of the eras.
type asker struct {
	p      *peer
	modern bool
}

func newAsker(n *node, header http.Header, modern bool) asker {
	if modern {
		return asker{&peer{n: n, header: header}, true}
	}
	return asker{n.connect("2025-11-25", header), false}
}

func (a asker) ask(id, tool, arguments, meta string) *wire {
	a.p.n.t.Helper()
	if !a.modern {
		return a.p.open("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{%s}}}`, id, tool, arguments, meta))
	}
	m := mcptest.Must(jsonrpc.Parse([]byte(modernAs(id, "tools/call", `{}`, `{}`))))(a.p.n.t)
	params, _ := jsonrpc.Set(m.Params, []byte(arguments), "arguments")
	params, _ = jsonrpc.Set(params, jsonrpc.Quote(tool), "name")
	jsonrpc.Each([]byte(`{`+meta+`}`), func(name, value []byte) {
		params, _ = jsonrpc.Set(params, value, "_meta", string(name))
	})
	return a.p.open("POST", "/mcp", string(jsonrpc.AppendRequest(nil, []byte(id), "tools/call", params)),
		"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: "+tool)
}

// inBothEras runs a test with a client of each era.
func inBothEras(t *testing.T, do func(t *testing.T, n *node, a asker)) {
	for _, modern := range []bool{false, true} {
		name := map[bool]string{false: "legacy", true: "modern"}[modern]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, attaching)
			do(t, n, newAsker(n, http.Header{"Who": {"somebody"}}, modern))
		})
	}
}

// A model that makes a call again, because its connection has broken, gets the result of the first call under the new id and progress
// token, and the tool runs once: whether the answer was cut before its head or later, and whether the call has ended meanwhile.
func TestAskedAgain(t *testing.T) {
	t.Parallel()
	inBothEras(t, func(t *testing.T, n *node, a asker) {
		for i, how := range []cut{fin, rst} {
			for j, when := range []string{"silent", "told", "ended"} {
				key := fmt.Sprint(how, when)
				id := 100 * (2*i + j + 1)
				w := a.ask(fmt.Sprint(id), "hold", `{"key":"`+key+`","x":{"a":1,"b":[2]}}`, `"progressToken":"old"`)
				held := n.release(1)[0]
				if when != "silent" {
					progress(held, 1, 1)
					w.message()
				}
				w.cut(how)
				if when == "ended" {
					held.Result(result("done " + key))
					mcptest.Eventually(t, "the call to end", time.Minute, func() bool { return n.sessions.Calls() == 0 })
				}
				again := a.ask(fmt.Sprint(id+1), "hold", `{ "x":{"b":[2], "a":1}, "key":"`+key+`" }`, `"progressToken":"new"`)
				if when != "ended" {
					mcptest.Eventually(t, "both calls to be in flight", time.Minute, func() bool { return n.sessions.Calls() == 2 })
					progress(held, 2, 1)
					held.Result(result("done " + key))
				}
				r := again.all()
				response := r.response()
				if r.status != http.StatusOK || !strings.Contains(response, "done "+key) || !strings.Contains(response, fmt.Sprintf(`"id":%d`, id+1)) {
					t.Errorf("%s: %d %s", key, r.status, r.body)
				}
				_, others := r.parts()
				if strings.Count(strings.Join(others, ""), `"progressToken":"new"`) != len(others) || when == "told" && len(others) != 2 {
					t.Errorf("%s: notifications %s", key, others)
				}
				if runs := n.runs(key); runs != 1 {
					t.Errorf("%s: it ran %d times", key, runs)
				}
				// The call was answered: a further request is another call.
				w = a.ask(fmt.Sprint(id+2), "hold", `{"key":"`+key+`","x":{"a":1,"b":[2]}}`, `"progressToken":"next"`)
				n.release(1)[0].Result(result("next"))
				if response := w.all().response(); !strings.Contains(response, "next") || n.runs(key) != 2 {
					t.Errorf("%s: after the answer: %s, and %d runs", key, response, n.runs(key))
				}
			}
		}
	})
}

// A request is a call of its own, although an equal one is in flight: if the other client is connected, if it
// is of another conversation of the host, or if its tool may run twice.
func TestNotAskedAgain(t *testing.T) {
	t.Parallel()
	inBothEras(t, func(t *testing.T, n *node, a asker) {
		const args = `{"key":"k"}`
		runs := func(what string, want int) {
			t.Helper()
			for _, held := range n.release(1) {
				held.Result(result("r"))
			}
			mcptest.Eventually(t, what, time.Minute, func() bool { return n.sessions.Calls() == 0 })
			if got := n.runs("k"); got != want {
				t.Errorf("%s: %d runs, want %d", what, got, want)
			}
		}
		first := a.ask("1", "hold", args, `"progressToken":1`)
		second := a.ask("2", "hold", args, `"progressToken":2`)
		n.holds(2)
		runs("two clients that are connected", 2)
		first.all()
		second.all()

		w := a.ask("3", "hold", args, `"sessionId":"one"`)
		n.holds(1)
		w.cut(rst)
		other := a.ask("4", "hold", args, `"sessionId":"two"`)
		n.holds(2)
		runs("another conversation of the host", 4)
		other.all()

		w = a.ask("5", "safe_hold", args, `"progressToken":5`)
		n.holds(1)
		w.cut(rst)
		other = a.ask("6", "safe_hold", args, `"progressToken":6`)
		n.holds(2)
		runs("a tool that may run twice", 6)
		other.all()
	})
}

// A host that makes a call again with its own id of it finds it in every session of the principal, also if the first answer is not
// known to be lost. Another principal does not find it.
func TestHostsOwnID(t *testing.T) {
	t.Parallel()
	inBothEras(t, func(t *testing.T, n *node, a asker) {
		for i, meta := range []string{`"claudecode/toolUseId":"toolu_1"`, `"callId":"call_1","sessionId":"s"`, `"acme/callId":7`} {
			key := fmt.Sprint("k", i)
			args := `{"key":"` + key + `"}`
			as := func(who string) asker {
				p := &peer{n: n, header: http.Header{"Who": {who}}}
				if !a.modern {
					p = n.connect("2025-11-25", p.header)
				}
				return asker{p, a.modern}
			}
			me := as("me")
			w := me.ask("1", "hold", args, meta+`,"progressToken":1`)
			held := n.release(1)
			you := as("you").ask("1", "hold", args, meta)
			held = append(held, n.release(1)...)
			connected := me.ask("2", "hold", args, meta+`,"progressToken":2`) // the host may know of a cut that the server has not noticed
			progress(held[0], 1, 1)
			connected.message() // the request is attached: else its call would end with its connection
			readers := n.sessions.Readers()
			w.cut(rst)
			connected.cut(rst)
			if !a.modern { // a request in another session does not wait until the network has reported the cuts
				mcptest.Eventually(t, "both cuts to be known", time.Minute, func() bool { return n.sessions.Readers() <= readers-2 })
			}
			elsewhere := as("me").ask("1", "hold", args, meta+`,"progressToken":3`)
			mcptest.Eventually(t, "the request to be attached", time.Minute, func() bool { return n.sessions.Calls() == 4 })
			for i, h := range held {
				h.Result(result(fmt.Sprint("result ", i)))
			}
			mine := elsewhere.all().response()
			yours := you.all().response()
			if !strings.Contains(mine, "result 0") || !strings.Contains(yours, "result 1") || n.runs(key) != 2 {
				t.Errorf("%s: mine %s, yours %s, %d runs", meta, mine, yours, n.runs(key))
			}
		}
	})
}

// A call that comes again unchanged after it has ended is found (Bun's fetch does so), also with AttachWithin 0, where a model's second
// call is a call of its own.
func TestAttachedEnded(t *testing.T) {
	t.Parallel()
	c := attaching
	c.session.AttachWithin = 0
	n := newNode(t, c)
	for _, modern := range []bool{false, true} {
		p := &peer{n: n}
		if !modern {
			p = n.connect("2025-11-25", nil)
		}
		a, key := asker{p, modern}, fmt.Sprint(modern)
		w := a.ask("7", "hold", `{"key":"`+key+`"}`, `"progressToken":"t"`)
		held := n.release(1)[0]
		w.cut(rst)
		mcptest.Eventually(t, "the connection to be missed", time.Minute, func() bool { return n.sessions.Readers() == 0 })
		held.Result(result("kept"))
		mcptest.Eventually(t, "the call to end", time.Minute, func() bool { return n.sessions.Calls() == 0 })
		if response := a.ask("7", "hold", `{"key":"`+key+`"}`, `"progressToken":"t"`).all().response(); !strings.Contains(response, "kept") || n.runs(key) != 1 {
			t.Errorf("modern %v: %s, %d runs", modern, response, n.runs(key))
		}
	}
}

// A modern call that is cut goes on for CutGrace, and is cancelled then, unless it comes again.
func TestCutGrace(t *testing.T) {
	t.Parallel()
	inBubble(t, attaching, func(t *testing.T, b *bubble) {
		cut := func(key string) {
			leave, _ := b.begin(wish{params: tool("hold", key)})
			synctest.Wait()
			leave()
			synctest.Wait()
		}
		cut("k")
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "k"); got != 0 || b.sessions.Calls() != 1 {
			t.Errorf("within the grace: cancelled %d times, %d calls", got, b.sessions.Calls())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "k"); got != 1 || b.sessions.Calls() != 0 {
			t.Errorf("after the grace: cancelled %d times, %d calls", got, b.sessions.Calls())
		}
		cut("a") // and made again: the call goes on for as long as that client waits
		leave, answer := b.begin(wish{id: "2", params: tool("hold", "a")})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "a"); got != 0 {
			t.Errorf("while its client waits: cancelled %d times", got)
		}
		b.tools.release("a")
		if is := <-answer; !strings.HasPrefix(is.text(), "released") || b.tools.count(&b.tools.ran, "a") != 1 {
			t.Errorf("%d %s", is.status, is.body)
		}
		leave()
		cut("b") // and the client of the second request leaves, too
		leave, _ = b.begin(wish{id: "2", params: tool("hold", "b")})
		synctest.Wait()
		leave()
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if got := b.tools.count(&b.tools.cancelled, "b"); got != 1 || b.sessions.Calls() != 0 {
			t.Errorf("both have left: cancelled %d times, %d calls", got, b.sessions.Calls())
		}
		cut("c") // and made again too late
		b.tools.release("c")
		time.Sleep(2*time.Minute + time.Second)
		_, answer = b.begin(wish{id: "2", params: tool("hold", "c")})
		synctest.Wait()
		b.tools.release("c")
		if <-answer; b.tools.count(&b.tools.ran, "c") != 2 {
			t.Errorf("after the time for it: it ran %d times", b.tools.count(&b.tools.ran, "c"))
		}
	})
}

// A stream that has no message yet begins only after 45 s, the time that proxies wait.
func TestLateStream(t *testing.T) {
	t.Parallel()
	inBubble(t, config{}, func(t *testing.T, b *bubble) {
		for _, after := range []time.Duration{40 * time.Second, 50 * time.Second} {
			_, answer := b.begin(wish{params: tool("hold", "k")})
			time.Sleep(after)
			synctest.Wait()
			b.tools.release("k")
			is := <-answer
			streams := strings.HasPrefix(is.header.Get("Content-Type"), "text/event-stream")
			if streams != (after > 45*time.Second) || !strings.HasPrefix(is.text(), "released") {
				t.Errorf("after %v: %d %q", after, is.status, is.body)
			}
		}
	})
}

// A question of the server goes to the client that made the call again.
func TestAttachedAsks(t *testing.T) {
	t.Parallel()
	n := newNode(t, attaching)
	p := n.connect("2025-11-25", nil)
	a := asker{p, false}
	w := a.ask("1", "ask", `{}`, `"progressToken":1`)
	w.message()
	w.cut(rst)
	again := a.ask("2", "ask", `{}`, `"progressToken":2`)
	question := again.message()
	id := jsonrpc.Field(question.Data, "id")
	if r := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, id)); r.status != http.StatusAccepted {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if ev := again.message(); !strings.Contains(string(ev.Data), "accept") || !strings.Contains(string(ev.Data), `"id":2`) {
		t.Errorf("%s", ev.Data)
	}
}

// A request that came again is cancelled like any other, and with it the call.
func TestAttachedCancelled(t *testing.T) {
	t.Parallel()
	n := newNode(t, attaching)
	p := n.connect("2025-11-25", nil)
	a := asker{p, false}
	w := a.ask("1", "hold", `{"key":"k"}`, `"progressToken":1`)
	n.holds(1)
	w.cut(rst)
	again := a.ask("2", "hold", `{"key":"k"}`, `"progressToken":2`)
	again.head()
	mcptest.Eventually(t, "both calls to be in flight", time.Minute, func() bool { return n.sessions.Calls() == 2 })
	p.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	mcptest.Eventually(t, "both calls to end, and the server to be told", time.Minute, func() bool {
		n.script.mu.Lock()
		defer n.script.mu.Unlock()
		return n.sessions.Calls() == 0 && len(n.script.cancelled) > 0
	})
	n.script.mu.Lock()
	defer n.script.mu.Unlock()
	if n.script.runs["k"] != 1 || len(n.script.cancelled) != 1 {
		t.Errorf("it ran %d times, and was cancelled %d times", n.script.runs["k"], len(n.script.cancelled))
	}
}

// A request that came again is resumed like any other, with an event id of its own stream.
func TestAttachedResumed(t *testing.T) {
	t.Parallel()
	n := newNode(t, attaching)
	p := n.connect("2025-11-25", nil)
	a := asker{p, false}
	w := a.ask("1", "hold", `{"key":"k"}`, `"progressToken":1`)
	held := n.release(1)[0]
	w.cut(rst)
	again := a.ask("2", "hold", `{"key":"k"}`, `"progressToken":2`)
	mcptest.Eventually(t, "both calls to be in flight", time.Minute, func() bool { return n.sessions.Calls() == 2 })
	progress(held, 1, 1)
	ev := again.message()
	again.cut(fin)
	held.Result(result("done"))
	r := p.open("GET", "/mcp", "", "Last-Event-ID: "+ev.ID).all()
	if response := r.response(); !strings.Contains(response, "done") || !strings.Contains(response, `"id":2`) {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// Equal calls do not wait for each other if their connections break before the server knows whether one is another one made again.
func TestAttachedToEachOther(t *testing.T) {
	t.Parallel()
	inBothEras(t, func(t *testing.T, n *node, a asker) {
		for i := range 30 {
			args, meta := fmt.Sprintf(`{"key":"%d"}`, i), []string{`"progressToken":1`, `"callId":"c"`}[i%2]
			var all []*wire
			for j := range 4 {
				all = append(all, a.ask(fmt.Sprint(10*i+j+1), "hold", args, meta))
			}
			time.Sleep(time.Duration(i) * time.Millisecond) // so that the calls are cut at any time
			for j := range all {
				all[len(all)-1-j].cut(rst)
			}
		}
		mcptest.Eventually(t, "all calls to end", time.Minute, func() bool {
			for _, held := range n.letGo() {
				held.Result(result("done"))
			}
			return n.sessions.Calls() == 0
		})
	})
}

// Calls that end at any time are cut at any time, and made again. Each runs once, and its last request gets the result.
func TestManyAskedAgain(t *testing.T) {
	testlong.Only(t, "1,000 cuts for each kind of call")
	inBothEras(t, func(t *testing.T, n *node, a asker) {
		metas := []func(i, try int) string{
			func(i, _ int) string { return fmt.Sprintf(`"progressToken":"%d"`, i) }, // unchanged
			func(i, try int) string {
				return fmt.Sprintf(`"progressToken":"%d.%d","claudecode/toolUseId":"toolu_%d"`, i, try, i)
			}, // the host made it again
			func(i, try int) string {
				return fmt.Sprintf(`"progressToken":"%d.%d","claudecode/toolUseId":"u%d.%d"`, i, try, i, try)
			}, // the model made it again
			func(int, int) string { return "" }, // a call without progress
		}
		for kind, meta := range metas {
			var work sync.WaitGroup
			for worker := range 2 {
				work.Go(func() {
					for i := worker; i < 1000; i += 2 {
						key := fmt.Sprintf("%d.%d", kind, i)
						args := fmt.Sprintf(`{"key":%q,"n":3,"jitter":2000}`, key)
						id := func(try int) string {
							if kind == 0 && try < 2 {
								return fmt.Sprint(10_000*(kind+1) + i)
							}
							return fmt.Sprint(1_000_000*(kind+2) + 10*i + try)
						}
						w := a.ask(id(0), "steps", args, meta(i, 0))
						mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return n.runs(key) == 1 })
						read := w.atMost(i%7*40, []cut{fin, rst}[i%2])
						if read.whole {
							continue // the call was answered
						}
						// A model takes longer than the news of the cut; a call of another tool takes that time.
						if r := a.ask(id(2), "echo", `{"text":"x"}`, `"progressToken":"x"`).all(); r.status != http.StatusOK {
							t.Errorf("%s: %d %s", key, r.status, r.body)
						}
						again := a.ask(id(1), "steps", args, meta(i, 1))
						r := again.all()
						if response := r.response(); r.status != http.StatusOK || strings.Count(response, `"done"`) != 1 || !strings.Contains(response, `"id":`+id(1)) {
							t.Errorf("%s: %d %s", key, r.status, r.body)
						}
						if runs := n.runs(key); runs != 1 {
							t.Errorf("%s: it ran %d times (read before: %d %q)", key, runs, read.status, read.body)
						}
					}
				})
			}
			work.Wait()
		}
	})
}

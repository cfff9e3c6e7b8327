package server_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
)

// anyNode returns attaching for the nodes of a farm, which have a role.
func anyNode(role server.Role) config {
	c := attaching
	c.server.Role, c.server.Principal = role, nil
	return c
}

// asksAt returns a client at a node, with a name, and of one of the eras.
func asksAt(n *farmNode, who string, modern bool) asker { return newAsker(n.node, byName(who), modern) }

// sentence describes a call that is made at one node, cut, and made again at another.
type sentence struct {
	meta   string // _meta of both requests
	modern bool   // the first request is modern; the second, too, unless legacy
	legacy bool
}

// A call with a broken connection is found from any node: for a modern client with a model that makes it again, and by the host's own
// id of the call in another session or in the other era. The tool runs once, whether the call has ended meanwhile or not.
func TestAgainAnyNode(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, anyNode(server.RoleBoth))
	for i, is := range []sentence{
		{modern: true},
		{modern: true, meta: `"claudecode/toolUseId":"a"`},
		{modern: true, legacy: true, meta: `"claudecode/toolUseId":"b"`},
		{legacy: true, meta: `"claudecode/toolUseId":"c"`},
		{meta: `"acme/callId":4`},
	} {
		for j, when := range []string{"silent", "told", "ended"} {
			key := fmt.Sprint(i, when)
			args := `{"key":"` + key + `"}`
			at, other := f.nodes[(i+j)%3], f.nodes[(i+j+1)%3]
			meta := func(token string) string {
				if is.meta == "" {
					return `"progressToken":"` + token + `"`
				}
				return is.meta + `,"progressToken":"` + token + `"`
			}
			told := other.sessions.Flights().Counts().Told
			me, again, you := asksAt(at, "me", is.modern), asksAt(other, "me", is.modern && !is.legacy), asksAt(other, "you", is.modern && !is.legacy)
			w := me.ask("1", "hold", args, meta("old"))
			held := at.release(1)[0]
			if when != "silent" {
				progress(held, 1, 1)
				if is.modern {
					w.message()
				}
			}
			w.cut([]cut{fin, rst}[j%2])
			if when == "ended" {
				mcptest.Eventually(t, "the cut to be known", time.Minute, func() bool { return at.sessions.Readers() == 0 })
				held.Result(result("done " + key))
			}
			mcptest.Eventually(t, "the other node to know", time.Minute, func() bool { return other.sessions.Flights().Counts().Told > told })
			r := again.ask("2", "hold", args, meta("new"))
			if when != "ended" {
				mcptest.Eventually(t, "the request to be attached", time.Minute, func() bool { return other.sessions.Calls() == 1 })
				progress(held, 2, 1)
				held.Result(result("done " + key))
			}
			got := r.all()
			response := got.response()
			if got.status != http.StatusOK || !strings.Contains(response, "done "+key) || !strings.Contains(response, `"id":2`) || f.runs(key) != 1 {
				t.Errorf("%s: %d %s, %d runs", key, got.status, got.body, f.runs(key))
			}
			if _, others := got.parts(); strings.Count(strings.Join(others, ""), `"progressToken":"new"`) != len(others) {
				t.Errorf("%s: progress of %s", key, others)
			}
			// A request of another principal, and a third request of the same one, get a run of their own.
			for k, who := range []asker{you, again} {
				w := who.ask("3", "hold", args, meta("x"))
				other.release(1)[0].Result(result("own"))
				if response := w.all().response(); !strings.Contains(response, "own") || f.runs(key) != 2+k {
					t.Errorf("%s: client %d: %s, %d runs", key, k, response, f.runs(key))
				}
			}
		}
	}
}

// Equal calls of two clients that are connected to two nodes are two calls.
func TestAgainAnyNodeTwo(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, anyNode(server.RoleBoth))
	all := []asker{asksAt(f.nodes[0], "me", true), asksAt(f.nodes[1], "me", true)}
	cut := all[0].ask("0", "hold", `{"key":"other"}`, "")
	f.nodes[0].release(1)
	cut.cut(fin) // the other node has hints
	mcptest.Eventually(t, "the other node to know", time.Minute, func() bool { return f.nodes[1].sessions.Flights().Counts().Told > 0 })
	first := all[0].ask("1", "hold", `{"key":"k"}`, "")
	a := f.nodes[0].release(1)[0]
	second := all[1].ask("2", "hold", `{"key":"k"}`, "")
	b := f.nodes[1].release(1)[0]
	a.Result(result("first"))
	b.Result(result("second"))
	one := first.all().response()
	two := second.all().response()
	if !strings.Contains(one, "first") || !strings.Contains(two, "second") || f.runs("k") != 2 {
		t.Errorf("%s and %s, %d runs", one, two, f.runs("k"))
	}
}

// If a cut call comes again at two nodes at once, one of the requests is attached to it, and the other one runs.
func TestAgainAnyNodeAtOnce(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, anyNode(server.RoleBoth))
	w := asksAt(f.nodes[0], "me", true).ask("1", "hold", `{"key":"k"}`, "")
	held := f.nodes[0].release(1)[0]
	w.cut(rst)
	mcptest.Eventually(t, "the other nodes to know", time.Minute, func() bool {
		return f.nodes[1].sessions.Flights().Counts().Told > 0 && f.nodes[2].sessions.Flights().Counts().Told > 0
	})
	one := asksAt(f.nodes[1], "me", true).ask("2", "hold", `{"key":"k"}`, "")
	two := asksAt(f.nodes[2], "me", true).ask("3", "hold", `{"key":"k"}`, "")
	own := f.heldAt(f.nodes[1:])
	held.Result(result("first"))
	own.Result(result("own"))
	a := one.all().response()
	b := two.all().response()
	if both := a + b; strings.Count(both, "first") != 1 || strings.Count(both, "own") != 1 || f.runs("k") != 2 {
		t.Errorf("%s, %d runs", both, f.runs("k"))
	}
}

// A request that came again at another node is cut there, too, and comes again at the next, five times. The tool runs once, and
// at the end no call is left on any node.
func TestAgainAnyNodeAgain(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, anyNode(server.RoleBoth))
	const token = `"progressToken":"a"`
	w := asksAt(f.nodes[0], "me", true).ask("1", "hold", `{"key":"k"}`, token)
	held := f.nodes[0].release(1)[0]
	for i := 1; i < 6; i++ {
		told := f.nodes[i%3].sessions.Flights().Counts().Told
		w.cut(fin)
		mcptest.Eventually(t, "the other node to know", time.Minute, func() bool { return f.nodes[i%3].sessions.Flights().Counts().Told > told })
		w = asksAt(f.nodes[i%3], "me", true).ask(fmt.Sprint(i+1), "hold", `{"key":"k"}`, token)
		progress(held, i, 1)
		w.message() // the request is attached
	}
	held.Result(result("done"))
	if response := w.all().response(); !strings.Contains(response, "done") || f.runs("k") != 1 {
		t.Errorf("%s, %d runs", response, f.runs("k"))
	}
	mcptest.Eventually(t, "all calls to end", time.Minute, func() bool { return f.calls() == 0 })
}

// calls counts the calls in flight on all nodes.
func (f *farm) calls() (n int) {
	for _, node := range f.nodes {
		n += node.sessions.Calls()
	}
	return n
}

// A client that has made a call again at another node cancels it: both calls end, and the server gets the cancellation.
func TestAgainAnyNodeCancelled(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, anyNode(server.RoleBoth))
	const meta = `"claudecode/toolUseId":"a"`
	w := asksAt(f.nodes[0], "me", true).ask("1", "hold", `{"key":"k"}`, meta)
	f.nodes[0].release(1)
	w.cut(rst)
	mcptest.Eventually(t, "the other node to know", time.Minute, func() bool { return f.nodes[1].sessions.Flights().Counts().Told > 0 })
	again := asksAt(f.nodes[1], "me", false)
	again.ask("2", "hold", `{"key":"k"}`, meta).head()
	mcptest.Eventually(t, "the request to be attached", time.Minute, func() bool { return f.calls() == 2 })
	again.p.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	mcptest.Eventually(t, "both calls to end", time.Minute, func() bool { return f.calls() == 0 })
	if f.runs("k") != 1 {
		t.Errorf("it ran %d times", f.runs("k"))
	}
	mcptest.Eventually(t, "the server to be told", time.Minute, func() bool {
		f.nodes[0].script.mu.Lock()
		defer f.nodes[0].script.mu.Unlock()
		return len(f.nodes[0].script.cancelled) == 1
	})
}

// Doors have no calls: whichever door the second request comes to, the worker that gets it from there finds the call.
func TestAgainAnyNodeDoors(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 3, anyNode(server.RoleWorker))
	workers := f.nodes[:3]
	doors := []*farmNode{f.start(anyNode(server.RoleDoor)), f.start(anyNode(server.RoleDoor))}
	mcptest.Eventually(t, "the doors to know the workers", time.Minute, func() bool {
		return len(doors[0].member.Peers()) == 3 && len(doors[1].member.Peers()) == 3
	})
	for i := range 12 {
		key := fmt.Sprint("k", i)
		w := asksAt(doors[i%2], "me", true).ask("1", "hold", `{"key":"`+key+`"}`, "")
		held := f.heldAt(workers)
		w.cut([]cut{fin, rst}[i/2%2])
		mcptest.Eventually(t, "the workers to know", time.Minute, func() bool {
			n := 0
			for _, w := range workers {
				n += w.sessions.Flights().Counts().Told
			}
			return n == 2*(i+1)
		})
		again := asksAt(doors[(i+1)%2], "me", true).ask("2", "hold", `{"key":"`+key+`"}`, "")
		mcptest.Eventually(t, "the request to be attached", time.Minute, func() bool { return f.calls() == 2 })
		held.Result(result("done"))
		if response := again.all().response(); !strings.Contains(response, "done") || f.runs(key) != 1 {
			t.Errorf("%s: %s, %d runs", key, response, f.runs(key))
		}
	}
}

// If a node at which a call came again is lost, the next node finds the call. If the call's own node is lost, the client gets "outcome
// unknown", once.
func TestAgainAnyNodeLost(t *testing.T) {
	testlong.Only(t, "a node takes a while to be lost")
	t.Parallel()
	f := newFarm(t, 3, anyNode(server.RoleBoth))
	const token = `"progressToken":"a"`
	w := asksAt(f.nodes[0], "me", true).ask("1", "hold", `{"key":"k"}`, token)
	held := f.nodes[0].release(1)[0]
	w.cut(rst)
	mcptest.Eventually(t, "the other nodes to know", time.Minute, func() bool {
		return f.nodes[1].sessions.Flights().Counts().Told == 1 && f.nodes[2].sessions.Flights().Counts().Told == 1
	})
	w = asksAt(f.nodes[1], "me", true).ask("2", "hold", `{"key":"k"}`, token)
	progress(held, 1, 1)
	w.message() // the request is attached
	f.nodes[1].kill()
	mcptest.Eventually(t, "the loss to be known", time.Minute, func() bool { return f.nodes[2].sessions.Flights().Counts().Told == 2 })
	w = asksAt(f.nodes[2], "me", true).ask("3", "hold", `{"key":"k"}`, token)
	w.message()
	f.nodes[0].kill()
	if response := w.all().response(); !strings.Contains(response, fmt.Sprint(codeUnknown)) || f.runs("k") != 1 {
		t.Errorf("%s, %d runs", response, f.runs("k"))
	}
}

// If the node of a stranded call is lost before its client makes it again, the client gets "outcome unknown" from the first node that it asks,
// and a new run for the next request. A call that was answered before the loss is not reported as unknown.
func TestAgainAnyNodeGone(t *testing.T) {
	testlong.Only(t, "a node takes a while to be lost")
	t.Parallel()
	f := newFarm(t, 3, anyNode(server.RoleBoth))
	ask := func(node int, key string) *wire {
		return asksAt(f.nodes[node], "me", true).ask("1", "hold", `{"key":"`+key+`"}`, "")
	}
	kept := func(n int) func() bool {
		return func() bool {
			return f.nodes[1].sessions.Flights().Counts().Kept == n && f.nodes[2].sessions.Flights().Counts().Kept == n
		}
	}
	w := ask(0, "read")
	held := f.nodes[0].release(1)[0]
	w.cut(rst)
	mcptest.Eventually(t, "the other nodes to know", time.Minute, kept(1))
	again := ask(0, "read")
	mcptest.Eventually(t, "them to know that it was made again", time.Minute, kept(0))
	held.Result(result("done"))
	if response := again.all().response(); !strings.Contains(response, "done") {
		t.Fatalf("before: %s", response)
	}
	mcptest.Eventually(t, "the other nodes to know that it was answered", time.Minute, func() bool {
		return f.nodes[1].sessions.Flights().Counts().Far+f.nodes[2].sessions.Flights().Counts().Far == 0
	})
	w = ask(0, "k")
	f.nodes[0].release(1)
	w.cut(rst)
	mcptest.Eventually(t, "the other nodes to know", time.Minute, kept(1))
	f.nodes[0].kill()
	if response := ask(1, "k").all().response(); !strings.Contains(response, fmt.Sprint(codeUnknown)) || f.runs("k") != 1 {
		t.Errorf("%s, %d runs", response, f.runs("k"))
	}
	mcptest.Eventually(t, "the other node to know that it was told", time.Minute, kept(0))
	for _, key := range []string{"k", "read"} {
		w := ask(2, key)
		f.nodes[2].release(1)[0].Result(result("own"))
		if response := w.all().response(); !strings.Contains(response, "own") {
			t.Errorf("%s: %s", key, response)
		}
	}
}

// Calls that end at any time are cut at any time, and come again at any node. Each runs once, and its last request gets the result.
func TestManyAgainAnyNode(t *testing.T) {
	testlong.Only(t, "320 cuts for each kind of call")
	t.Parallel()
	const manyAtOnce = 32
	var late atomic.Int64 // calls cut so late, on a busy machine, that their answer may have come a second before the cut, and counted as read
	f := newFarm(t, 3, anyNode(server.RoleBoth))
	for kind := range 3 {
		var work sync.WaitGroup
		for worker := range manyAtOnce {
			work.Go(func() {
				var all []asker
				for _, n := range f.nodes {
					all = append(all, asksAt(n, "me", kind != 2))
				}
				for i := worker; i < 320; i += manyAtOnce {
					key := fmt.Sprintf("%d.%d", kind, i)
					args := fmt.Sprintf(`{"key":%q,"n":3,"jitter":2000}`, key)
					meta := func(try int) string {
						if kind == 0 {
							return fmt.Sprintf(`"progressToken":"%d.%d"`, i, try)
						}
						return fmt.Sprintf(`"progressToken":"%d.%d","claudecode/toolUseId":"toolu_%d.%d"`, i, try, kind, i)
					}
					id := func(try int) string { return fmt.Sprint(1_000_000*(kind+2) + 10*i + try) }
					asked := time.Now()
					w := all[i/7%3].ask(id(0), "steps", args, meta(0))
					mcptest.Eventually(t, "the call to run", time.Minute, func() bool { return f.runs(key) == 1 })
					if read := w.atMost(i%7*40, []cut{fin, rst}[i%2]); read.whole {
						continue // the call was answered
					}
					isLate := time.Since(asked) > time.Second/2
					// A model takes longer than the news of the cut takes to reach all nodes. No event marks that they have it.
					time.Sleep(time.Second)
					r := all[i/3%3].ask(id(1), "steps", args, meta(1)).all()
					if response := r.response(); r.status != http.StatusOK || strings.Count(response, `"done"`) != 1 || !strings.Contains(response, `"id":`+id(1)) {
						t.Errorf("%s: %d %s", key, r.status, r.body)
					}
					if runs := f.runs(key); runs == 2 && isLate {
						late.Add(1)
					} else if runs != 1 {
						t.Errorf("%s: it ran %d times", key, runs)
					}
				}
			})
		}
		work.Wait()
	}
	if n := late.Load(); n > 10 {
		t.Errorf("%d of 960 calls ran twice, as they were cut late", n)
	} else if n > 0 {
		t.Logf("%d of 960 calls ran twice, as they were cut late", n)
	}
}

// A client makes its call again, after its connection broke when the node of its session was lost. It gets "outcome unknown", or the
// result of a second run, if the tool may run twice.
func TestAgainNodeLost(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, anyNode(server.RoleBoth))
	me := asksAt(f.nodes[0], "me", false)
	me.p.post(`{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	const named = `"claudecode/toolUseId":"a"`
	me.ask("1", "hold", `{"key":"asked"}`, `"progressToken":1`)
	me.ask("2", "hold", `{"key":"named"}`, named)
	me.ask("3", "safe_hold", `{"key":"safe"}`, `"progressToken":3`)
	mcptest.Eventually(t, "the calls to run", time.Minute, func() bool { return f.runs("asked")+f.runs("named")+f.runs("safe") == 3 })
	f.nodes[0].kill()
	here := asker{me.p.at(f.nodes[1]), false}
	for i, r := range []reply{
		here.ask("11", "hold", `{"key":"asked"}`, `"progressToken":11`).all(),
		asksAt(f.nodes[1], "me", false).ask("12", "hold", `{"key":"named"}`, named).all(),
	} {
		if response := r.response(); !strings.Contains(response, fmt.Sprint(codeUnknown)) || !strings.Contains(response, fmt.Sprintf(`"id":1%d`, i+1)) {
			t.Errorf("call %d: %d %s", i+1, r.status, r.body)
		}
	}
	safe := here.ask("3", "safe_hold", `{"key":"safe"}`, `"progressToken":3`)
	f.nodes[1].release(1)[0].Result(result("again"))
	if response := safe.all().response(); !strings.Contains(response, "again") {
		t.Errorf("that is safe: %s", response)
	}
	if f.runs("asked") != 1 || f.runs("named") != 1 || f.runs("safe") != 2 {
		t.Errorf("runs: %d, %d, %d", f.runs("asked"), f.runs("named"), f.runs("safe"))
	}
	here.ask("21", "hold", `{"key":"asked"}`, `"progressToken":21`) // after "outcome unknown" the client may want a second run
	mcptest.Eventually(t, "it to run again", time.Minute, func() bool { return f.runs("asked") == 2 })
}

// A client of 2026-07-28 makes a cut call again at once, at another node, which has no notice of the cut yet: the request is attached. An equal
// request that came while the first client was connected is a second call.
func TestAgainAtOnceElsewhere(t *testing.T) {
	t.Parallel()
	for n := range 8 {
		door, i := n >= 4, n%4
		t.Run(fmt.Sprintf("by way of a door %v/%d", door, i), func(t *testing.T) {
			t.Parallel()
			log := &logbook{}
			logged := func(role server.Role) config {
				c := anyNode(role)
				c.server.Logger = slog.New(log)
				return c
			}
			f, at := newFarm(t, 2, logged(server.RoleBoth)), []*farmNode(nil)
			if at = f.nodes; door {
				at = []*farmNode{f.start(logged(server.RoleDoor)), f.start(logged(server.RoleDoor))}
				mcptest.Eventually(t, "the doors to know the workers", time.Minute, func() bool { return len(at[0].member.Peers()) > 1 && len(at[1].member.Peers()) > 1 })
			}
			workers := f.nodes[:2]
			flights := func() (n int) {
				for _, w := range workers {
					n += w.sessions.Flights().Counts().Far
				}
				return n
			}
			for slow := 0; ; slow++ {
				key := fmt.Sprint("k", i, ".", slow)
				args := `{"key":"` + key + `"}`
				w := asksAt(at[0], "me", true).ask("1", "hold", args, "")
				held := f.heldAt(workers)
				mcptest.Eventually(t, "the other node to know of the call", time.Minute, func() bool { return flights() > 0 })
				live := asksAt(at[1], "me", true).ask("2", "hold", args, "")
				second := f.heldAt(workers)
				attached := len(log.about("came again"))
				cutAt := time.Now()
				w.cut([]cut{fin, rst}[i%2])
				again := asksAt(at[1], "me", true).ask("3", "hold", args, "")
				found := func() bool { return len(log.about("came again")) > attached || f.runs(key) > 2 }
				if i > 1 && !door { // the second request is cut, too; a door tells the worker of a cut a moment later than it sends the next request
					again.cut(fin)
					again = asksAt(at[0], "me", true).ask("4", "hold", args, "")
				}
				mcptest.Eventually(t, "the request to be found, or to run", time.Minute, found)
				isSlow := time.Since(cutAt) > 900*time.Millisecond // a node that does not answer within a second is taken to be lost
				time.Sleep(10 * time.Millisecond)
				held.Result(result("first"))
				second.Result(result("second"))
				over := make(chan struct{})
				var answering sync.WaitGroup
				answering.Go(func() { // answers a third run, so that the test fails and does not wait
					for tick := time.NewTicker(10 * time.Millisecond); ; {
						select {
						case <-tick.C:
							for _, w := range workers {
								for _, x := range w.letGo() {
									x.Result(result("third"))
								}
							}
						case <-over:
							tick.Stop()
							return
						}
					}
				})
				one := again.all().response()
				two := live.all().response()
				close(over)
				answering.Wait()
				retry := f.runs(key) == 3 && isSlow && slow < 10
				if !retry && (!strings.Contains(one, "first") || !strings.Contains(two, "second") || f.runs(key) != 2) {
					t.Fatalf("%s: %s and %s, %d runs", key, one, two, f.runs(key))
				}
				mcptest.Eventually(t, "the nodes to forget the calls", time.Minute, func() bool { return flights() == 0 })
				if !retry {
					return
				}
			}
		})
	}
}

// A node is lost with calls of 2026-07-28 in flight. A client that makes such a call again at once at another node gets "outcome unknown", and a new
// run for the next request. A call that was answered, or that may run twice, runs at once.
func TestAgainModernNodeLost(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, anyNode(server.RoleBoth))
	const named = `"claudecode/toolUseId":"a"`
	asks := []struct{ tool, key, meta string }{{"hold", "read", ""}, {"hold", "asked", ""}, {"hold", "named", named}, {"safe_hold", "safe", named}}
	ask := func(node, i int) *wire {
		return asksAt(f.nodes[node], "me", true).ask("1", asks[i].tool, `{"key":"`+asks[i].key+`"}`, asks[i].meta)
	}
	kept := func(n int) func() bool { return func() bool { return f.nodes[1].sessions.Flights().Counts().Far == n } }
	read := ask(0, 0)
	held := f.nodes[0].release(1)[0]
	mcptest.Eventually(t, "the other node to know of the call", time.Minute, kept(1))
	for i := 1; i < 4; i++ {
		ask(0, i)
	}
	mcptest.Eventually(t, "the other node to know of the calls", time.Minute, func() bool { return f.nodes[1].sessions.Flights().Counts().Far == 6 }) // named calls have two keys
	held.Result(result("done"))
	if response := read.all().response(); !strings.Contains(response, "done") {
		t.Fatal(response)
	}
	mcptest.Eventually(t, "the other node to know that it was", time.Minute, kept(5))
	f.nodes[0].kill()
	again := []*wire{ask(1, 0), ask(1, 1), ask(1, 2), ask(1, 3)}
	for i := 1; i < 3; i++ {
		if response := again[i].all().response(); !strings.Contains(response, fmt.Sprint(codeUnknown)) || f.runs(asks[i].key) != 1 {
			t.Errorf("%s: %s, %d runs", asks[i].key, response, f.runs(asks[i].key))
		}
	}
	again = []*wire{again[0], ask(1, 1), ask(1, 2), again[3]}
	for _, x := range f.nodes[1].release(4) {
		x.Result(result("own"))
	}
	for i, w := range again {
		if response := w.all().response(); !strings.Contains(response, "own") || f.runs(asks[i].key) != 2 {
			t.Errorf("%s: %s, %d runs", asks[i].key, response, f.runs(asks[i].key))
		}
	}
}

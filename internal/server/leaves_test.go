package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/server"
	"holdfast/internal/testlong"
)

// A client that leaves once it has the event with the response has read all, at any node: an equal call afterwards is another call.
func TestLeavesAtTheEvent(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, anyNode(server.RoleBoth))
	me := asksAt(f.nodes[0], "me", false)
	step := 5
	if testlong.All() {
		step = 1
	}
	for i := 0; i < 900; i += step {
		size := []int{0, 3000 + i*2, 20_000}[i%3]
		key := fmt.Sprint("k", i)
		args := fmt.Sprintf(`{"key":%q,"n":1,"size":%d}`, key, size)
		at := f.nodes[i/3%2]
		for n := 1; n <= 2; n++ {
			w := asker{me.p.at(at), false}.ask(fmt.Sprint(2*i+n), "steps", args, `"progressToken":1`)
			for {
				ev, err := w.next()
				if err != nil {
					t.Fatalf("%s: %v", key, err)
				}
				if strings.Contains(string(ev.Data), `"result"`) {
					break
				}
			}
			w.cut(fin)
			if runs := f.runs(key); runs != n {
				t.Fatalf("%s of %d bytes at node %d: after call %d it has run %d times", key, size, i/3%2, n, runs)
			}
		}
	}
}

// A request waits until the node knows whether it is another one made again. If its client comes back meanwhile, with the request's id or an event
// id, it counts as connected, though its first connection has left.
func TestBackWhileItWaits(t *testing.T) {
	t.Parallel()
	f := newFarm(t, 2, anyNode(server.RoleBoth))
	me := asksAt(f.nodes[0], "me", false)
	rounds := 24 // each pause, at each node, with either cut
	if testlong.All() {
		rounds = 60
	}
	for i := range rounds {
		key := fmt.Sprint("k", i)
		args := `{"key":"` + key + `"}`
		at := asker{me.p.at(f.nodes[i%2]), false}
		live := me.ask(fmt.Sprint(10*i+1), "hold", args, "")
		first := f.nodes[0].release(1)[0]
		again := fmt.Sprint(10*i + 2)
		w := at.ask(again, "hold", args, "")
		if i%4 < 2 {
			ev, err := w.next()
			if err != nil {
				t.Fatal(err)
			}
			before := w
			w = at.p.open("GET", "/mcp", "", "Last-Event-ID: "+ev.ID)
			w.head()
			before.cut([]cut{fin, rst}[i/4%2])
		} else {
			time.Sleep(time.Duration(i%12) * time.Millisecond) // any part of the time for which the request waits
			w.cut([]cut{fin, rst}[i/4%2])
			w = at.ask(again, "hold", args, "")
		}
		second := f.nodes[0].release(1)[0]
		first.Result(result("first"))
		second.Result(result("second"))
		one := live.all().response()
		two := w.all().response()
		if !strings.Contains(one, "first") || !strings.Contains(two, "second") || f.runs(key) != 2 {
			t.Fatalf("%s: %s and %s, %d runs", key, one, two, f.runs(key))
		}
	}
}

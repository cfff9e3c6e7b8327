package server_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
)

// A call that is cut again and again within milliseconds, also about when its answer comes, and made again through nodes that forward it,
// runs once. The session's node asks the node that the client was connected to whether it has left.
func TestCutSoon(t *testing.T) {
	t.Parallel()
	rounds := 4
	if n, err := strconv.Atoi(os.Getenv("CUTS")); err == nil {
		rounds = n
	}
	c := anyNode(server.RoleBoth)
	c.server.UpgradeAfter = 20 * time.Millisecond
	f := newFarm(t, 3, c)
	over := make(chan struct{})
	var answering sync.WaitGroup
	defer answering.Wait()
	defer close(over)
	for _, n := range f.nodes { // a tool that takes as long as its arguments say
		answering.Go(func() {
			for tick := time.NewTicker(time.Millisecond); ; {
				select {
				case <-tick.C:
				case <-over:
					tick.Stop()
					return
				}
				for _, x := range n.letGo() {
					answering.Go(func() {
						var took time.Duration
						for _, part := range strings.Split(string(x.Params), `"`) {
							if d, ok := strings.CutPrefix(part, "takes "); ok {
								took, _ = time.ParseDuration(strings.Fields(d)[0])
							}
						}
						time.Sleep(took)
						x.Result(result("done"))
					})
				}
			}
		})
	}
	for _, cuts := range []int{1, 2, 3} {
		for _, life := range []time.Duration{5, 20, 60} {
			life *= time.Millisecond
			for _, gap := range []time.Duration{0, 1, 5, -1} {
				gap *= time.Millisecond
				t.Run(fmt.Sprint(cuts, life, gap), func(t *testing.T) {
					testlong.Part(t)
					owner := f.nodes[rand.N(3)]
					me := asksAt(owner, "me", false)
					twice, lost := 0, 0
					for i := range rounds {
						key := fmt.Sprintf("takes %s %d %d %d", life, cuts, gap, i)
						args := `{"key":"` + key + `"}`
						how := ""
						id := 10 * i
						same := i%3 == 2 // an HTTP client repeats the request as it is
						for j := range cuts {
							at := f.nodes[rand.N(3)]
							how += fmt.Sprint(at == owner)[:1]
							next := id + j + 1
							if same {
								next = id + 1
							}
							w := asker{me.p.at(at), false}.ask(fmt.Sprint(next), "hold", args, "")
							if j == 0 {
								mcptest.Eventually(t, "the call to begin", time.Minute, func() bool { return f.runs(key) > 0 })
							}
							wait := gap
							if gap < 0 { // at random
								wait = []time.Duration{0, time.Millisecond, 2 * time.Millisecond, rand.N(40 * time.Millisecond)}[rand.N(4)]
							}
							time.Sleep(wait)
							if life < 50*time.Millisecond && j == 0 { // until about the time of the answer
								time.Sleep(rand.N(2 * life))
							}
							w.cut([]cut{fin, rst}[rand.N(2)])
						}
						at := f.nodes[rand.N(3)]
						how += fmt.Sprint(at == owner)[:1]
						last := id + 9
						if same {
							last = id + 1 + i%2 // with the first request's id, or another
						}
						began := time.Now()
						r := asker{me.p.at(at), false}.ask(fmt.Sprint(last), "hold", args, "").all()
						if response := r.response(); !strings.Contains(response, "done") || time.Since(began) > 3*time.Second {
							lost++
							t.Logf("%s %s, the same %v: after %v %d %s", key, how, same, time.Since(began), r.status, r.body)
						}
						if n := f.runs(key); n != 1 {
							twice++
							t.Logf("%s %s, the same %v: ran %d times", key, how, same, n)
						}
						// The call was answered: a later request is another call.
						runs := f.runs(key)
						at = f.nodes[rand.N(3)]
						asker{me.p.at(at), false}.ask(fmt.Sprint(id+8), "hold", args, "").all()
						if n := f.runs(key); n != runs+1 {
							twice++
							t.Logf("%s %s, the same %v: after the answer it ran %d times", key, how, same, n-runs)
						}
					}
					if twice+lost > 0 {
						t.Errorf("of %d, %d ran twice and %d were lost", rounds, twice, lost)
					}
				})
			}
		}
	}
}

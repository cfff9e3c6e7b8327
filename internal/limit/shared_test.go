package limit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/testwork"
)

// nodes are limiters that share their counts, through JSON as in notices.
type nodes []*Limiter

func newNodes(n int, p Policy) (all nodes) {
	for range n {
		l := New(p)
		l.Share()
		all = append(all, l)
	}
	return all
}

// tell makes the nodes share their counts.
func (all nodes) tell(t *testing.T) {
	t.Helper()
	for i, from := range all {
		text, err := json.Marshal(from.Changes())
		if err != nil {
			t.Fatal(err)
		}
		for j, to := range all {
			if i == j {
				continue
			}
			var told []Number
			if err := json.Unmarshal(text, &told); err != nil {
				t.Fatal(err)
			}
			to.Merge(fmt.Sprint("node ", i), told)
		}
	}
}

// A client that begins as many calls as it can at all nodes has its rate in the long run, and
// never exceeds the documented bound. Other clients are not affected.
func TestRateOfNodes(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 5} {
		synctest.Test(t, func(t *testing.T) {
			const perSecond, burst = 10, 20
			all := newNodes(n, Policy{Rate: Rate{PerSecond: perSecond, Burst: burst}})
			names := Caller{Client: "user " + strings.Repeat("x", 1000)}
			begin, began := time.Now(), 0
			for tick := range 60_000 / 10 {
				for _, l := range all {
					for {
						if _, why := admit(t, l, names); why != "" {
							break
						}
						began++
					}
				}
				if tick%25 == 0 {
					all.tell(t)
				}
				passed := time.Since(begin).Seconds()
				if most := burst + perSecond*passed + float64(n-1)*(burst+perSecond*ShareEvery.Seconds()); float64(began) > most+1 {
					t.Fatalf("%d calls after %v s, and %v are the most", began, passed, most)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if least, most := perSecond*60, perSecond*60+burst*n+perSecond; began < least || began > most {
				t.Errorf("%d nodes: %d calls in a minute, want %d to %d", n, began, least, most)
			}
			for _, l := range all {
				if _, why := admit(t, l, bob); why != "" {
					t.Errorf("another client: %s", why)
				}
			}
		})
	}
}

// Calls in flight at other nodes count, until they have ended or their node is silent. Then a
// waiting call begins.
func TestCallsOfNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newNodes(2, Policy{ClientCalls: 2, Queue: 5, QueueWait: time.Minute})
		a, b := all[0], all[1]
		one, _ := a.Admit(ann, "")
		two, _ := a.Admit(ann, "")
		all.tell(t)
		if _, why := admit(t, b, ann); why != "client_calls" {
			t.Errorf("a third: %q", why)
		}
		if _, why := admit(t, b, bob); why != "" {
			t.Errorf("another client: %s", why)
		}
		waits := waits(t, t.Context(), b, ann, "")
		for range 20 { // for longer than a silent node's counts are believed
			time.Sleep(ShareEvery)
			all.tell(t)
		}
		if began(waits) != nil {
			t.Error("a third call began")
		}
		one.Release()
		all.tell(t)
		three := began(waits)
		if three == nil {
			t.Fatal("the third call did not begin")
		}
		if _, why := admit(t, b, ann); why != "client_calls" {
			t.Errorf("a fourth: %q", why)
		}
		three.Release()
		for range 20 { // node a is silent
			time.Sleep(ShareEvery)
			b.Changes()
		}
		if _, why := admit(t, b, ann, "", ""); why != "" {
			t.Errorf("after the end of a node: %s", why)
		}
		two.Release()
		a.Changes()
		if len(a.counts) != 0 || len(b.shared.known) != 0 {
			t.Errorf("left: %v, %v", a.counts, b.shared.known)
		}
		b.Merge("a", []Number{{Kind: 99, N: 5}, {Kind: clientCalls, Name: []byte("x"), N: -5}, {Kind: serverRate, Name: []byte("x"), N: 1 << 40}})
	})
}

// The work for the calls that another node has begun does not depend on their number: that node may have a rate of its own, and the lock is
// held meanwhile.
func TestMergeLinear(t *testing.T) {
	testwork.Linear(t, 500, func(n int) func() {
		l := newNodes(1, Policy{Rate: Rate{PerSecond: 1, Burst: 1}})[0]
		return func() {
			for range n {
				l.Merge("b", []Number{{Kind: clientRate, Name: []byte("x"), N: n}})
			}
		}
	})
}

// A bucket owes tokens for calls that other nodes have begun beyond its burst.
func TestOwed(t *testing.T) {
	t.Parallel()
	b := new(buckets).of(key{}, Rate{PerSecond: 1, Burst: 3}, time.Unix(0, 0))
	b.owe(2, time.Unix(0, 0))
	b.owe(8, time.Unix(1, 0))
	b.owe(0, time.Unix(1, 0))
	for at, want := range map[int64]float64{1: -6, 7: 0, 10: 3, 100: 3} {
		if got := b.TokensAt(time.Unix(at, 0)); got != want {
			t.Errorf("%v tokens after %d s, want %v", got, at, want)
		}
	}
}

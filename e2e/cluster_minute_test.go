package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/internal/testlong"
)

// The size of TestClusterKills. For a full minute:
//
//	go test ./e2e -run TestClusterKills -cluster.for 1m -cluster.clients 200 -cluster.call 5s
var (
	killFor     = flag.Duration("cluster.for", 3*time.Second, "how long nodes are killed")
	killEvery   = flag.Duration("cluster.every", time.Second, "how often one is")
	killClients = flag.Int("cluster.clients", 0, "under so many clients; 0: 16, with -long 40")
	killCall    = flag.Duration("cluster.call", 1500*time.Millisecond, "with calls of up to that long")
)

// A score counts how calls have ended.
type score struct {
	mu                               sync.Mutex
	calls, answered, unknown, unsure int
	again                            int // runs of retry-safe tools beyond the first
	gaps                             []time.Duration
	wrong                            []string
	whys                             map[string]int // the errors of unsure calls
}

// A caller makes calls.
type caller interface {
	call(ctx context.Context, q request) *callRecord
}

// TestClusterKills kills a random node every second, with SIGKILL, while many clients of three
// kinds make calls. No call is lost, no message comes twice, no client waits for ever, and only
// retry-safe tools run twice.
func TestClusterKills(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{library: true})
		sum := &score{}
		clients := *killClients
		if clients == 0 {
			clients = testlong.Either(16, 40)
		}
		callers := f.callers(clients)
		calling := f.calling(callers, sum)
		stop := f.killing(f.nodes, *killEvery)
		time.Sleep(*killFor)
		kills := stop()
		calling.end()
		sum.report(t, kills)
	})
}

// callers begins sessions: a third with our client, the others with a specClient.
func (f *fleet) callers(n int) []caller {
	callers := make([]caller, n)
	var begun sync.WaitGroup
	for i := range callers {
		begun.Go(func() {
			if i%3 == 0 {
				callers[i] = f.officialClient(f.ours())
			} else {
				callers[i] = f.client(f.balanced, f.balanced)
			}
		})
	}
	begun.Wait()
	return callers
}

// killing kills and restarts nodes in turn, one each time, until stop is called. stop returns the number of kills.
func (f *fleet) killing(nodes []*node, every time.Duration) (stop func() int) {
	over, kills := make(chan struct{}), 0
	var killing sync.WaitGroup
	killing.Go(func() {
		for ; ; kills++ {
			select {
			case <-over:
				return
			case <-time.After(every):
			}
			n := nodes[kills%len(nodes)]
			n.kill()
			n.restart()
		}
	})
	return func() int {
		close(over)
		killing.Wait()
		return kills
	}
}

// A calling is a number of clients that make one call after the other.
type calling struct {
	more  context.Context // done when no new call may begin
	stop  func()
	limit context.Context // done when all calls should have ended
	hang  func()
	all   sync.WaitGroup
	tempo tempo
}

// A tempo says how clients make calls: each call takes up to call, and sends progress every
// step; then its client rests for up to rest.
type tempo struct {
	call, step, rest time.Duration
	unsafe           bool // all calls have keys and are for a tool that is not retry-safe
}

// calling has clients make calls, without rest if there is no tempo.
func (f *fleet) calling(callers []caller, sum *score, at ...tempo) *calling {
	c := &calling{tempo: append(at, tempo{call: *killCall, step: 100 * time.Millisecond})[0]}
	c.more, c.stop = context.WithCancel(f.t.Context())
	c.limit, c.hang = context.WithCancel(f.t.Context())
	f.t.Cleanup(func() { c.stop(); c.hang() })
	for i, one := range callers {
		c.all.Go(func() { f.keepCalling(c, i, one, sum) })
	}
	return c
}

// end waits until the clients' last calls have ended. While nodes die, a call that is run again
// may take long; as they do not die any more, a call that takes a minute longer than it should
// has been forgotten.
func (c *calling) end() {
	c.stop()
	timer := time.AfterFunc(c.tempo.call+time.Minute, c.hang)
	c.all.Wait()
	timer.Stop()
	c.hang()
}

// keepCalling makes one call after the other.
func (f *fleet) keepCalling(to *calling, i int, c caller, sum *score) {
	for n := 0; to.more.Err() == nil; n++ {
		if to.tempo.rest > 0 {
			select {
			case <-time.After(rand.N(to.tempo.rest)):
			case <-to.more.Done():
				return
			}
		}
		long := rand.N(to.tempo.call)
		q := request{tool: "work", args: workArgs{ID: callID(f.t, i, n), Steps: 1 + int(long/to.tempo.step), MS: int(long.Milliseconds())}}
		if n%2 == 1 && !to.tempo.unsafe {
			q.tool = "look"
		}
		if i%3 == 1 || to.tempo.unsafe {
			q.key = fmt.Sprintf(`"%d-%d"`, i, n)
		}
		s := c.call(to.limit, q)
		sum.add(q, s, f.runs(q.args.ID))
	}
}

// add judges a call.
func (s *score) add(q request, c *callRecord, runs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.gaps = append(s.gaps, c.gaps...)
	err := c.check(q)
	switch {
	case err != nil:
		s.wrong = append(s.wrong, fmt.Sprintf("%s %s: %v", q.tool, q.args.ID, err))
	case q.tool == "work" && runs > 1:
		s.wrong = append(s.wrong, fmt.Sprintf("%s ran %d times, and received %q", q.args.ID, runs, tail(c.received)))
	case c.unsure:
		s.unsure++
		if s.whys == nil {
			s.whys = make(map[string]int)
		}
		s.whys[c.why.Error()]++
	case c.unknown() && q.tool == "look":
		s.wrong = append(s.wrong, fmt.Sprintf("%s was not run again, though it is safe: %q", q.args.ID, tail(c.received)))
	case c.unknown():
		s.unknown++
	case runs == 0:
		s.wrong = append(s.wrong, fmt.Sprintf("%s has not run, and received %q", q.args.ID, c.received))
	default:
		s.answered++
		s.again += runs - 1
	}
}

func (s *score) report(t *testing.T, kills int) {
	t.Helper()
	slices.Sort(s.gaps)
	var median, worst time.Duration
	if n := len(s.gaps); n > 0 {
		median, worst = s.gaps[n/2], s.gaps[n-1]
	}
	t.Logf("%d kills, %d calls: %d answered (%d runs again of safe tools), %d told that nobody knows, %d cut off before they could know; "+
		"from a cut to the next event: median %v, worst %v of %d",
		kills, s.calls, s.answered, s.again, s.unknown, s.unsure, median.Round(time.Millisecond), worst.Round(time.Millisecond), len(s.gaps))
	for why, n := range s.whys {
		t.Logf("%d times: %s", n, why)
	}
	for i, w := range s.wrong {
		if i == 10 {
			t.Errorf("and %d more", len(s.wrong)-i)
			break
		}
		t.Error(w)
	}
	if s.answered == 0 {
		t.Error("no call was answered")
	}
}

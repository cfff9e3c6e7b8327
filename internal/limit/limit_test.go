package limit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var ann, bob = Caller{Client: "user ann", Address: "address 192.0.2.1"}, Caller{Client: "user bob", Address: "address 192.0.2.2"}

// admit admits a call, and returns the reason for which it is refused, or "".
func admit(t *testing.T, l *Limiter, c Caller, tools ...string) (*Pass, string) {
	t.Helper()
	if len(tools) == 0 {
		tools = []string{"echo"}
	}
	p, err := l.Admit(c, tools...)
	if err == nil {
		return p, ""
	}
	var no *Refusal
	if !errors.As(err, &no) {
		t.Fatalf("refused with %v", err)
	}
	return nil, no.Reason()
}

func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Policy{Rate: Rate{PerSecond: 2, Burst: 3}})
		for range 3 {
			if _, why := admit(t, l, ann); why != "" {
				t.Fatal(why)
			}
		}
		_, err := l.Admit(ann, "echo")
		var no *Refusal
		if !errors.As(err, &no) || no.Reason() != "client_rate" || no.RetryAfter() != 1 || no.Waits() || no.Never() {
			t.Fatalf("a fourth: %v", err)
		}
		if _, why := admit(t, l, bob); why != "" {
			t.Errorf("another client: %s", why)
		}
		if _, why := admit(t, l, Caller{}); why != "" {
			t.Errorf("nobody: %s", why)
		}
		// Over ten seconds twenty calls begin, however often a call is tried.
		began := 0
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			if _, why := admit(t, l, ann); why == "" {
				began++
			}
		}
		if began < 19 || began > 21 {
			t.Errorf("%d calls in 10 s at 2 a second", began)
		}
		for r, want := range map[float64]string{50: "50 calls a second", 1: "1 calls a second", 2.0 / 60: "2 calls a minute", 10.0 / 3600: "10 calls an hour"} {
			if got := (Rate{PerSecond: r}).String(); got != want {
				t.Errorf("%v is %s, want %s", r, got, want)
			}
		}
		slow := New(Policy{Rate: Rate{PerSecond: 0.1}})
		_, _ = slow.Admit(ann, "")
		if _, err := slow.Admit(ann, ""); !errors.As(err, &no) || no.RetryAfter() != 10 {
			t.Errorf("after a call in 10 s: %v, retry after %d", err, no.RetryAfter())
		}
	})
}

// A batch begins as a whole or not at all. The refusal of a batch that can never begin says so.
func TestBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Policy{Rate: Rate{PerSecond: 1, Burst: 5}, AddressRate: Rate{PerSecond: 1, Burst: 4}, ClientCalls: 3})
		var no *Refusal
		if _, err := l.Admit(ann, "a", "b", "c", "d"); !errors.As(err, &no) || no.Reason() != "client_calls" || no.Waits() {
			t.Fatalf("four of three calls: %v", err)
		}
		p, why := admit(t, l, ann, "a", "b", "")
		if why != "" {
			t.Fatal(why)
		}
		p.Next().Release()
		p.Next().Release()
		if _, why := admit(t, l, ann, "a", "b"); why != "address_rate" {
			t.Errorf("two at once, when one may: %q", why)
		}
		p.Release()
		if l.counts[key{kind: clientCalls, name: ann.Client}] != nil {
			t.Error("a count is left")
		}
		l = New(Policy{Rate: Rate{PerSecond: 1, Burst: 2}})
		if _, err := l.Admit(ann, "a", "b", "c"); !errors.As(err, &no) || !no.Never() {
			t.Errorf("three at once, when two may: %v", err)
		}
		if _, why := admit(t, l, ann, "a", "b"); why != "" {
			t.Errorf("what was refused was charged: %s", why)
		}
	})
}

// own are bounds of single servers.
type own map[string]Own

func (own) Limited() bool { return true }

func (o own) Limits(server, tool string) Own {
	one := o[server]
	one.Server, one.Tool = server, tool
	return one
}

func TestCalls(t *testing.T) {
	t.Parallel()
	l := New(Policy{ClientCalls: 2, ToolCalls: 3, Servers: own{"s": {Calls: 4}, "one": {ToolCalls: 1}}})
	at := func(c Caller, server string) Caller { c.Server = server; return c }
	var held []*Slot
	step := func(c Caller, tool, want string) {
		t.Helper()
		p, why := admit(t, l, c, tool)
		if why != want {
			t.Errorf("%v calls %q: %q, want %q", c, tool, why, want)
		}
		if s := p.Next(); s != nil {
			held = append(held, s)
		}
	}
	cat := Caller{Client: "user cat"}
	step(at(ann, "s"), "a", "")
	step(at(ann, "s"), "a", "")
	step(at(ann, "s"), "a", "client_calls")
	step(at(bob, "s"), "a", "")
	step(at(bob, "s"), "a", "tool_calls")
	step(at(bob, "s"), "b", "")
	step(at(cat, "s"), "", "server_calls")
	step(at(cat, "one"), "a", "")
	step(at(cat, "one"), "a", "tool_calls")
	step(at(cat, "one"), "", "")
	for _, s := range held {
		s.Release()
		s.Release()
	}
	if len(l.counts) > 0 {
		t.Errorf("left: %v", l.counts)
	}
	p := l.Hold(at(ann, "one"), "a", "a", "a")
	step(at(bob, "one"), "a", "tool_calls")
	p.Release()
	step(at(bob, "one"), "a", "")
}

// The memory for any number of names is bounded. When the bound is reached, a new name does not evade the rate.
func TestBuckets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Policy{Rate: Rate{PerSecond: 1, Burst: 1}})
		_, _ = admit(t, l, ann)
		for i := range 3 * leastBuckets {
			_, _ = admit(t, l, Caller{Client: fmt.Sprint(i)})
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(l.buckets.all); n > leastBuckets+1 {
			t.Errorf("%d buckets, of which 100 are in use", n)
		}
		for i := range mostBuckets + 1000 {
			_, _ = admit(t, l, Caller{Client: fmt.Sprint("flood", i)})
		}
		if n := len(l.buckets.all); n > mostBuckets+crowdBuckets {
			t.Errorf("%d buckets", n)
		}
		began := 0
		for i := range 10 * crowdBuckets {
			if _, why := admit(t, l, Caller{Client: fmt.Sprint("more", i)}); why == "" {
				began++
			}
		}
		if began > crowdBuckets {
			t.Errorf("%d calls of names that are new", began)
		}
		time.Sleep(2 * time.Second)
		if _, why := admit(t, l, ann); why != "" {
			t.Errorf("afterwards: %s", why)
		}
		if _, why := admit(t, l, bob); why != "" || len(l.buckets.all) > leastBuckets {
			t.Errorf("afterwards: %s, and %d buckets", why, len(l.buckets.all))
		}
	})
}

// waits queues a call, and returns the channel of its pass, or its refusal.
func waits(t *testing.T, ctx context.Context, l *Limiter, c Caller, tool string) <-chan any {
	t.Helper()
	_, err := l.Admit(c, tool)
	var full *Refusal
	if !errors.As(err, &full) || !full.Waits() {
		t.Fatalf("%v calls %s: %v", c, tool, err)
	}
	done := make(chan any, 1)
	go func() {
		if p, err := full.Queue().Wait(ctx, nil); err != nil {
			done <- err
		} else {
			done <- p
		}
	}()
	synctest.Wait()
	return done
}

// began returns the pass of a call that has waited, or nil if the call still waits.
func began(done <-chan any) *Pass {
	synctest.Wait()
	select {
	case p := <-done:
		pass, _ := p.(*Pass)
		return pass
	default:
		return nil
	}
}

// Waiting clients take turns, each with its calls in order. A call that is not blocked by the same bound passes them.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Policy{ToolCalls: 1, Queue: 10})
		ctx := t.Context()
		slow, _ := l.Admit(ann, "slow")
		other, _ := l.Admit(ann, "other")
		ann1 := waits(t, ctx, l, ann, "slow")
		ann2 := waits(t, ctx, l, ann, "slow")
		annOther := waits(t, ctx, l, ann, "other")
		bob1 := waits(t, ctx, l, bob, "slow")
		if l.Waiting() != 4 {
			t.Errorf("%d wait", l.Waiting())
		}
		other.Release()
		if began(annOther) == nil {
			t.Fatal("a call of a tool that is free waits behind others")
		}
		for i, next := range []<-chan any{bob1, ann1, ann2} { // ann had the last turn
			slow.Release()
			if slow = began(next); slow == nil {
				t.Fatalf("call %d did not begin", i)
			}
		}
		if l.Waiting() != 0 || len(l.queue.lines) != 0 {
			t.Errorf("%d wait", l.Waiting())
		}
		slow.Release()
	})
}

// The queue is bounded, also for one client. A call leaves the queue when its client leaves, or
// after QueueWait. A place that is offered to such a call is freed again.
func TestQueueBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Policy{ClientCalls: 1, ToolCalls: 2, Queue: 4, QueueWait: 3 * time.Second, Share: 0.75})
		ctx, leave := context.WithCancel(t.Context())
		first, _ := l.Admit(ann, "a")
		second, _ := l.Admit(bob, "a")
		one := waits(t, ctx, l, ann, "a")
		two := waits(t, t.Context(), l, ann, "a")
		three := waits(t, t.Context(), l, ann, "a")
		refused := func(c Caller, want string) {
			t.Helper()
			var no *Refusal
			if err, _ := (<-waits(t, t.Context(), l, c, "a")).(error); !errors.As(err, &no) || no.Reason() != want || no.Waits() {
				t.Errorf("%v: %v, want %s", c, err, want)
			}
		}
		refused(ann, "queue_full") // more than the client's share
		time.Sleep(time.Second)
		four := waits(t, t.Context(), l, bob, "a")
		refused(Caller{Client: "user cat"}, "queue_full")
		leave()
		if err, _ := (<-one).(error); !errors.Is(err, context.Canceled) || l.Waiting() != 3 {
			t.Errorf("%v, and %d wait", err, l.Waiting())
		}
		time.Sleep(2 * time.Second)
		var no *Refusal
		for _, late := range []<-chan any{two, three} {
			if err, _ := (<-late).(error); !errors.As(err, &no) || no.Reason() != "queue_wait" {
				t.Errorf("after 3 s: %v", err)
			}
		}
		first.Release()
		if began(four) != nil {
			t.Error("a client has two calls")
		}
		second.Release()
		if p := began(four); p == nil {
			t.Error("the last did not begin")
		} else {
			p.Release()
		}
		if len(l.counts) != 0 || l.Waiting() != 0 {
			t.Errorf("left: %v", l.counts)
		}
	})
}

// Under concurrent calls the bounds hold, and nothing is left.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	l := New(Policy{ClientCalls: 3, ToolCalls: 5, Queue: 20, QueueWait: time.Minute})
	var all, done atomic.Int64
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			c := Caller{Client: fmt.Sprint("user", i%4)}
			for j := range 50 {
				p, err := l.Admit(c, "a")
				var full *Refusal
				if errors.As(err, &full) && full.Waits() {
					ctx, stop := context.WithTimeout(t.Context(), time.Duration(j%5)*time.Millisecond)
					p, err = full.Queue().Wait(ctx, nil)
					stop()
				}
				if err != nil {
					continue
				}
				if n := all.Add(1); n > 5 {
					t.Errorf("%d calls are in flight", n)
				}
				done.Add(1)
				all.Add(-1)
				if s := p.Next(); j%2 == 0 {
					s.Release()
				} else {
					defer s.Release()
					s.Release()
				}
			}
		})
	}
	wg.Wait()
	if len(l.counts) != 0 || l.Waiting() != 0 || done.Load() == 0 {
		t.Errorf("left: %v; %d were done", l.counts, done.Load())
	}
}

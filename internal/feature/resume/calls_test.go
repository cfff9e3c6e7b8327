package resume

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/ticket"
)

const able = `{"capabilities":{"resumableRequests":{}}}`

// An owner is the owner of a call in tests.
type owner struct {
	mu        sync.Mutex
	read      bool
	looked    int
	told      uint64
	lost      bool
	cancelled []string
	why       string
}

func (o *owner) locked(do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do()
}

func (o *owner) Look(do func(pending, asks, isRead bool)) {
	o.locked(func() { o.looked++; do(false, false, o.read) })
}

func (o *owner) Told(seq uint64) { o.told = seq }
func (o *owner) IsKept() bool    { return !o.lost }
func (o *owner) Cancel(ids []string, why string) {
	o.locked(func() { o.cancelled, o.why = append(o.cancelled, ids...), why })
}

func (s *Session) begin(o *owner, ids ...string) (c *Call) {
	for _, id := range ids {
		c = s.Begin(c, o, id, "tools/call")
	}
	return c
}

// If a client is away for longer than MaxWait, its requests that have not ended are cancelled. The time begins anew whenever the client was
// there, and does not pass while it reads.
func TestAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := (&Options{MaxWait: time.Minute}).Session(ticket.Maker{Session: "k", Secret: "s"}, []byte(able))
		o := &owner{read: true}
		c := s.begin(o, "1", "2", "3")
		c.End("2", false)
		if policies := c.Stored(1, 0); len(policies) != 3 {
			t.Errorf("%d policies", len(policies))
		}
		time.Sleep(10*time.Minute + 30*time.Second)
		o.locked(func() { o.read = false })
		s.Seen(1)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		o.locked(func() {
			if len(o.cancelled) > 0 {
				t.Errorf("cancelled too early: %s", o.cancelled)
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		o.locked(func() {
			if want := "cancelled: its client was away for longer than maxWait (1m0s)"; !slices.Equal(o.cancelled, []string{"1", "3"}) || o.why != want {
				t.Errorf("cancelled %s: %s", o.cancelled, o.why)
			}
		})
	})
}

// A client's absence has no effect on a call that has ended, that goes on at another node, or that may wait for ever.
func TestNotAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for what, do := range map[string]func(*Call){"ended": func(c *Call) { c.End("1", true) }, "left": (*Call).Leave} {
			o := &owner{}
			c := (&Options{MaxWait: time.Minute}).Session(ticket.Maker{Session: "k", Secret: "s"}, []byte(able)).begin(o, "1")
			c.Stored(1, 0)
			do(c)
			time.Sleep(time.Hour)
			synctest.Wait()
			if o.looked > 0 || len(o.cancelled) > 0 {
				t.Errorf("%s: its owner was asked %d times", what, o.looked)
			}
		}
		o := &owner{}
		(&Options{MaxWait: -1}).Session(ticket.Maker{Session: "k", Secret: "s"}, []byte(able)).begin(o, "1").Stored(1, 0)
		time.Sleep(100 * time.Hour)
		synctest.Wait()
		if o.looked > 0 {
			t.Error("its client may be away for ever")
		}
	})
}

// A restored call sends the resume policies that it has not sent yet. A call that has ended sends none.
func TestStoredAgain(t *testing.T) {
	t.Parallel()
	s := (&Options{MaxWait: -1}).Session(ticket.Maker{Session: "k", Secret: "s"}, []byte(able))
	for said, want := range []int{2, 1, 0, 0} {
		c := s.begin(&owner{}, "1", `"b"`)
		policies := c.Stored(7, uint64(said))
		if len(policies) != want {
			t.Errorf("%d said: %q", said, policies)
		}
		if token, _ := s.Token(7, []byte(`"b"`)); want > 0 && !strings.Contains(string(policies[want-1]), fmt.Sprintf(`{"requestId":"b","resumeToken":%q}`, token)) {
			t.Errorf("%q", policies)
		}
	}
	c := s.begin(&owner{}, "1")
	c.End("1", false)
	if policies := c.Stored(8, 0); policies != nil {
		t.Errorf("ended: %q", policies)
	}
	s.Told(8, 5)
	if got := s.call(8).owner.(*owner).told; got != 5 {
		t.Errorf("told up to %d", got)
	}
}

// Calls without stored messages are forgotten if there are many calls, or if a sweep is due, and the table shrinks.
func TestSweep(t *testing.T) {
	t.Parallel()
	s := (&Options{MaxWait: -1}).Session(ticket.Maker{Session: "k", Secret: "s"}, []byte(able))
	for n := range uint64(3 * crowd) {
		s.begin(&owner{lost: n%100 > 0}, "1").Stored(n, 0)
		s.Sweep(time.Now())
		if s.Len() > crowd+2*int(n/100+1)+1 {
			t.Fatalf("%d calls are known after %d", s.Len(), n)
		}
	}
	known := s.Len()
	s.Sweep(time.Now())
	if s.Len() != known {
		t.Error("swept too early")
	}
	s.Sweep(time.Now().Add(sweepEvery))
	if want := 3*crowd/100 + 1; s.Len() != want {
		t.Errorf("%d calls are known, want %d", s.Len(), want)
	}
	if all := s.kept(); !slices.IsSortedFunc(all, func(a, b *Call) int { return int(a.number) - int(b.number) }) {
		t.Error("not in order")
	}
	var none *Session
	none.Sweep(time.Now().Add(time.Hour))
	none.Seen(1)
	none.Told(1, 1)
}

// A modern call waits for its client's input for an hour at most.
func TestInputWait(t *testing.T) {
	t.Parallel()
	for most, want := range map[time.Duration]time.Duration{-1: time.Hour, time.Minute: time.Minute, 2 * time.Hour: time.Hour} {
		if got := (&Options{MaxWait: most}).InputWait(); got != want {
			t.Errorf("%v: %v", most, got)
		}
	}
}

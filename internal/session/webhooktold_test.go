package session

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/mcptest"
)

// A teller records the webhooks that it is called for, and accepts all but those that it refuses.
type teller struct {
	mu     sync.Mutex
	refuse string // the id of a request
	keys   map[string]string
	times  map[string]int
}

func newTeller(refuse string) *teller {
	return &teller{refuse: refuse, keys: map[string]string{}, times: map[string]int{}}
}

func (b *teller) ended(e webhook.Ended) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys[string(e.ID)] = e.Key
	b.times[string(e.ID)]++
	return string(e.ID) != b.refuse
}

// told returns the ids of the requests that the teller was called for, sorted.
func (b *teller) told() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(b.times)), " ")
}

// A webhook that was not accepted when its node is lost is told by the next owner under the same key, and no other webhook is: with
// a stream for each call, and with one for all (2024-11-05).
func TestTakeOverTold(t *testing.T) {
	t.Parallel()
	for name, single := range map[string]bool{"streams": false, "single": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newShelf()
			on, next := newTeller("1"), newTeller("")
			o, p := safeTools(), safeTools()
			o.OnEnded, p.OnEnded = on.ended, next.ended
			a, b := f.add(t, "a", o), f.add(t, "b", p)
			s := a.open("alice")
			if single {
				var err error
				if s, err = a.New(newRequest(), caller.Principal{}, true, nil); err != nil {
					t.Fatal(err)
				}
				begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{}}}`)
			}
			awaitListed(t, s)
			for id := range 5 { // one after the other: the session's note lists each
				c := beginAway(t, s, id)
				a.desk.last().say(c, response(id))
				mcptest.Eventually(t, "it to be told", time.Minute, func() bool { return strings.Contains(on.told(), hookID(id)) && s.untold.HasTold() })
			}
			mcptest.Eventually(t, "it to be stored", time.Minute, s.log.IsIdle)
			beginAway(t, s, 7)
			a.kill()
			b.take(s)
			b.Close()
			if told := next.told(); told != "1 7" {
				t.Errorf("the next owner told %q", told)
			}
			if key := on.keys["1"]; key == "" || next.keys["1"] != key {
				t.Errorf("the key was %q, and is %q", key, next.keys["1"])
			}
			keys := map[string]bool{}
			for _, key := range on.keys {
				keys[key] = true
			}
			if len(keys) != 5 {
				t.Errorf("5 webhooks have the keys %v", keys)
			}
		})
	}
}

// beginAway begins a call, and its client leaves.
func beginAway(t *testing.T, s *Session, id int) *Call {
	t.Helper()
	c := begin(t, s, false, hookedRequest(id))
	if !s.single {
		attach(t, s, c.Number()).Detach(true, true, false)
	}
	return c
}

func hookID(id int) string { return string(rune('0' + id)) }

// A session is neither released nor deleted before its webhooks are accepted.
func TestToldBeforeGone(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*fleetNode, *Session){
		"released": func(n *fleetNode, _ *Session) { _ = n.Departure.HandOver(t.Context()) },
		"deleted":  func(n *fleetNode, s *Session) { n.End(s) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newShelf()
			o := safeTools()
			asked, keep := make(chan struct{}), make(chan struct{})
			o.OnEnded = func(webhook.Ended) bool {
				close(asked)
				<-keep
				return true
			}
			n := f.add(t, "a", o)
			s := n.open("alice")
			awaitListed(t, s)
			n.desk.last().say(beginAway(t, s, 1), response(1))
			<-asked
			left := make(chan struct{})
			go func() {
				defer close(left)
				leave(n, s)
			}()
			mcptest.Eventually(t, "it to leave", time.Minute, s.isClosed)
			if is := f.session(s.key); is == nil || is.Owner != "a" {
				t.Errorf("before its webhook is kept the session is %+v", is)
			}
			close(keep)
			<-left
			if is := f.session(s.key); is != nil && is.Owner != "" {
				t.Errorf("the session is %+v", is)
			}
		})
	}
}

// A call with a webhook is in a shared store before it runs, also where its transport would begin it as a light call: otherwise nothing would
// tell the webhook if the node is lost.
func TestToldLight(t *testing.T) {
	t.Parallel()
	f := newShelf()
	o := safeTools()
	on := newTeller("")
	o.OnEnded = on.ended
	lost := safeTools()
	lost.OnEnded = func(webhook.Ended) bool { return true }
	a, b := f.add(t, "a", lost), f.add(t, "b", o)
	s := a.open("alice")
	awaitListed(t, s)
	c := begin(t, s, true, hookedRequest(3))
	if c.Number() == 0 {
		t.Error("it is light")
	}
	a.kill()
	b.take(s)
	b.Close()
	if told := on.told(); told != "3" {
		t.Errorf("the next owner told %q", told)
	}
}

package webhook_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	sender "holdfast/internal/webhook"
	"holdfast/stream"
	"holdfast/webhook"
)

// A shelf is an outbox in memory.
type shelf struct {
	mu    sync.Mutex
	last  uint64
	items map[string]shelved
	away  bool // it does not answer
	stuck bool // removals fail
	mute  bool // removals seem to fail
	looks int  // how often the items were listed
}

type shelved struct {
	value   []byte
	version uint64
	at      time.Time
}

func newShelf() *shelf { return &shelf{items: make(map[string]shelved)} }

func (o *shelf) PutItem(_ context.Context, name string, was uint64, value []byte, ttl time.Duration) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.away:
		return 0, stream.ErrUnavailable
	case o.items[name].version != was:
		return 0, stream.ErrConflict
	case ttl < time.Hour:
		return 0, errors.New("it is not kept for long")
	}
	o.last++
	o.items[name] = shelved{value, o.last, time.Now()}
	return o.last, nil
}

func (o *shelf) Item(_ context.Context, name string) ([]byte, uint64, time.Duration, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	is, ok := o.items[name]
	if !ok {
		return nil, 0, 0, stream.ErrNotFound
	}
	return is.value, is.version, time.Since(is.at), nil
}

func (o *shelf) RemoveItem(_ context.Context, name string, was uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch is, ok := o.items[name]; {
	case o.stuck || o.away:
		return stream.ErrUnavailable
	case ok && was != 0 && is.version != was:
		return stream.ErrConflict
	}
	if delete(o.items, name); o.mute {
		return stream.ErrUnavailable
	}
	return nil
}

func (o *shelf) Items(_ context.Context, yield func(string, []byte) bool) error {
	o.mu.Lock()
	o.looks++
	all := make(map[string][]byte)
	for name, is := range o.items {
		all[name] = is.value
	}
	o.mu.Unlock()
	for name, value := range all {
		if !yield(name, value) {
			break
		}
	}
	return nil
}

func (o *shelf) set(f func(*shelf)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

func (o *shelf) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.items)
}

// others are the other nodes of a node: some are gone.
type others struct {
	mu    sync.Mutex
	gone  map[string]bool
	watch func(string)
}

func (n *others) Gone(_ context.Context, node string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gone[node]
}

func (n *others) Peers() []string { return nil }

func (n *others) Watch(f func(string)) { n.watch = f }

// lose marks a node as gone.
func (n *others) lose(node string) {
	n.mu.Lock()
	n.gone = map[string]bool{node: true}
	n.mu.Unlock()
	n.watch(node)
}

// keeping returns the sender of a node that keeps waiting events in an outbox.
func keeping(t *testing.T, o webhook.Options, in sender.Outbox, node string) (*sender.Sender, *diary) {
	t.Helper()
	o.Allow = allow(t, "127.0.0.1")
	s, log := newSender(t, o)
	s.Keep(in, node)
	return s, log
}

func keyed(url, key string) sender.Event {
	e := event(url)
	e.Key = key
	return e
}

// When a node is gone, another node sends its waiting events, under the same id, and with the remaining tries. Afterwards the
// outbox is empty.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	away.Store(true)
	r := newReceiver(t, func(_ int, w http.ResponseWriter) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	out := newShelf()
	a, logA := keeping(t, webhook.Options{Pause: 200 * time.Millisecond}, out, "a")
	if !a.Send(keyed(r.URL, "one")) {
		t.Error("not told")
	}
	id := r.next(t).header.Get("webhook-id")
	logA.has(t, "to be tried again")
	b, logB := keeping(t, webhook.Options{Pause: 200 * time.Millisecond}, out, "b")
	nodes := &others{}
	b.Attend(nodes)
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	logA.has(t, "are left to other nodes")
	if out.len() != 1 {
		t.Errorf("the outbox has %d", out.len())
	}
	away.Store(false)
	nodes.lose("a")
	logB.has(t, "webhook taken over")
	if got := r.next(t).header.Get("webhook-id"); got != id || id == "" {
		t.Errorf("the second try has the id %q, the first had %q", got, id)
	}
	logB.has(t, `"try":2`)
	mcptest.Eventually(t, "it to be removed", time.Minute, func() bool { return out.len() == 0 })
	if !b.Send(keyed(r.URL, "two")) || r.next(t).header.Get("webhook-id") == id {
		t.Error("another event has the same id")
	}
	r.silent(t)
}

// An event that was sent, and whose removal seemed to fail, does not take the place of a later one whose removal has failed: neither is sent again.
func TestRemovedAfterAll(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	out, nodes := newShelf(), &others{}
	s, log := keeping(t, webhook.Options{Queue: 1}, out, "a")
	s.Attend(nodes)
	looked := func() {
		t.Helper()
		was := 0
		out.set(func(o *shelf) { was = o.looks })
		for i := range 2 { // the second look begins when the first one is over
			nodes.watch("b")
			mcptest.Eventually(t, "a look", time.Minute, func() bool {
				now := 0
				out.set(func(o *shelf) { now = o.looks })
				return now > was+i
			})
		}
	}
	sent := 0
	send := func(key string) {
		t.Helper()
		s.Send(keyed(r.URL, key))
		r.next(t)
		sent++
		mcptest.Eventually(t, "the removal to fail", time.Minute, func() bool {
			return strings.Count(log.String(), "webhook not removed from the store") == sent
		})
	}
	out.set(func(o *shelf) { o.mute = true })
	send("one")
	looked()
	out.set(func(o *shelf) { o.mute, o.stuck = false, true })
	send("two")
	out.set(func(o *shelf) { o.stuck = false })
	looked()
	mcptest.Eventually(t, "it to be removed", time.Minute, func() bool { return out.len() == 0 })
	r.silent(t)
}

// Two nodes that report one end send it once. A node that was wrongly taken for gone stops sending once another node has taken over.
func TestOneSends(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := newReceiver(t, func(n int, w http.ResponseWriter) {
		if n == 0 {
			<-release
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	out := newShelf()
	a, logA := keeping(t, webhook.Options{}, out, "a")
	b, _ := keeping(t, webhook.Options{}, out, "b")
	nodes := &others{}
	b.Attend(nodes)
	a.Send(keyed(r.URL, "one"))
	id := r.next(t).header.Get("webhook-id")
	if !b.Send(keyed(r.URL, "one")) || !a.Send(keyed(r.URL, "one")) {
		t.Error("who tells of it again is not told that it is known")
	}
	r.silent(t)
	nodes.lose("a")
	if got := r.next(t).header.Get("webhook-id"); got != id {
		t.Errorf("taken over under the id %q, was %q", got, id)
	}
	mcptest.Eventually(t, "it to be removed", time.Minute, func() bool { return out.len() == 0 })
	out.set(func(o *shelf) { o.items[id] = shelved{[]byte(`{"node":"b"}`), 1000, time.Now()} }) // node b still tries
	close(release)
	logA.has(t, "webhook left to another node")
	r.silent(t)
	out.set(func(o *shelf) { clear(o.items) })
}

// If the outbox does not take an event, the event is sent, and not reported as kept. If the outbox does not remove it, the event is not sent again.
func TestOutboxAway(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	out := newShelf()
	s, log := keeping(t, webhook.Options{}, out, "a")
	nodes := &others{}
	s.Attend(nodes)
	out.set(func(o *shelf) { o.away = true })
	if s.Send(keyed(r.URL, "one")) {
		t.Error("said to be kept")
	}
	r.next(t)
	log.has(t, "webhook not kept")
	out.set(func(o *shelf) { o.away, o.stuck = false, true })
	if !s.Send(keyed(r.URL, "two")) {
		t.Error("said not to be kept")
	}
	r.next(t)
	log.has(t, "webhook not removed")
	out.set(func(o *shelf) { o.stuck = false })
	nodes.lose("x") // it looks into the outbox
	mcptest.Eventually(t, "it to be removed", time.Minute, func() bool { return out.len() == 0 })
	r.silent(t)
}

// An event that has expired while no node lived is tried once. An event with a URL that is no longer allowed is not sent.
func TestLate(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) })
	out := newShelf()
	a, logA := keeping(t, webhook.Options{Pause: time.Minute}, out, "a")
	a.Send(keyed(r.URL, "one"))
	r.next(t)
	logA.has(t, "to be tried again")
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	out.set(func(o *shelf) {
		for name, is := range o.items {
			is.at = is.at.Add(-2 * time.Hour)
			o.items[name] = is
		}
		elsewhere := `{"node":"a","url":"https://10.0.0.1/"}`
		o.items["elsewhere"] = shelved{[]byte(elsewhere), 1000, time.Now()}
	})
	b, log := keeping(t, webhook.Options{}, out, "b")
	nodes := &others{gone: map[string]bool{"a": true}}
	b.Attend(nodes) // looks into the outbox at once
	r.next(t)
	log.has(t, "webhook given up")
	mcptest.Eventually(t, "both to be removed", time.Minute, func() bool { return out.len() == 0 })
	r.silent(t)
	if n := strings.Count(log.String(), `"webhook refused"`); n != 1 {
		t.Errorf("refused %d times", n)
	}
}

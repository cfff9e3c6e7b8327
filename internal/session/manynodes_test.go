package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/backend/message"
	"holdfast/internal/caller"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/handover"
	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
	"holdfast/internal/observe/observetest"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A workshop is a backend on many nodes that counts, for each call, how often it
// ran. A tool says "progress" a few times before it answers.
type workshop struct {
	mu   sync.Mutex
	runs map[string]int
}

const steps = 3

func (w *workshop) Serve(x *message.Exchange) {
	switch x.Method {
	case "initialize":
		x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{}}`))
	case "tools/list":
		x.Result([]byte(`{"tools":[]}`))
	case "tools/call":
		k := jsonrpc.String(jsonrpc.Field(x.Params, "arguments", "k"))
		w.mu.Lock()
		w.runs[k]++
		w.mu.Unlock()
		go func() {
			for i := range steps {
				time.Sleep(rand.N(3 * time.Millisecond)) // a tool takes its time
				x.Notify("notifications/progress", fmt.Appendf(nil, `{"k":%q,"n":%d}`, k, i))
			}
			x.Result(fmt.Appendf(nil, `{"k":%q}`, k))
		}()
	}
}

func (w *workshop) ran(k string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[k]
}

// A fleet is nodes over one engine. The test kills some of them.
type fleet struct {
	t      *testing.T
	engine *logtest.Engine
	shop   *workshop
	ends   sync.WaitGroup // killed nodes that have yet to end

	mu     sync.Mutex
	nodes  map[string]*member
	killed int
}

type member struct {
	*Manager
	name   string
	handle *logtest.Handle
	dead   atomic.Bool
}

// start adds a node.
func (f *fleet) start() {
	h := f.engine.Open()
	store := durable.New(h, durable.Options{Patience: time.Second, Logger: slog.New(slog.DiscardHandler)})
	o := safeTools()
	o.Observers = observe.Observers{observetest.New(f.t)}
	o.Logger = slog.New(slog.DiscardHandler)
	n := &member{Manager: NewManager(store, message.New(f.shop), o), name: store.Node(), handle: h}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[n.name] = n
}

// stop ends a node, either in good order, or, as the others see it, by SIGKILL.
func (f *fleet) stop(n *member, kill bool) {
	f.mu.Lock()
	delete(f.nodes, n.name)
	f.killed++
	f.mu.Unlock()
	if kill {
		n.dead.Store(true)
		n.handle.Cut(true)
	}
	f.ends.Go(func() {
		began, stood := time.Now(), mcptest.Standstill()
		defer func() {
			if d := time.Since(began) - stood(); d >= handover.ClosePatience {
				f.t.Errorf("a node took %v to stop", d)
			}
		}()
		if !kill {
			ctx, stop := context.WithTimeout(context.Background(), rand.N(20*time.Millisecond))
			_ = n.Departure.HandOver(ctx)
			stop()
		}
		n.Close()
		if err := n.store.Close(); err != nil {
			f.t.Error(err)
		}
	})
}

// any returns a node that lives.
func (f *fleet) any() *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes { // in no order
		return n
	}
	return nil
}

func (f *fleet) named(name string) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[name]
}

// visitor is a client and its session.
type visitor struct {
	*fleet
	key stream.SessionKey
	at  *member
	s   *Session
}

// find finds the session on any node. It takes the session over if its owner is
// gone, and at times if the owner only seems to be.
func (v *visitor) find() {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // a client's pause
		if time.Now().After(end) {
			v.t.Fatal("the session is not to be found")
		}
		n := v.any()
		ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
		s, away, err := n.Locate(ctx, v.key, caller.Principal{})
		stop()
		if err == nil && s == nil {
			if owner := v.named(away.Owner); owner != nil && rand.N(10) > 0 {
				n = owner
				if s, err = n.FindName(string(v.key), caller.Principal{}); err != nil {
					continue // the session is about to leave that node, or to come
				}
			} else {
				s, err = n.TakeOver(context.Background(), away)
			}
		}
		if errors.Is(err, ErrNotFound) && !n.dead.Load() {
			v.t.Fatalf("the session is gone: %v", err)
		}
		if err == nil && !n.dead.Load() {
			v.at, v.s = n, s
			return
		}
	}
}

// call makes a call and reads its stream to the end, whatever happens to the nodes.
func (v *visitor) call(id int, tool string, key string) {
	k := fmt.Sprintf("%s/%d", v.key, id)
	msg := mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"k":%q}}}`, id, tool, k))
	msgs := []jsonrpc.Message{msg}
	var number uint64
	for number == 0 {
		var c *Call
		var known *ExistingCall
		var err error
		if key != "" {
			c, known, err = v.s.BeginOnce(Once{Key: key}, msg.Raw, msgs)
		} else {
			c, err = v.s.Begin(msgs, false)
		}
		switch {
		case err == nil && v.at.dead.Load() && key == "":
			return // the client never learns the call's number
		case err == nil && c != nil:
			number = c.Number()
			c.Deliver(context.Background(), msgs, nil)
		case err == nil:
			number = known.Number
		case key == "" && !errors.Is(err, ErrMoved) && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrClosing):
			v.t.Errorf("call %s: %v", k, err)
			return
		case key == "":
			v.find()
			return
		case errors.Is(err, idempotency.ErrGone) || errors.Is(err, idempotency.ErrReused):
			v.t.Errorf("call %s: %v", k, err)
			return
		}
		if err != nil || v.at.dead.Load() {
			v.find()
			if number != 0 && key == "" {
				break // the client may have the answer to its POST
			}
			number = 0
		}
	}
	said, epochs := v.read(k, number)
	v.check(k, tool, said, epochs)
}

// read reads a stream to its end. epochs counts the epochs under which it was written.
func (v *visitor) read(k string, number uint64) (said []string, epochs int) {
	at := stream.Cursor{Stream: stream.ID{Number: number}}
	buf := make([]stream.Entry, 0, 2)
	for end := time.Now().Add(time.Minute); ; {
		if time.Now().After(end) {
			v.s.mu.Lock()
			v.t.Errorf("call %s hangs after %q: closed %v, moved %v, %d open, link %v, opening %v, call %+v", k, said,
				v.s.isClosed(), v.s.Moved(), len(v.s.requests.all), v.s.backend.link, v.s.backend.opening, v.s.CallAt(number))
			for key, rq := range v.s.requests.all {
				v.t.Errorf("open: %s %+v", key, rq)
			}
			v.s.mu.Unlock()
			return append(said, "outcome unknown"), 0
		}
		ready := make(chan struct{}, 1)
		r, err := v.s.Read(context.Background(), number, at.Epoch, at.Seq, ready)
		if err != nil {
			if !errors.Is(err, ErrMoved) && !v.at.dead.Load() && !v.s.isClosed() {
				v.t.Fatalf("call %s: read after %+v: %v", k, at, err)
			}
			v.find()
			continue
		}
		for {
			got, err := r.Next(context.Background(), buf[:0])
			if err != nil || v.at.dead.Load() {
				break
			}
			for _, e := range got {
				if e.Seq != at.Seq+1 || e.Epoch < at.Epoch {
					v.t.Errorf("call %s: %d of epoch %d follows %d of epoch %d", k, e.Seq, e.Epoch, at.Seq, at.Epoch)
				}
				if e.Epoch != at.Epoch {
					epochs++
				}
				at.Seq, at.Epoch = e.Seq, e.Epoch
				said = append(said, string(e.Data))
				if e.Last {
					r.Delivered()
					r.Detach(false, true, false)
					return said, epochs
				}
			}
			if len(got) > 0 {
				r.Delivered()
				if rand.N(8) == 0 {
					break // connections break, too
				}
				continue
			}
			if r.Gone() || time.Now().After(end) {
				break
			}
			select {
			case <-ready:
			case <-time.After(50 * time.Millisecond): // a dead node wakes no reader
			}
		}
		r.Detach(true, true, false)
		if v.at.dead.Load() || v.s.isClosed() {
			v.find()
		}
	}
}

// check checks the messages of a call that has ended.
func (v *visitor) check(k, tool string, said []string, epochs int) {
	runs, last := v.shop.ran(k), said[len(said)-1]
	good := strings.Contains(last, `"result"`)
	if strings.Contains(last, "not delivered") && tool != "safe" && runs == 0 {
		return // the client may make the call again
	}
	if !good && !strings.Contains(last, "outcome unknown") {
		v.t.Errorf("call %s ended with %s", k, last)
	}
	if tool == "safe" && !good && !strings.Contains(last, "did not take") &&
		!strings.Contains(last, "shutting down") && !strings.Contains(last, "could not be kept") {
		v.t.Errorf("call %s, which is safe, ended with %s", k, last)
	}
	if tool != "safe" && runs > 1 || good && runs == 0 {
		v.t.Errorf("call %s ran %d times", k, runs)
	}
	for i, text := range said[:len(said)-1] {
		n := fmt.Sprintf(`"n":%d`, i)
		if !strings.Contains(text, k) || epochs == 1 && !strings.Contains(text, n) {
			v.t.Errorf("call %s: message %d is %s", k, i, text)
		}
	}
	if good && (epochs == 1 && len(said) != steps+1 || len(said) < steps+1) {
		v.t.Errorf("call %s said %q", k, said)
	}
}

// Whatever is killed, stopped or taken over by mistake: each call ends, each of its
// messages is read once and in order, and a call that must not run twice does not.
func TestFleet(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]logtest.Faults{"sound": {}, "faulty": {Before: 0.01, After: 0.01, Late: 0.01}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := logtest.New(logtest.Options{Seed: uint64(time.Now().UnixNano()), Faults: faults})
			f := &fleet{t: t, engine: e, shop: &workshop{runs: map[string]int{}}, nodes: map[string]*member{}}
			f.run(8, 25, 30)
		})
	}
}

func (f *fleet) run(visitors, calls, kills int) {
	for range 3 {
		f.start()
	}
	var group sync.WaitGroup
	for range visitors {
		group.Go(func() {
			n := f.any()
			s, err := n.New(newRequest(), caller.Principal{}, false, nil)
			for err != nil && f.named(n.name) != n { // the node was stopped just now
				n = f.any()
				s, err = n.New(newRequest(), caller.Principal{}, false, nil)
			}
			if err != nil {
				f.t.Error(err)
				return
			}
			v := &visitor{fleet: f, key: s.key, at: n, s: s}
			c, err := s.Begin([]jsonrpc.Message{mcptest.Parse(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)}, true)
			if err != nil {
				return // its node was killed before it began: the client begins anew
			}
			c.Deliver(context.Background(), []jsonrpc.Message{mcptest.Parse(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)}, nil)
			for i := range calls {
				tool, key := []string{"safe", "x"}[rand.N(2)], ""
				if rand.N(3) == 0 {
					key = fmt.Sprint(i)
				}
				v.call(i, tool, key)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	for range kills {
		select {
		case <-done:
		case <-time.After(20 * time.Millisecond): // how often nodes are lost
			n := f.any()
			f.start()
			f.stop(n, rand.N(3) > 0)
		}
	}
	<-done
	last := f.any()
	if err := last.Finder.Sweep(context.Background(), func(node string) bool { return f.named(node) == nil },
		func(stream.SessionKey) bool { return true }); err != nil {
		f.t.Error(err)
	}
	mcptest.Eventually(f.t, "all calls to end", time.Minute, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, n := range f.nodes {
			if n.Calls() > 0 {
				return false
			}
		}
		return true
	})
	f.mu.Lock()
	rest := f.nodes
	f.nodes = map[string]*member{}
	killed := f.killed
	f.mu.Unlock()
	for _, n := range rest {
		f.stop(n, false)
	}
	f.ends.Wait()
	f.t.Logf("%d nodes were stopped, %d calls ran", killed, len(f.shop.runs))
}

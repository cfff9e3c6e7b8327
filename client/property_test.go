package client_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/testlong"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "seed of the property test; 0: a new one, to look for what is not known yet")
	worldFlag = flag.Int("worlds", 1, "how many worlds the property test makes for each transport")
	callsFlag = flag.Int("calls", 0, "how many calls the property test makes in each; 0: as many as take about 10 s")
)

// A way is the transport and the ways back that a server offers to a client that has lost its connection.
type way struct {
	name     string
	withheld withheld
	server   holdfast.Options
	revision string
	path     string // "": /mcp
	ws       bool
	// lossy says that notifications outside of calls may come twice, or not at all, as
	// there are no ids to know them by. The client does not listen to them.
	lossy bool
}

const polls = 40 * time.Millisecond

// ways has all ways.
var ways = []way{
	{name: "all"},
	{name: "all, 2025-06-18", revision: "2025-06-18"},
	{name: "all, 2025-03-26", revision: "2025-03-26"},
	{name: "all, polled", server: holdfast.Options{DisconnectAfter: polls}},
	{name: "all, polled, 2025-06-18", server: holdfast.Options{DisconnectAfter: polls}, revision: "2025-06-18"},
	{name: "all, JSON", server: holdfast.Options{Response: holdfast.ResponseJSON}},
	{name: "all, SSE", server: holdfast.Options{Response: holdfast.ResponseSSE}},
	{name: "no link", withheld: withheld{link: true}},
	{name: "no ids", withheld: withheld{ids: true}, lossy: true},
	{name: "no policy", withheld: withheld{policy: true}},
	{name: "no keys", withheld: withheld{keys: true}},
	{name: "no keys, JSON", withheld: withheld{keys: true}, server: holdfast.Options{Response: holdfast.ResponseJSON}},
	{name: "link alone", withheld: withheld{ids: true, policy: true, keys: true}, lossy: true},
	{name: "ids alone", withheld: withheld{link: true, policy: true, keys: true}},
	{name: "ids alone, polled", withheld: withheld{link: true, policy: true, keys: true}, server: holdfast.Options{DisconnectAfter: polls}},
	{name: "ids alone, 2025-03-26", withheld: withheld{link: true, policy: true, keys: true}, revision: "2025-03-26"},
	{name: "policy alone", withheld: withheld{link: true, ids: true, keys: true}, lossy: true},
	{name: "policy and ids", withheld: withheld{link: true, keys: true}},
	{name: "keys alone", withheld: withheld{link: true, ids: true, policy: true}, lossy: true},
	{name: "keys and ids", withheld: withheld{link: true, policy: true}},
	// With a later revision the server would end connections, as it would take them for resumable.
	{name: "nothing", withheld: withheld{link: true, ids: true, policy: true, keys: true}, revision: "2025-06-18", lossy: true},
	{name: "HTTP+SSE", path: "/sse"},
	{name: "WebSocket", ws: true},
}

// Whatever happens to the connections between our client and our server: each message arrives
// once and in order, each tool runs once, and no call hangs.
func TestProperty(t *testing.T) {
	t.Parallel()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	n := *callsFlag
	switch {
	case n > 0:
	case testlong.Race:
		n = 25
	default:
		n = testlong.Either(8, 50)
	}
	var calls, unknown, asked, told, fouled atomic.Int64
	began := time.Now()
	t.Cleanup(func() {
		t.Logf("seed %d: %d calls (%d of unknown outcome), %d questions, %d notifications, %d faults in %v", seed,
			calls.Load(), unknown.Load(), asked.Load(), told.Load(), fouled.Load(), time.Since(began).Round(time.Millisecond))
	})
	for _, way := range ways {
		for i := range *worldFlag {
			t.Run(fmt.Sprintf("%s/%d", way.name, seed+uint64(i)), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, way, seed+uint64(i))
				w.run(n)
				w.end()
				calls.Add(int64(len(w.calls)))
				unknown.Add(w.unknown.Load())
				for _, c := range w.calls {
					asked.Add(int64(c.plan.asks()))
				}
				told.Add(int64(len(w.updates)))
				for _, n := range w.faultProxy.counts {
					fouled.Add(int64(n))
				}
			})
		}
	}
}

// run makes calls, several at a time.
func (w *world) run(n int) {
	ctx, stop := context.WithTimeout(w.t.Context(), patience())
	for {
		began := time.Now()
		err := w.session.Subscribe(ctx, &mcp.SubscribeParams{URI: "x://a"})
		w.looked("resources/subscribe", err, began)
		if err == nil || ctx.Err() != nil || w.t.Failed() {
			break
		}
	}
	if ctx.Err() != nil {
		w.t.Errorf("%s: not subscribed in all this time", w.way.name)
	}
	stop()
	r := rand.New(rand.NewPCG(w.seed, 2))
	for k := range n {
		w.calls = append(w.calls, &called{number: k, plan: newPlot(r), asked: map[string]int{}, answers: map[string]string{}})
	}
	jobs := make(chan func())
	var workers sync.WaitGroup
	for range 12 {
		workers.Go(func() {
			for job := range jobs {
				job()
			}
		})
	}
	for _, c := range w.calls {
		tool := []string{"work", "safe"}[r.IntN(2)]
		if r.IntN(16) == 0 {
			after := time.Duration(r.IntN(150)) * time.Millisecond
			jobs <- func() { w.cancel(c, tool, after) }
		} else {
			jobs <- func() { w.call(c, tool) }
		}
		switch r.IntN(8) {
		case 0:
			jobs <- w.look
		case 1, 2:
			w.update()
		}
	}
	close(jobs)
	workers.Wait()
}

// update sends a notification outside of calls.
func (w *world) update() {
	w.updated++
	_ = w.server.ResourceUpdated(context.Background(), &mcp.ResourceUpdatedNotificationParams{
		URI: "x://a", Meta: mcp.Meta{"n": w.updated}})
}

// look makes retry-safe requests.
func (w *world) look() {
	ctx, stop := context.WithTimeout(w.t.Context(), patience())
	defer stop()
	began := time.Now()
	tools, err := w.session.ListTools(ctx, nil)
	if err == nil && len(tools.Tools) != 2 {
		err = errors.New("not all of them")
	}
	w.looked("tools/list", err, began)
	began = time.Now()
	resource, err := w.session.ReadResource(ctx, &mcp.ReadResourceParams{URI: "x://a"})
	if err == nil && resource.Contents[0].Text != "a" {
		err = errors.New("not what is in it")
	}
	w.looked("resources/read", err, began)
}

func (w *world) looked(what string, err error, began time.Time) {
	// Two connections may have died without a notice, one after the other.
	if err != nil && time.Since(began) < 2*answerTimeout {
		w.t.Errorf("%s: %s: %v", w.way.name, what, err)
	}
}

// closeTimeout is how long the client waits for the server to end a session.
const closeTimeout = 5 * time.Second

// call makes a call and checks its result and messages.
func (w *world) call(c *called, tool string) {
	if w.t.Failed() {
		return
	}
	ctx, stop := context.WithTimeout(w.t.Context(), patience())
	defer stop()
	p := &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"k": c.number}}
	p.SetProgressToken(fmt.Sprintf("%d", c.number))
	began := time.Now()
	res, err := w.session.CallTool(ctx, p)
	w.trace.addf("test: call %d ended after %v: %v", c.number, time.Since(began), err)
	if holdfast.OutcomeUnknown(err) && w.mayBeUnknown(c, time.Since(began)) {
		w.unknown.Add(1)
		if n := c.runs.Load(); n > 1 {
			w.wrong(c, "it ran %d times", n)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		w.inOrder(c, false)
		return
	}
	switch {
	case err != nil:
		w.wrong(c, "%v", err)
		return
	case c.plan.fails() != res.IsError:
		w.wrong(c, "its result is %v %v", res.IsError, res.Content)
	case !res.IsError && res.StructuredContent != float64(c.number):
		w.wrong(c, "its result is %v", res.StructuredContent)
	}
	if n := c.runs.Load(); n != 1 {
		w.wrong(c, "it ran %d times", n)
	}
	// The official client hands out responses ahead of earlier notifications.
	eventually(ctx, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.progress) >= c.plan.tells()
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	w.inOrder(c, true)
}

// cancel makes a call, and cancels it after a while.
func (w *world) cancel(c *called, tool string, after time.Duration) {
	ctx, stop := context.WithTimeout(w.t.Context(), after)
	defer stop()
	p := &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"k": c.number}}
	p.SetProgressToken(fmt.Sprintf("%d", c.number))
	_, err := w.session.CallTool(ctx, p)
	w.trace.addf("test: call %d, cancelled after %v, ended: %v", c.number, after, err)
	if n := c.runs.Load(); n > 1 {
		w.wrong(c, "it ran %d times", n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w.inOrder(c, false)
}

// eventually waits until so returns true, or ctx is done.
func eventually(ctx context.Context, so func() bool) bool {
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for !so() {
		select {
		case <-t.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// inOrder checks that a call's messages are all of its messages, or the first of them. c.mu is held.
func (w *world) inOrder(c *called, all bool) {
	for i, n := range c.progress {
		if n != float64(i+1) {
			w.wrong(c, "progress came as %v", c.progress)
			break
		}
	}
	if n := c.plan.tells(); all && len(c.progress) != n {
		w.wrong(c, "%d of %d progress notifications came", len(c.progress), n)
	}
	for q, n := range c.asked {
		if n != 1 {
			w.wrong(c, "question %s was asked %d times", q, n)
		}
	}
	for q, a := range c.answers {
		if a != "to "+q {
			w.wrong(c, "question %s was answered %q", q, a)
		}
	}
	if n := c.plan.asks(); all && (len(c.asked) != n || len(c.answers) != n) {
		w.wrong(c, "%d questions, %d asked, %d answered", n, len(c.asked), len(c.answers))
	}
}

// mayBeUnknown says whether the client may be unable to learn the outcome of a call.
func (w *world) mayBeUnknown(c *called, after time.Duration) bool {
	if w.way.ws || w.way.path == "" && !w.way.withheld.keys {
		return false // with a key the request can be sent again
	}
	if after >= answerTimeout || w.way.path != "" && after >= connectTimeout {
		return true // the machine was busy, or stood still
	}
	return w.faultProxy.hurt(c.number, func(p *post) bool {
		head, body, whole := bytes.Cut(p.passed, []byte("\r\n\r\n"))
		withheld := w.way.withheld
		hasID := !withheld.ids && hasID.Match(body)
		switch {
		case p.reset:
			return true // bytes that were passed on may have been lost behind the cut
		case w.way.path != "":
			return !whole // the response comes on another connection
		case !whole || !bytes.Contains(head, []byte("event-stream")):
			return true
		case !withheld.link:
			// A server that believes that its message was read waits for an answer. A
			// client without an id cannot correct it: SEP-1335 has no means for that.
			return !hasID && c.plan.asks() > 0
		case hasID:
			return false
		}
		return withheld.policy || !hasPolicy.Match(body)
	})
}

var (
	hasID     = regexp.MustCompile(`(?s)id: .*\n\n`)
	hasPolicy = regexp.MustCompile(`(?s)requests/resumePolicy.*\n\n`)
)

// wrong fails the test.
func (w *world) wrong(c *called, format string, args ...any) {
	w.t.Errorf("%s: call %d (%v): %s", w.way.name, c.number, c.plan, fmt.Sprintf(format, args...))
}

// end ends the session and checks that nothing is left.
func (w *world) end() {
	w.faultProxy.bad.Store(0)
	ctx, stop := context.WithTimeout(w.t.Context(), patience())
	defer stop()
	// A client that does not declare that it can resume, and has no id yet, cannot
	// tell the server that it has read no message.
	late := func() bool {
		return w.way.withheld.policy && w.faultProxy.hurt(standalone, func(p *post) bool { return p.reset || !hasID.Match(p.passed) })
	}
	// Updates come at any time. If all of them may be lost, more are sent, until one comes.
	said := time.Now()
	ok := w.way.lossy || eventually(ctx, func() bool {
		if late() && time.Since(said) > time.Second {
			w.update()
			said = time.Now()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		n := len(w.updates)
		return n >= int(w.updated) || late() && n > 0 && w.updates[n-1] >= w.updated
	})
	w.mu.Lock()
	for i, n := range w.updates {
		ok = ok && (n == float64(i+1) || late() && n == w.updates[0]+float64(i))
	}
	if !ok {
		w.t.Errorf("%s: updates came as %v, want %v of them", w.way.name, w.updates, w.updated)
	}
	w.mu.Unlock()
	if w.way.path != "" {
		// An HTTP+SSE client cannot end its session, nor a call there that waits for an answer on its way.
		eventually(ctx, func() bool {
			return !slices.ContainsFunc(w.calls, func(c *called) bool { return c.runs.Load() != c.ended.Load() })
		})
	}
	began := time.Now()
	if err := w.session.Close(); err != nil && time.Since(began) < closeTimeout {
		w.t.Errorf("close: %v", err)
	} else if err != nil {
		// If the machine stood still, the server may not have got the DELETE.
		for s := range w.server.Sessions() {
			_ = s.Close()
		}
	}
	w.dials.CloseIdleConnections()
	left := func() (n int) {
		for s := range w.server.Sessions() {
			if s.ID() != "" { // a session without an id is Holdfast's own, for modern requests such as server/discover
				n++
			}
		}
		return n
	}
	// An HTTP+SSE client cannot end its session.
	if w.way.path == "" && !eventually(ctx, func() bool { return left() <= w.faultProxy.orphans }) {
		w.t.Errorf("%d sessions are left, and at most %d were begun by nobody", left(), w.faultProxy.orphans)
	}
	w.faultProxy.close()
	if err := w.handler.Shutdown(ctx); err != nil {
		w.t.Errorf("shutdown: %v", err)
	}
	w.http.Close()
	for _, c := range w.calls {
		if c.runs.Load() != c.ended.Load() {
			w.wrong(c, "its tool runs on")
		}
	}
}

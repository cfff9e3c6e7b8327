package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// An impatient is a host that does not know tasks, and gives up a request after a time.
type impatient struct {
	mcptest.Client
	patience time.Duration // 0: no limit but the test's
}

// A node is killed after calls were handed off there. The other nodes return the results of these calls.
// at makes a request at a node.
func (h *impatient) at(ctx context.Context, url, method, params string) (answer, error) {
	if h.patience > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, h.patience)
		defer stop()
	}
	return settled(ask(ctx, &h.Client, url, method, params))
}

// begin begins a session at a node.
func (h *impatient) begin(ctx context.Context, url string) error {
	_, err := h.at(ctx, url, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"impatient","version":"1"}}`)
	if err == nil {
		_, err = h.at(ctx, url, "notifications/initialized", "")
	}
	if err == nil {
		_, err = h.at(ctx, url, "tools/list", "{}")
	}
	return err
}

// call makes a call that is handed off, and returns the handle.
func (h *impatient) call(ctx context.Context, url string, q request) (handle string, err error) {
	is, err := h.at(ctx, url, "tools/call", "{"+q.params()+"}")
	if err == nil && is.Result.Meta.Call.Status != "working" {
		err = fmt.Errorf("not handed off: %s", is.text)
	}
	return is.Result.Meta.Call.Handle, err
}

// wait asks for the result until the call has ended. more are further arguments of holdfast_wait. Each request goes to a URL of its own.
func (h *impatient) wait(ctx context.Context, url func() string, handle, more string) (answer, error) {
	return poll(ctx, func() (answer, error) {
		return h.at(ctx, url(), "tools/call", fmt.Sprintf(`{"name":"holdfast_wait","arguments":{"handle":%q%s}}`, handle, more))
	}, func(is answer) bool {
		return slices.Contains([]string{"completed", "failed", "cancelled", "unknown"}, is.Result.Meta.Call.Status)
	})
}

func TestClusterHandOff(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{flags: []string{"--handoff-after", "500ms"}})
		ctx := bounded(t, 2*time.Minute)
		owner, other := f.nodes[0], f.nodes[1]
		var host, second impatient
		mcptest.Check(t, host.begin(ctx, owner.url()))
		mcptest.Check(t, second.begin(ctx, other.url()))
		begin := func(tool, id string, ms int) (string, request) {
			q := request{tool: tool, args: workArgs{ID: callID(t, id), Steps: 10, MS: ms}}
			return mcptest.Must(host.call(ctx, owner.url(), q))(t), q
		}
		done, doneQ := begin("work", "done", 2_000)
		lost, lostQ := begin("work", "lost", 60_000)
		safe, safeQ := begin("look", "safe", 3_000)
		if is, err := second.wait(ctx, other.url, done, ""); err != nil || is.Result.Meta.Call.Status != "completed" {
			t.Errorf("before: %v, %+v", err, is)
		}
		owner.kill()
		if is, err := second.wait(ctx, other.url, done, ""); err != nil || len(is.Result.Content) == 0 || !strings.Contains(is.Result.Content[0].Text, doneQ.args.ID) {
			t.Errorf("that had ended: %v, %+v", err, is)
		}
		if is, err := second.wait(ctx, other.url, lost, ""); err != nil || is.Result.Meta.Call.Status != "failed" || is.Result.Meta.Call.Error.Code != -32010 {
			t.Errorf("that may not run again: %v, %+v", err, is)
		}
		if is, err := host.wait(ctx, f.nodes[2].url, safe, ""); err != nil || is.Result.Meta.Call.Status != "completed" || !strings.Contains(is.Result.Content[0].Text, safeQ.args.ID) {
			t.Errorf("that may run again: %v, %+v", err, is)
		}
		f.wantRuns(doneQ.args.ID, 1, 1)
		f.wantRuns(lostQ.args.ID, 1, 1)
		f.wantRuns(safeQ.args.ID, 1, 2)
	})
}

// Nodes are killed, one after the other, while they run calls that were handed off: each call
// has an end, and runs at most once.
func TestClusterHandOffKills(t *testing.T) {
	testlong.Only(t, "120 calls that are handed off, under kills, on each engine")
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{flags: []string{"--handoff-after", "300ms"}})
		ctx := bounded(t, 4*time.Minute)
		const calls, hosts = 120, 30
		var handles, completed, unknown, refused atomic.Int64
		stop := f.killing(f.nodes, 1500*time.Millisecond)
		one := func(host, other *impatient, i int) {
			q := request{tool: "work", args: workArgs{ID: callID(t, i), Steps: 4, MS: 600 + rand.N(1800)}}
			at := rand.N(len(f.nodes))
			handle, err := host.call(ctx, f.nodes[at].url(), q)
			if err != nil { // the host got an error instead of a handle
				refused.Add(1)
				f.wantRuns(q.args.ID, 0, 1)
				return
			}
			handles.Add(1)
			elsewhere := func() string { return f.nodes[(at+1+rand.N(len(f.nodes)-1))%len(f.nodes)].url() }
			is, err := other.wait(ctx, elsewhere, handle, `,"seconds":0.2`)
			call, least := is.Result.Meta.Call, 0
			switch {
			case err != nil:
				t.Errorf("call %d hangs: %v", i, err)
			case call.Status == "completed" && len(is.Result.Content) > 0 && strings.Contains(is.Result.Content[0].Text, q.args.ID):
				completed.Add(1)
				least = 1
			case call.Status == "failed" && call.Error.Code == -32010:
				unknown.Add(1)
			default:
				t.Errorf("call %d: lost: %+v", i, is)
			}
			f.wantRuns(q.args.ID, least, 1)
		}
		var next atomic.Int64
		var all sync.WaitGroup
		for range hosts {
			all.Go(func() {
				var host, second impatient // each with its own session
				for _, h := range []*impatient{&host, &second} {
					h.patience = 20 * time.Second
					for h.begin(ctx, f.nodes[rand.N(len(f.nodes))].url()) != nil && ctx.Err() == nil {
						time.Sleep(50 * time.Millisecond)
					}
				}
				for handles.Load() < calls && ctx.Err() == nil {
					i := int(next.Add(1))
					one(&host, []*impatient{&host, &second}[i%2], i)
				}
			})
		}
		all.Wait()
		kills := stop()
		if completed.Load() == 0 || unknown.Load() == 0 {
			t.Error("no call has ended in one of the two ways: nothing is shown")
		}
		t.Logf("%d kills, %d handles: %d completed, %d with outcome unknown; %d calls got no handle",
			kills, handles.Load(), completed.Load(), unknown.Load(), refused.Load())
	})
}

// A call without progress takes longer than its host waits: the host gets the result.
func TestHandOffImpatient(t *testing.T) {
	testlong.Only(t, "a call of 9 s, through a host that gives up after 6 s")
	t.Parallel()
	ctx := bounded(t, time.Minute)
	p := serve(t, "--demo", "--handoff-after", "3s")
	host := impatient{patience: 6 * time.Second}
	mcptest.Check(t, host.begin(ctx, p.URL))
	is, err := host.at(ctx, p.URL, "tools/call", `{"name":"count","arguments":{"to":1,"delay_ms":9000}}`)
	if err != nil || is.Result.Meta.Call.Status != "working" {
		t.Fatalf("%v, %+v", err, is)
	}
	if is, err = host.wait(ctx, fixed(p.URL), is.Result.Meta.Call.Handle, ""); err != nil || len(is.Result.Content) != 1 || is.Result.Content[0].Text != "1" {
		t.Errorf("%v, %+v", err, is)
	}
}

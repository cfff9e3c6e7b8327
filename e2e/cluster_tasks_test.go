package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/testlong"
)

// tasksMeta is the _meta of a client of revision 2026-07-28 that knows tasks.
const tasksMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"tasks","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`

var errNoTask = errors.New("the call did not become a task")

// A node that runs tasks is killed. The other nodes return the tasks' status and results.
// askTask makes a request of a client that knows tasks.
func askTask(ctx context.Context, url, method, params string) (answer, error) {
	return settled(askModern(ctx, url, method, "{"+params+","+tasksMeta+"}"))
}

// beginTask makes a call that becomes a task.
func beginTask(ctx context.Context, url string, q request) (id string, err error) {
	s, err := askTask(ctx, url, "tools/call", q.params())
	if err == nil && s.Result.ResultType != "task" {
		err = errNoTask
	}
	return s.Result.TaskID, err
}

// awaitTask asks nodes for a task until it has ended.
func awaitTask(ctx context.Context, url func() string, id string) (answer, error) {
	return poll(ctx, func() (answer, error) { return askTask(ctx, url(), "tasks/get", fmt.Sprintf(`"taskId":%q`, id)) }, func(s answer) bool {
		return s.Error != nil || slices.Contains([]string{"completed", "failed", "cancelled"}, s.Result.Status)
	})
}

func TestClusterTasks(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{flags: []string{"--task-after", "100ms"}})
		ctx := bounded(t, 2*time.Minute)
		owner, other := f.nodes[0], f.nodes[1]
		begin := func(tool, id string, ms int) (string, request) {
			for try := 0; ; try++ { // longer each time: if the node stalls, a short call ends before it becomes a task
				q := request{tool: tool, args: workArgs{ID: callID(t, id, try), Steps: 10, MS: ms << try}}
				task, err := beginTask(ctx, owner.url(), q)
				if errors.Is(err, errNoTask) && try < 5 {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				return task, q
			}
		}
		done, doneQ := begin("work", "done", 300)
		lost, lostQ := begin("work", "lost", 60_000)
		safe, safeQ := begin("look", "safe", 3_000)
		if s, err := awaitTask(ctx, other.url, done); err != nil || s.Result.Status != "completed" {
			t.Errorf("before: %v, %s", err, s.text)
		}
		if s, err := askTask(ctx, other.url(), "tasks/get", fmt.Sprintf(`"taskId":%q`, lost)); err != nil || s.Result.Status != "working" {
			t.Errorf("before: %v, %s", err, s.text)
		}
		owner.kill()
		if s, err := awaitTask(ctx, other.url, done); err != nil || !strings.Contains(s.text, doneQ.args.ID) {
			t.Errorf("that had ended: %v, %s", err, s.text)
		}
		if s, err := awaitTask(ctx, other.url, lost); err != nil || s.Result.Status != "failed" || s.Result.Error.Code != -32010 {
			t.Errorf("that may not run again: %v, %s", err, s.text)
		}
		if s, err := awaitTask(ctx, f.nodes[2].url, safe); err != nil || s.Result.Status != "completed" || !strings.Contains(s.text, safeQ.args.ID) {
			t.Errorf("that may run again: %v, %s", err, s.text)
		}
		f.wantRuns(doneQ.args.ID, 1, 1)
		f.wantRuns(lostQ.args.ID, 1, 1)
		f.wantRuns(safeQ.args.ID, 1, 2)
	})
}

// Nodes are killed, one after the other, while they run tasks: each task ends, and a tool that is not retry-safe runs once.
func TestClusterTaskKills(t *testing.T) {
	testlong.Only(t, "1,000 tasks, under kills")
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{flags: []string{"--task-after", "50ms"}})
		ctx := bounded(t, 8*time.Minute)
		any := func() string { return f.nodes[rand.N(len(f.nodes))].url() }
		const tasks, atATime = 1_000, 50
		var begun, completed, unknown, refused atomic.Int64
		stop := f.killing(f.nodes, 2*time.Second)
		one := func(i int) {
			q := request{tool: "work", args: workArgs{ID: callID(t, i), Steps: 4, MS: 300 + rand.N(1500)}}
			if i%2 == 0 {
				q.tool = "look"
			}
			id, err := beginTask(ctx, any(), q)
			if err != nil { // the client got an error instead of a task
				refused.Add(1)
				return
			}
			begun.Add(1)
			s, err := awaitTask(ctx, any, id)
			switch {
			case err != nil || s.Error != nil:
				t.Errorf("task %d: lost, or it hangs: %v, %+v", i, err, s.Error)
			case s.Result.Status == "completed" && strings.Contains(s.text, q.args.ID):
				completed.Add(1)
			case s.Result.Status == "failed" && s.Result.Error.Code == -32010:
				unknown.Add(1)
			default:
				t.Errorf("task %d: %s", i, s.text)
			}
			most := 1
			if q.tool == "look" {
				most = 20
			}
			f.wantRuns(q.args.ID, 1, most)
		}
		var next atomic.Int64
		var all sync.WaitGroup
		for range atATime {
			all.Go(func() {
				for begun.Load() < tasks && ctx.Err() == nil {
					one(int(next.Add(1)))
				}
			})
		}
		all.Wait()
		t.Logf("%d kills, %d tasks: %d completed, %d with outcome unknown; %d calls ended before they were tasks", stop(), begun.Load(), completed.Load(), unknown.Load(), refused.Load())
	})
}

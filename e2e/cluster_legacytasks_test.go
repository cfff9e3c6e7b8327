package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A node that runs tasks of revision 2025-11-25 is killed. The other nodes return the tasks' status and results.
func TestClusterLegacyTasks(t *testing.T) {
	testlong.Only(t, "three nodes")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{})
		owner, other := f.nodes[0], f.nodes[1]
		c, ctx := &mcptest.Client{Revision: "2025-11-25", URL: owner.url()}, bounded(t, 2*time.Minute)
		at := func(n *node, method, params string) answer {
			t.Helper()
			return mcptest.Must(settled(ask(ctx, c, n.url(), method, params)))(t)
		}
		mcptest.Check(t, c.Begin(ctx, mcptest.Initialize("2025-11-25", "{}")))
		at(owner, "tools/list", `{}`) // so that the node knows which tool is retry-safe
		begin := func(tool, id string, ms int) (string, workArgs) {
			q := request{tool: tool, args: workArgs{ID: callID(t, id), Steps: 10, MS: ms}}
			said := at(owner, "tools/call", "{"+q.params()+`,"task":{"ttl":60000}}`)
			if said.Result.Task.Status != "working" {
				t.Fatalf("no task: %s", said.text)
			}
			return fmt.Sprintf(`{"taskId":%q}`, said.Result.Task.TaskID), q.args
		}
		result := func(n *node, task string) answer {
			t.Helper()
			try := func() (answer, error) { return settled(ask(ctx, c, n.url(), "tasks/result", task)) }
			return mcptest.Must(poll(ctx, try, func(answer) bool { return true }))(t)
		}
		done, doneArgs := begin("work", "done", 300)
		lost, lostArgs := begin("work", "lost", 60_000)
		safe, safeArgs := begin("look", "safe", 3_000)
		if said := result(other, done); !strings.Contains(said.text, doneArgs.ID) {
			t.Errorf("before: %s", said.text)
		}
		if said := at(other, "tasks/get", lost); said.Result.Status != "working" {
			t.Errorf("before: %s", said.text)
		}
		owner.kill()
		if said := result(other, done); !strings.Contains(said.text, doneArgs.ID) {
			t.Errorf("that had ended: %s", said.text)
		}
		if said := result(f.nodes[2], lost); said.Error == nil || said.Error.Code != -32010 {
			t.Errorf("that may not run again: %s", said.text)
		}
		if said := at(other, "tasks/get", lost); said.Result.Status != "failed" {
			t.Errorf("that may not run again: %s", said.text)
		}
		if said := result(f.nodes[2], safe); !strings.Contains(said.text, safeArgs.ID) {
			t.Errorf("that may run again: %s", said.text)
		}
		if said := at(other, "tasks/list", `{}`); len(said.Result.Tasks) != 3 {
			t.Errorf("listed: %s", said.text)
		}
		f.wantRuns(doneArgs.ID, 1, 1)
		f.wantRuns(lostArgs.ID, 1, 1)
		f.wantRuns(safeArgs.ID, 1, 2)
	})
}

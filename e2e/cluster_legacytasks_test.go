package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A legacyTasks is a client of revision 2025-11-25 that knows the tasks of that revision.
type legacyTasks struct {
	mcptest.Client
	t   *testing.T
	ctx context.Context
}

// A legacyTaskSaid is an answer about a task.
type legacyTaskSaid struct {
	Result struct {
		Task          struct{ TaskID, Status string }
		Tasks         []struct{ TaskID string }
		Status        string
		StatusMessage string
		Content       json.RawMessage
	}
	Error *struct{ Code int }
}

// ask makes a request at a node.
func (c *legacyTasks) ask(url, method, params string) (said legacyTaskSaid, err error) {
	c.URL = url
	r, err := c.Ask(c.ctx, method, params, &said)
	if err == nil && r.Status >= 300 {
		err = fmt.Errorf("%s: %d %s", method, r.Status, r.Body)
	}
	return said, err
}

// must is ask for requests that must be answered.
func (c *legacyTasks) must(url, method, params string) legacyTaskSaid {
	c.t.Helper()
	return mcptest.Must(c.ask(url, method, params))(c.t)
}

// A node that runs tasks of revision 2025-11-25 is killed. The other nodes return the tasks' status and results.
func TestClusterLegacyTasks(t *testing.T) {
	testlong.Only(t, "three nodes")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{})
		c := &legacyTasks{Client: mcptest.Client{Revision: "2025-11-25"}, t: t, ctx: bounded(t, 2*time.Minute)}
		owner, other := f.nodes[0], f.nodes[1]
		c.must(owner.url(), "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"tasks","version":"1"}}`)
		c.must(owner.url(), "notifications/initialized", "")
		c.must(owner.url(), "tools/list", `{}`) // so that the node knows which tool is retry-safe
		begin := func(tool, id string, ms int) (string, workArgs) {
			args := workArgs{ID: callID(t, id), Steps: 10, MS: ms}
			text, _ := json.Marshal(args)
			said := c.must(owner.url(), "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s,"task":{"ttl":60000}}`, tool, text))
			if said.Result.Task.Status != "working" {
				t.Fatalf("no task: %+v", said)
			}
			return fmt.Sprintf(`{"taskId":%q}`, said.Result.Task.TaskID), args
		}
		result := func(n *node, task string) legacyTaskSaid {
			for {
				said, err := c.ask(n.url(), "tasks/result", task)
				if err == nil {
					return said
				}
				select {
				case <-c.ctx.Done():
					t.Fatal(err)
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
		done, doneArgs := begin("work", "done", 300)
		lost, lostArgs := begin("work", "lost", 60_000)
		safe, safeArgs := begin("look", "safe", 3_000)
		if said := result(other, done); !strings.Contains(string(said.Result.Content), doneArgs.ID) {
			t.Errorf("before: %+v", said)
		}
		if said := c.must(other.url(), "tasks/get", lost); said.Result.Status != "working" {
			t.Errorf("before: %+v", said)
		}
		owner.kill()
		if said := result(other, done); !strings.Contains(string(said.Result.Content), doneArgs.ID) {
			t.Errorf("that had ended: %+v", said)
		}
		if said := result(f.nodes[2], lost); said.Error == nil || said.Error.Code != -32010 {
			t.Errorf("that may not run again: %+v", said)
		}
		if said := c.must(other.url(), "tasks/get", lost); said.Result.Status != "failed" {
			t.Errorf("that may not run again: %+v", said)
		}
		if said := result(f.nodes[2], safe); !strings.Contains(string(said.Result.Content), safeArgs.ID) {
			t.Errorf("that may run again: %+v", said)
		}
		if said := c.must(other.url(), "tasks/list", `{}`); len(said.Result.Tasks) != 3 {
			t.Errorf("listed: %+v", said)
		}
		f.wantRuns(doneArgs.ID, 1, 1)
		f.wantRuns(lostArgs.ID, 1, 1)
		f.wantRuns(safeArgs.ID, 1, 2)
	})
}

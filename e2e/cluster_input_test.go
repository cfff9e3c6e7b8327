package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testlong"
)

// TestClusterInput has calls wait for their clients' input, and continues them at other nodes,
// also after their own node was killed: a call continues, its client is asked again, or its
// outcome is unknown. A tool that is not retry-safe does not run twice.
// An inputCall is a user's request of revision 2026-07-28, for a tool that asks its client.
type inputCall struct {
	user, tool, id string
	tasks          bool
}

// at makes the request at a node, or continues it, with the state and an answer for each question of the reply before.
func (c inputCall) at(ctx context.Context, url string, asked answer) (answer, error) {
	params := request{tool: c.tool, args: workArgs{ID: c.id}}.params()
	if asked.Result.RequestState != "" {
		answers := make(map[string]any)
		for key := range asked.Result.InputRequests {
			answers[key] = map[string]any{"action": "accept", "content": map[string]any{"name": "Ada"}}
		}
		text, _ := json.Marshal(answers)
		params += fmt.Sprintf(`,"requestState":%q,"inputResponses":%s`, asked.Result.RequestState, text)
	}
	return c.post(ctx, url, "tools/call", params)
}

// post makes another request of the same client.
func (c inputCall) post(ctx context.Context, url, method, params string) (answer, error) {
	capabilities := `{"elicitation":{}}`
	if c.tasks {
		capabilities = `{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	}
	return askModern(ctx, url, method, "{"+params+","+meta(capabilities)+"}", "User", c.user)
}

// asks begins the call at a node, and checks that the reply has questions.
func (c inputCall) asks(ctx context.Context, t *testing.T, n *node) answer {
	t.Helper()
	r, err := c.at(ctx, n.url(), answer{})
	if err != nil || r.Result.ResultType != "input_required" || len(r.Result.InputRequests) == 0 || r.Result.RequestState == "" {
		t.Fatalf("%s does not ask: %v, %s", c.tool, err, r.text)
	}
	return r
}

func TestClusterInput(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{library: true})
		ctx := bounded(t, 2*time.Minute)
		owner, other := f.nodes[0], f.nodes[1]
		call := func(tool, id string) inputCall { return inputCall{user: "ada", tool: tool, id: callID(t, id)} }

		goes := call("ask", "goes")
		asked := goes.asks(ctx, t, owner)
		if r, err := goes.at(ctx, other.url(), asked); err != nil || r.Result.ResultType != "complete" || r.Result.Content[0].Text != "Ada" {
			t.Errorf("at another node: %v, %s", err, r.text)
		}
		f.wantRuns(goes.id, 1, 1)

		lost, safe := call("ask", "lost"), call("inquire", "safe")
		lostAsked, safeAsked := lost.asks(ctx, t, owner), safe.asks(ctx, t, owner)
		owner.kill()
		r, err := lost.at(ctx, other.url(), lostAsked)
		if err != nil || r.Error == nil || r.Error.Code != -32010 {
			t.Errorf("that may not run again: %v, %s", err, r.text)
		}
		f.wantRuns(lost.id, 1, 1)
		r, err = safe.at(ctx, f.nodes[2].url(), safeAsked)
		for round := 0; err == nil && r.Result.ResultType == "input_required" && round < 3; round++ { // the client is asked again
			r, err = safe.at(ctx, other.url(), r)
		}
		if err != nil || r.Result.ResultType != "complete" || r.Result.Content[0].Text != "Ada" {
			t.Errorf("that may run again: %v, %s", err, r.text)
		}
		f.wantRuns(safe.id, 1, 2)
	})
}

// TestClusterForged sends forged states and task ids to all nodes, and those of other users:
// each gets an error that does not say why, and no tool runs for it.
func TestClusterForged(t *testing.T) {
	testlong.Only(t, "it makes some hundred requests")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{library: true, nodes: 2, flags: []string{"--task-after", "100ms"}})
		ctx := bounded(t, 2*time.Minute)
		c := inputCall{user: "ada", tool: "ask", id: callID(t, "forged")}
		asked := c.asks(ctx, t, f.nodes[0])
		state := asked.Result.RequestState
		foreign, other := c, c
		foreign.user, other.id = "bob", callID(t, "other")
		for _, n := range f.nodes {
			for what, forged := range map[string]struct {
				call  inputCall
				state string
			}{
				"another user":    {foreign, state},
				"another request": {other, state},
				"nobody":          {inputCall{tool: c.tool, id: c.id}, state},
				"more":            {c, state + "0"},
				"less":            {c, state[:len(state)-1]},
				"made up":         {c, "holdfast.x"},
				"another mark":    {c, swapped(state, 40)},
				"another session": {c, swapped(state, 12)},
				"another time":    {c, swapped(state, len(state)-3)},
			} {
				with := asked
				with.Result.RequestState = forged.state
				r, err := forged.call.at(ctx, n.url(), with)
				if err != nil || r.Error == nil || r.Error.Code != -32602 || strings.Contains(r.Error.Message, c.id) {
					t.Errorf("state of %s at node %s: %v, %s", what, n.name, err, r.text)
				}
			}
		}
		f.wantRuns(c.id, 1, 1)
		if n := f.runs(other.id); n != 0 {
			t.Errorf("a request with a forged state has run %d times", n)
		}
		if r, err := c.at(ctx, f.nodes[1].url(), asked); err != nil || r.Result.ResultType != "complete" {
			t.Errorf("after all that: %v, %s", err, r.text)
		}
		for _, n := range f.nodes { // a state is valid once
			if r, err := c.at(ctx, n.url(), asked); err != nil || r.Error == nil || r.Error.Code != -32602 {
				t.Errorf("replayed at node %s: %v, %s", n.name, err, r.text)
			}
		}
		f.wantRuns(c.id, 1, 1)

		task := inputCall{user: "ada", tool: "work", id: callID(t, "task"), tasks: true}
		made, err := task.post(ctx, f.nodes[0].url(), "tools/call", fmt.Sprintf(`"name":"work","arguments":{"id":%q,"steps":0,"ms":60000}`, task.id))
		if err != nil || made.Result.TaskID == "" {
			t.Fatalf("no task: %v, %+v", err, made)
		}
		id := made.Result.TaskID
		bob := task
		bob.user = "bob"
		for _, n := range f.nodes {
			for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
				for what, forged := range map[string]struct {
					call inputCall
					id   string
				}{
					"another user": {bob, id}, "another mark": {task, swapped(id, 24)}, "another session": {task, swapped(id, 2)},
					"another time": {task, swapped(id, len(id)-2)}, "more": {task, id + "0"}, "less": {task, id[:len(id)-1]},
				} {
					r, err := forged.call.post(ctx, n.url(), method, fmt.Sprintf(`"taskId":%q,"inputResponses":{}`, forged.id))
					if err != nil || r.Error == nil || r.Error.Code != -32602 || strings.Contains(r.Error.Message, "bob") {
						t.Errorf("%s of %s at node %s: %v, %s", method, what, n.name, err, r.text)
					}
				}
			}
		}
		if r, err := task.post(ctx, f.nodes[1].url(), "tasks/cancel", fmt.Sprintf(`"taskId":%q`, id)); err != nil || r.Error != nil {
			t.Errorf("its own client's: %v, %s", err, r.text)
		}
		f.wantRuns(task.id, 1, 1)
	})
}

// TestClusterInputExpired has a client answer after the call has waited for longer than --max-wait.
func TestClusterInputExpired(t *testing.T) {
	testlong.Only(t, "it waits for what expires")
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{library: true, nodes: 2, flags: []string{"--max-wait", "2s"}})
		ctx := bounded(t, 2*time.Minute)
		c := inputCall{user: "ada", tool: "ask", id: callID(t, "expired")}
		asked := c.asks(ctx, t, f.nodes[0])
		time.Sleep(3 * time.Second) // the time is in seconds
		for _, n := range f.nodes {
			if r, err := c.at(ctx, n.url(), asked); err != nil || r.Error == nil || r.Error.Code != -32602 {
				t.Errorf("at node %s: %v, %s", n.name, err, r.text)
			}
		}
		f.wantRuns(c.id, 1, 1)
	})
}

// swapped returns text with another letter at index at.
func swapped(text string, at int) string {
	other := byte('a')
	if text[at] == other {
		other = 'b'
	}
	return text[:at] + string(other) + text[at+1:]
}

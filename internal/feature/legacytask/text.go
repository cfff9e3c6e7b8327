package legacytask

import (
	"bytes"
	"encoding/json"
	"time"

	"holdfast/internal/feature/tasktext"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file has the texts about tasks for clients.

// capability is the capability of a server with such tasks.
var capability = []byte(`{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`)

// support returns the response to a tools/list with all tools callable as tasks. Their own
// taskSupport means nothing if the server has no tasks, and some libraries write "forbidden" for
// all tools ("Tool-Level Negotiation", rule 1).
func support(response []byte) []byte {
	var tools []json.RawMessage
	if json.Unmarshal(jsonrpc.Field(response, "result", "tools"), &tools) != nil {
		return response
	}
	text := []byte{'['}
	for i, tool := range tools {
		if i > 0 {
			text = append(text, ',')
		}
		tool, _ := jsonrpc.Set(tool, []byte(`"optional"`), "execution", "taskSupport")
		text = append(text, tool...)
	}
	response, _ = jsonrpc.Set(response, append(text, ']'), "result", "tools")
	return response
}

// A told is a task as its client sees it (2025-11-25, Task).
type told struct {
	ID      string `json:"taskId"`
	Status  string `json:"status"`
	Message string `json:"statusMessage,omitempty"`
	Created string `json:"createdAt"`
	Updated string `json:"lastUpdatedAt"`
	TTL     int64  `json:"ttl"`
	Poll    int64  `json:"pollInterval"`
}

// newTold returns a task, as its client sees it, that runs, or, if ended is not zero, has ended. The task is kept for
// keep after its end.
func newTold(id string, created, updated, ended time.Time, keep time.Duration) *told {
	if ended.IsZero() {
		ended = time.Now()
	}
	if updated.Before(created) {
		updated = created
	}
	age := max(ended.Sub(created), 0)
	return &told{
		ID:      id,
		Status:  protocol.TaskWorking,
		Created: tasktext.Time(created),
		Updated: tasktext.Time(updated),
		TTL:     (age + keep).Milliseconds(),
		Poll:    tasktext.PollAfter(age).Milliseconds(),
	}
}

// longestReason bounds the text of a result that says why a tool failed, in a task's status.
const longestReason = 500

// end takes in the response that ended the call, or nil if the client has cancelled it. Unlike in the extension of
// 2026-07-28, a task fails here if its tool fails.
func (t *told) end(response []byte) {
	if response == nil {
		t.Status, t.Message = protocol.TaskCancelled, "the client cancelled the task"
		return
	}
	t.Status = protocol.TaskCompleted
	reason := ""
	result := jsonrpc.Field(response, "result")
	switch {
	case result == nil:
		reason = jsonrpc.String(jsonrpc.Field(response, "error", "message"))
	case string(jsonrpc.Field(result, "isError")) != "true":
		return
	default:
		var content []struct{ Text string }
		_ = json.Unmarshal(jsonrpc.Field(result, "content"), &content) // on an error there is no text
		if len(content) > 0 {
			reason = content[0].Text
		}
	}
	t.Status = protocol.TaskFailed
	if reason != "" {
		t.Message = string(bytes.ToValidUTF8([]byte(reason[:min(len(reason), longestReason)]), nil))
	}
}

// place returns the task's place in the order of a list.
func (t *told) place() place {
	p, _ := parsePlace(t.ID)
	return p
}

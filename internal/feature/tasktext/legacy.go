package tasktext

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows is for the experimental tasks of revision 2025-11-25 (Tasks).

// Capability is what a server offers that has such tasks.
var Capability = []byte(`{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`)

// IsLegacyMethod reports whether a method is about tasks of 2025-11-25.
func IsLegacyMethod(method string) bool {
	switch method {
	case protocol.MethodTaskGet, protocol.MethodTaskResult, protocol.MethodTaskList, protocol.MethodTaskCancel:
		return true
	}
	return false
}

// AsksForTask reports whether a request asks for a task of 2025-11-25.
func AsksForTask(m *jsonrpc.Message) bool {
	if m.Kind != jsonrpc.Request || m.Method != protocol.MethodCallTool {
		return false
	}
	asks := jsonrpc.Field(m.Params, "task")
	return len(asks) > 0 && asks[0] == '{'
}

// Plain returns a request that asks for a task as a server gets it that knows no tasks.
func Plain(m jsonrpc.Message) jsonrpc.Message {
	plain, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, m.ID, m.Method, Without(m.Params, "task")))
	if err != nil {
		return m
	}
	return plain
}

// Without returns an object without some of its members.
func Without(object []byte, names ...string) []byte {
	rest := append(make([]byte, 0, len(object)), '{')
	jsonrpc.Each(object, func(name, value []byte) {
		if !slices.Contains(names, string(name)) {
			rest = AppendMember(rest, string(name), value)
		}
	})
	return append(rest, '}')
}

// AppendMember appends a member to an object whose end is not written yet.
func AppendMember(dst []byte, name string, value []byte) []byte {
	if len(dst) > 1 {
		dst = append(dst, ',')
	}
	return append(append(append(dst, jsonrpc.Quote(name)...), ':'), value...)
}

// Support returns the response to a tools/list with all tools callable as tasks. What they
// say themselves means nothing where the server has no tasks, and some libraries have all
// tools say "forbidden" ("Tool-Level Negotiation", rule 1).
func Support(response []byte) []byte {
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

// A Legacy is a task as its client sees it (2025-11-25, Task).
type Legacy struct {
	ID      string `json:"taskId"`
	Status  string `json:"status"`
	Message string `json:"statusMessage,omitempty"`
	Created string `json:"createdAt"`
	Updated string `json:"lastUpdatedAt"`
	TTL     int64  `json:"ttl"`
	Poll    int64  `json:"pollInterval"`
}

// NewLegacy returns what the client is told of a task that runs, or, if ended is not zero, has ended. It can be asked for
// until keep after its end.
func NewLegacy(id string, created, updated, ended time.Time, keep time.Duration) *Legacy {
	if ended.IsZero() {
		ended = time.Now()
	}
	if updated.Before(created) {
		updated = created
	}
	age := max(ended.Sub(created), 0)
	return &Legacy{
		ID:      id,
		Status:  protocol.TaskWorking,
		Created: Time(created),
		Updated: Time(updated),
		TTL:     (age + keep).Milliseconds(),
		Poll:    PollAfter(age).Milliseconds(),
	}
}

// longestReason bounds the text of a result that says why a tool failed, in a task's status.
const longestReason = 500

// End takes in the response that ended the call, or nil if the client has cancelled it. Unlike the extension of 2026-07-28
// this revision has tasks fail whose tool did.
func (t *Legacy) End(response []byte) {
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
		_ = json.Unmarshal(jsonrpc.Field(result, "content"), &content) // else there is no text
		if len(content) > 0 {
			reason = content[0].Text
		}
	}
	t.Status = protocol.TaskFailed
	if reason != "" {
		t.Message = string(bytes.ToValidUTF8([]byte(reason[:min(len(reason), longestReason)]), nil))
	}
}

// Place returns the task's place in the order of a list.
func (t *Legacy) Place() Place {
	p, _ := ParsePlace(t.ID)
	return p
}

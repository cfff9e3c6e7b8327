package main

import (
	"context"
	"errors"

	"holdfast/internal/followcall"
	"holdfast/jsonrpc"
)

// callsAsTask reports whether a tool can be called at the server as a task only (2025-11-25, Tasks,
// "Tool-Level Negotiation").
func (p *peer) callsAsTask(t *tool) bool {
	return t != nil && t.Execution.TaskSupport == "required" && p.meta == nil &&
		jsonrpc.Field(p.capabilities, "tasks", "requests", "tools", "call") != nil
}

// callTask calls a tool as a task. It returns the id of the task, and the params of the tasks/result that waits
// for its end.
func (p *peer) callTask(ctx context.Context, params map[string]any) (id string, wait map[string]any, err error) {
	params["task"] = map[string]any{}
	result, err := p.request(ctx, followcall.ToolsCall, params)
	if err != nil {
		return "", nil, err
	}
	if id = jsonrpc.String(jsonrpc.Field(result, "task", "taskId")); id == "" {
		return "", nil, errors.New("the server has taken the call, but its answer names no task: the outcome cannot be asked for")
	}
	return id, map[string]any{"taskId": id}, nil
}

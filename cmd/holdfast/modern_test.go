package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A server of revision 2026-07-28 alone is used without a session. Its questions reach the user,
// and the program follows a call that becomes a task. status, resume and cancel take the task's id.
func TestModernServer(t *testing.T) {
	t.Parallel()
	var polls, cancelled atomic.Int32
	result := func(result string) mcptest.Does {
		return func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			mcptest.JSON(w, mcptest.Result(m, result))
		}
	}
	url := mcptest.Serve(t, mcptest.Methods{
		"initialize": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"unsupported","data":{"supported":["2026-07-28"]}}}`, m.ID)
		},
		"server/discover": result(`{"supportedVersions":["2026-07-28"],"capabilities":{}}`),
		"tools/list":      result(`{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`),
		"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			if name := jsonrpc.Field(m.Params, "inputResponses", "n", "content", "name"); string(name) == `"bob"` {
				result(`{"resultType":"task","taskId":"t1","status":"working","pollIntervalMs":1,"ttlMs":null}`)(w, r, m)
				return
			}
			result(`{"resultType":"input_required","requestState":"s","inputRequests":{"n":{"method":"elicitation/create","params":{"message":"name?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}}}`)(w, r, m)
		},
		"tasks/get": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			if polls.Add(1) > 3 {
				result(`{"taskId":"t1","status":"completed","ttlMs":null,"result":{"content":[{"type":"text","text":"all is done"}]}}`)(w, r, m)
				return
			}
			result(`{"taskId":"t1","status":"working","pollIntervalMs":1,"ttlMs":null}`)(w, r, m)
		},
		"tasks/cancel": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			cancelled.Add(1)
			result(`{"resultType":"complete"}`)(w, r, m)
		},
	})
	run := func(stdin string, args ...string) (string, error) {
		out, says, err := runInside(t, stdin, append(args, "--log-level=error")...) // the log is the process's: other tests write to it
		return out + says, err
	}
	state := "--state=" + t.TempDir()
	if out, err := run("bob\n", "call", "-i", state, url, "x"); err != nil || !strings.Contains(out, "all is done") || !strings.Contains(out, "task: working") {
		t.Errorf("call: %v\n%s", err, out)
	}
	if out, err := run("", "status", url, "t1"); err != nil || out != "completed\n" {
		t.Errorf("status: %v\n%s", err, out)
	}
	if out, err := run("", "resume", state, url, "t1"); err != nil || !strings.Contains(out, "all is done") {
		t.Errorf("resume: %v\n%s", err, out)
	}
	polls.Store(-1 << 20)
	if out, err := run("", "cancel", url, "t1"); err != nil || cancelled.Load() != 1 {
		t.Errorf("cancel: %v\n%s", err, out)
	}
	if _, err := run("", "cancel", "a", "b"); err == nil {
		t.Error("no URL, and no error")
	}
}

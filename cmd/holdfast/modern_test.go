package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A server of revision 2026-07-28 alone is used without a session. Its questions reach the user,
// and a call that it makes a task of is followed; status and cancel take the task's id.
func TestModernServer(t *testing.T) {
	t.Parallel()
	var polls, cancelled atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m, perr := jsonrpc.Parse(body)
		if err != nil || perr != nil || r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		result := `{"resultType":"complete"}`
		switch m.Method {
		case "initialize":
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"unsupported","data":{"supported":["2026-07-28"]}}}`, m.ID)
			return
		case "server/discover":
			result = `{"supportedVersions":["2026-07-28"],"capabilities":{}}`
		case "tools/list":
			result = `{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`
		case "tools/call":
			result = `{"resultType":"input_required","requestState":"s","inputRequests":{"n":{"method":"elicitation/create","params":{"message":"name?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}}}`
			if name := jsonrpc.Field(m.Params, "inputResponses", "n", "content", "name"); string(name) == `"bob"` {
				result = `{"resultType":"task","taskId":"t1","status":"working","pollIntervalMs":1,"ttlMs":null}`
			}
		case "tasks/get":
			result = `{"taskId":"t1","status":"working","pollIntervalMs":1,"ttlMs":null}`
			if polls.Add(1) > 3 {
				result = `{"taskId":"t1","status":"completed","ttlMs":null,"result":{"content":[{"type":"text","text":"all is done"}]}}`
			}
		case "tasks/cancel":
			cancelled.Add(1)
		}
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
	}))
	defer server.Close()
	run := func(stdin string, args ...string) (string, error) {
		var out bytes.Buffer
		var text mcptest.Log
		cmd := newRoot()
		cmd.SetArgs(append(args, "--log-level=error")) // the log is the process's: other tests write to it
		cmd.SetIn(strings.NewReader(stdin))
		cmd.SetOut(&out)
		cmd.SetErr(&text)
		err := cmd.ExecuteContext(t.Context())
		return out.String() + text.String(), err
	}
	state := "--state=" + t.TempDir()
	if out, err := run("bob\n", "call", "-i", state, server.URL, "x"); err != nil || !strings.Contains(out, "all is done") || !strings.Contains(out, "task: working") {
		t.Errorf("call: %v\n%s", err, out)
	}
	if out, err := run("", "status", server.URL, "t1"); err != nil || out != "completed\n" {
		t.Errorf("status: %v\n%s", err, out)
	}
	if out, err := run("", "resume", state, server.URL, "t1"); err != nil || !strings.Contains(out, "all is done") {
		t.Errorf("resume: %v\n%s", err, out)
	}
	polls.Store(-1 << 20)
	if out, err := run("", "cancel", server.URL, "t1"); err != nil || cancelled.Load() != 1 {
		t.Errorf("cancel: %v\n%s", err, out)
	}
	if _, err := run("", "cancel", "a", "b"); err == nil {
		t.Error("no URL, and no error")
	}
}

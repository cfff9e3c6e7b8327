package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The suite itself needs Node and runs in CI (conformance/run.sh). This test shows
// on a clean clone that each scenario works against an official server, and that a
// client which gets a wrong answer does not report success.
func TestScenarios(t *testing.T) {
	t.Parallel()
	const revision = "2025-11-25"
	for _, tt := range []struct {
		scenario, revision, wantErr string
		wrong                       bool // the server answers something else
		refuse                      int  // the server's status for tools/list
	}{
		{scenario: "initialize", revision: revision},
		{scenario: "initialize", wantErr: "list tools", refuse: http.StatusForbidden},
		{scenario: "tools_call", revision: revision},
		{scenario: "tools_call"},
		{scenario: "tools_call", wrong: true, wantErr: "want \"is 8\""},
		{scenario: "elicitation-sep1034-client-defaults", revision: revision},
		{scenario: "sse-retry", revision: revision},
		{scenario: "sse-retry", wrong: true, wantErr: "completed successfully"},
		{scenario: "json-schema-2020-12-preservation", revision: revision},
		{scenario: "auth/metadata-default", revision: revision},
		{scenario: "auth/scope-retry-limit", wantErr: "want a refusal"},
		{scenario: "sse-retri", wantErr: "no such scenario"},
	} {
		name := fmt.Sprintf("%s/%s/%v/%d", tt.scenario, tt.revision, tt.wrong, tt.refuse)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := mcp.NewStreamableHTTPHandler(
				func(*http.Request) *mcp.Server { return newServer(tt.wrong) },
				&mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)},
			)
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || tt.refuse != 0 && bytes.Contains(body, []byte("tools/list")) {
					w.WriteHeader(tt.refuse)
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				server.ServeHTTP(w, r)
			}))
			defer front.Close()
			err := run(t.Context(), front.URL, "", tt.scenario, tt.revision, `{"name":"x"}`)
			if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
				t.Fatalf("run: %v, want %q", err, tt.wantErr)
			}
		})
	}
}

// newServer returns a server with the tools of the suite's servers. If wrong, it
// answers every call with another text.
func newServer(wrong bool) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "suite", Version: "1"}, nil)
	add := func(name string, answer func(context.Context, *mcp.CallToolRequest) (string, error)) {
		schema := json.RawMessage(`{"type":"object","$anchor":"kept"}`)
		s.AddTool(&mcp.Tool{Name: name, InputSchema: schema},
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				said, err := answer(ctx, req)
				if wrong {
					said = "something else"
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: said}}}, err
			})
	}
	add("add_numbers", func(_ context.Context, req *mcp.CallToolRequest) (string, error) {
		var in struct{ A, B float64 }
		err := json.Unmarshal(req.Params.Arguments, &in)
		return fmt.Sprintf("The sum is %v", in.A+in.B), err
	})
	add("test_client_elicitation_defaults", func(ctx context.Context, req *mcp.CallToolRequest) (string, error) {
		res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{
			Message:         "who?",
			RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string","default":"John Doe"}}}`),
		})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(res.Content), nil
	})
	add("test_reconnection", func(_ context.Context, req *mcp.CallToolRequest) (string, error) {
		req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
		return "completed successfully", nil
	})
	add("json_schema_2020_12_tool", func(context.Context, *mcp.CallToolRequest) (string, error) { return "", nil })
	add("json_schema_echo", func(_ context.Context, req *mcp.CallToolRequest) (string, error) {
		if !strings.Contains(string(req.Params.Arguments), `"$anchor":"kept"`) {
			return "", fmt.Errorf("echoed %s", req.Params.Arguments)
		}
		return "echoed", nil
	})
	add("test-tool", func(context.Context, *mcp.CallToolRequest) (string, error) { return "test", nil })
	return s
}

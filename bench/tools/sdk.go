package tools

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/jsonrpc"
)

// NewServer returns an official server with the tools. It registers them without typed arguments:
// decoding those costs more than a handler, and is not a subject of the benchmarks.
func NewServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "bench", Version: "1.0.0"}, nil)
	s.AddTool(&mcp.Tool{
		Name:        "echo",
		Description: "Answers the text.",
		InputSchema: json.RawMessage(echoSchema),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
	}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return answer(jsonrpc.String(jsonrpc.Field(req.Params.Arguments, "text"))), nil
	})
	s.AddTool(&mcp.Tool{
		Name:        "progress",
		Description: "Reports progress n times.",
		InputSchema: json.RawMessage(progressSchema),
	}, progressSDK)
	s.AddTool(&mcp.Tool{
		Name:        "slow",
		Description: "Answers after ms milliseconds.",
		InputSchema: json.RawMessage(slowSchema),
	}, slowSDK)
	return s
}

func answer(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

func progressSDK(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	run := ParseRun(req.Params.Arguments)
	params := mcp.ProgressNotificationParams{
		ProgressToken: req.Params.GetProgressToken(),
		Total:         float64(run.N),
		Message:       strings.Repeat("x", run.Size),
	}
	for i := 1; i <= run.N && params.ProgressToken != nil; i++ {
		params.Progress = float64(i)
		if err := req.Session.NotifyProgress(ctx, &params); err != nil {
			return nil, err
		}
		run.Rest(i)
	}
	return answer("done " + strconv.Itoa(run.N)), nil
}

func slowSDK(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	ms := Millis(req.Params.Arguments)
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return answer("slept " + strconv.Itoa(ms)), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

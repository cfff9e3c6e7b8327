package e2e

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// stdio makes the test binary a stdio MCP server with the demo's count tool, for
// tests that have to work without node.
func stdio() {
	server := mcp.NewServer(&mcp.Implementation{Name: "counter", Version: "1"}, nil)
	type args struct {
		To      int `json:"to"`
		DelayMS int `json:"delay_ms"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "count"}, func(ctx context.Context, req *mcp.CallToolRequest, a args) (*mcp.CallToolResult, any, error) {
		for i := 1; i <= a.To; i++ {
			select {
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			case <-time.After(time.Duration(a.DelayMS) * time.Millisecond):
			}
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: req.Params.GetProgressToken(), Progress: float64(i), Total: float64(a.To),
			})
			if err != nil {
				return nil, nil, err
			}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(a.To)}}}, nil, nil
	})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

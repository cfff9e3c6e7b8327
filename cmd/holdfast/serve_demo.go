package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// newDemo returns the built-in server of --demo.
func newDemo() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "holdfast-demo", Version: versionText()}, nil)
	mcp.AddTool(server, &mcp.Tool{
		Name:        "echo",
		Description: "Returns the text that it is given.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
	}, echo)
	mcp.AddTool(server, &mcp.Tool{
		Name:        "count",
		Description: "Counts to a number, with a progress notification for each step, and returns the total.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
	}, count)
	mcp.AddTool(server, &mcp.Tool{
		Name:        "ask",
		Description: "Asks the user a question (an elicitation) and returns the answer.",
	}, ask)
	return server
}

func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

type echoArgs struct {
	Text string `json:"text" jsonschema:"what to return"`
}

func echo(_ context.Context, _ *mcp.CallToolRequest, args echoArgs) (*mcp.CallToolResult, any, error) {
	return text("%s", args.Text), nil, nil
}

type countArgs struct {
	To      int `json:"to" jsonschema:"how far to count"`
	DelayMS int `json:"delay_ms,omitempty" jsonschema:"milliseconds between two steps"`
}

// maxCount bounds the work of one call: a demo may be public.
const maxCount = 100_000

func count(ctx context.Context, req *mcp.CallToolRequest, args countArgs) (*mcp.CallToolResult, any, error) {
	if args.To < 0 || args.To > maxCount {
		return nil, nil, fmt.Errorf("to must be between 0 and %d", maxCount)
	}
	token := req.Params.GetProgressToken()
	for i := 1; i <= args.To; i++ {
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(time.Duration(args.DelayMS) * time.Millisecond):
		}
		if token == nil {
			continue
		}
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token,
			Progress:      float64(i),
			Total:         float64(args.To),
			Message:       "counted to " + strconv.Itoa(i),
		})
		if err != nil {
			return nil, nil, fmt.Errorf("progress %d: %w", i, err)
		}
	}
	return text("%d", args.To), nil, nil
}

type askArgs struct {
	Question string `json:"question" jsonschema:"what to ask the user"`
}

func ask(ctx context.Context, req *mcp.CallToolRequest, args askArgs) (*mcp.CallToolResult, any, error) {
	res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{
		Message: args.Question,
		RequestedSchema: map[string]any{
			"type":       "object",
			"properties": map[string]any{"answer": map[string]any{"type": "string", "description": args.Question}},
			"required":   []string{"answer"},
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("ask: %w", err)
	}
	if res.Action != "accept" {
		return text("(the user chose to %s)", res.Action), nil, nil
	}
	return text("%v", res.Content["answer"]), nil, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// pace is the time between the messages of a tool that sends several.
	pace = 50 * time.Millisecond
	// reconnectAfter is the value of retry that test_reconnection sends.
	reconnectAfter = 100 * time.Millisecond
)

// addTalkingTools adds the tools that send messages before their response.
func addTalkingTools(s *mcp.Server) {
	addTool(s, &mcp.Tool{
		Name:        "test_tool_with_logging",
		Description: "Logs three messages while it runs.",
	}, logThrice)
	addTool(s, &mcp.Tool{
		Name:        "test_tool_with_progress",
		Description: "Reports progress three times while it runs.",
	}, reportProgress)
	addTool(s, &mcp.Tool{
		Name:        "test_reconnection",
		Description: "Disconnects its stream, and answers on the one that the client comes back with (SEP-1699).",
	}, disconnect)
}

func logThrice(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
	for i, what := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
		if i > 0 {
			if err := wait(ctx, pace); err != nil {
				return nil, err
			}
		}
		//nolint:staticcheck // logging is deprecated as of 2026-07-28, which this fixture does not speak
		err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: what})
		if err != nil {
			return nil, fmt.Errorf("log: %w", err)
		}
	}
	return text("Tool with logging executed successfully"), nil
}

func reportProgress(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return text("No progress token was given"), nil
	}
	for _, done := range []float64{0, 50, 100} {
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token,
			Progress:      done,
			Total:         100,
			Message:       fmt.Sprintf("Completed step %.0f of 100", done),
		})
		if err != nil {
			return nil, fmt.Errorf("report progress: %w", err)
		}
		if err := wait(ctx, pace); err != nil {
			return nil, err
		}
	}
	return text(fmt.Sprint(token)), nil
}

func disconnect(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
	if req.Extra == nil || req.Extra.CloseSSEStream == nil {
		return nil, errors.New("this transport has no stream to close")
	}
	req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: reconnectAfter})
	if err := wait(ctx, reconnectAfter); err != nil {
		return nil, err
	}
	return text("Reconnection test completed successfully. If you received this, the client properly reconnected after stream closure."), nil
}

// wait waits for d, or until the call is cancelled.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

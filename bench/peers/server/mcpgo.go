package main

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// fullQueueWait is how long a tool waits when mcp-go's queue of notifications (100) is full, before
// it tries again: without another try the notification would be lost.
const fullQueueWait = 100 * time.Microsecond

// addMCPGo adds the tools through mcp-go to a mux, without and with its event store.
func addMCPGo(mux *http.ServeMux) {
	s := server.NewMCPServer("bench", "1.0.0")
	s.AddTool(mcp.NewTool("echo", mcp.WithReadOnlyHintAnnotation(true), mcp.WithString("text", mcp.Required())),
		func(_ context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(req.GetString("text", "")), nil
		})
	s.AddTool(mcp.NewTool("progress",
		mcp.WithNumber("n", mcp.Required()), mcp.WithNumber("size", mcp.Required()), mcp.WithNumber("pause_ms")),
		progress)
	s.AddTool(mcp.NewTool("slow", mcp.WithNumber("ms", mcp.Required())), slow)
	mux.Handle("/mcp", server.NewStreamableHTTPServer(s))
	mux.Handle("/mcp-store", server.NewStreamableHTTPServer(s, server.WithEventStore(server.NewInMemoryEventStore())))
}

func progress(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	n := req.GetInt("n", 0)
	text := strings.Repeat("x", req.GetInt("size", 0))
	pause := time.Duration(req.GetInt("pause_ms", 0)) * time.Millisecond
	if meta := req.Params.Meta; meta == nil || meta.ProgressToken == nil {
		n = 0
	}
	s := server.ServerFromContext(ctx)
	for i := 1; i <= n; i++ {
		params := map[string]any{
			"progressToken": req.Params.Meta.ProgressToken,
			"progress":      i,
			"total":         n,
			"message":       text,
		}
		for {
			err := s.SendNotificationToClient(ctx, "notifications/progress", params)
			if err == nil {
				break
			}
			if !errors.Is(err, server.ErrNotificationChannelBlocked) || ctx.Err() != nil {
				return nil, err
			}
			time.Sleep(fullQueueWait)
		}
		if pause > 0 && i%50 == 0 {
			time.Sleep(pause)
		}
	}
	return mcp.NewToolResultText("done " + strconv.Itoa(req.GetInt("n", 0))), nil
}

func slow(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	ms := req.GetInt("ms", 0)
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return mcp.NewToolResultText("slept " + strconv.Itoa(ms)), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

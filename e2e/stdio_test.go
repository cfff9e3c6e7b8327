package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
)

// runStdio makes the test binary a server on stdio.
func runStdio(s *mcp.Server) {
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// legacyIf makes s a server from before there were two eras, if is is set.
func legacyIf(is bool, s *mcp.Server) *mcp.Server {
	s.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if is && method == "server/discover" {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found"}
			}
			return next(ctx, method, r)
		}
	})
	return s
}

// library serves a server with the library, and returns the URL.
func library(t *testing.T, server *mcp.Server, o *holdfast.Options) string {
	t.Helper()
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, o)
	url := mcptest.Serve(t, h)
	mcptest.ShutDownAtEnd(t, h, time.Second)
	return url
}

// counterServer returns a server with the demo's tool count, for tests that must work without node.
func counterServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "counter", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "count"}, func(ctx context.Context, req *mcp.CallToolRequest, a struct {
		To      int `json:"to"`
		DelayMS int `json:"delay_ms"`
	}) (*mcp.CallToolResult, any, error) {
		err := pace(ctx, req, a.To, time.Duration(a.To*a.DelayMS)*time.Millisecond)
		return said(fmt.Sprint(a.To)), nil, err
	})
	return server
}

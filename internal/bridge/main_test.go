package bridge

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(16)
	goleak.VerifyTestMain(m)
}

// soon bounds steps that take almost no time, on a busy machine.
const soon = time.Minute

type countArgs struct {
	To      int `json:"to"`
	DelayMS int `json:"delay_ms"`
}

// countServer serves a tool that counts, with a progress notification for each step. While
// halt is set, calls stop in the middle.
func countServer(t *testing.T) (url string, halt *atomic.Bool) {
	t.Helper()
	halt = new(atomic.Bool)
	server := mcp.NewServer(&mcp.Implementation{Name: "counts", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "count"}, func(ctx context.Context, req *mcp.CallToolRequest, args countArgs) (*mcp.CallToolResult, any, error) {
		token := req.Params.GetProgressToken()
		for i := 1; i <= args.To; i++ {
			wait := time.Duration(args.DelayMS) * time.Millisecond
			for first := true; first || i == args.To/2+1 && halt.Load(); first = false {
				select {
				case <-ctx.Done():
					return nil, nil, ctx.Err()
				case <-time.After(wait):
				}
			}
			if token != nil {
				p := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(i), Total: float64(args.To)}
				if err := req.Session.NotifyProgress(ctx, p); err != nil {
					return nil, nil, err
				}
			}
		}
		return nil, args.To, nil
	})
	return serve(t, server), halt
}

// serve serves a server over HTTP until the test ends.
func serve(t *testing.T, server *mcp.Server) string {
	t.Helper()
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Retry: 10 * time.Millisecond, Eras: holdfast.ErasBoth})
	url := mcptest.Serve(t, h)
	mcptest.ShutDownAtEnd(t, h, 0) // no client is left to wait for
	return url
}

package holdfast_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"

	"holdfast/internal/mcptest"
)

// TestEras lets the go-sdk's client, which prefers the newest revision, call a tool with a
// handler that asks the client, and cancel a call. The handler is the same for both eras.
func TestEras(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "asks", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "ask"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		for i := range 2 {
			answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: fmt.Sprintf("question %d", i)})
			if err != nil || answer.Action != "accept" {
				return nil, nil, fmt.Errorf("not answered: %v, %w", answer, err)
			}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "thanks"}}}, nil, nil
	})
	began, ended := make(chan struct{}, 4), make(chan struct{}, 4)
	mcp.AddTool(server, &mcp.Tool{Name: "hold"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return nil, nil, ctx.Err()
	})
	for revision, o := range map[string]*holdfast.Options{"2026-07-28": {Eras: holdfast.ErasBoth, CutGrace: time.Second}, "2025-11-25": nil} {
		for over, connect := range map[string]func(*testing.T, *holdfast.Handler) mcp.Transport{
			"HTTP": func(t *testing.T, h *holdfast.Handler) mcp.Transport {
				web := mcptest.Serve(t, h)
				return &mcp.StreamableClientTransport{Endpoint: web}
			},
			"pipes": func(t *testing.T, h *holdfast.Handler) mcp.Transport {
				say, said := mcptest.Duplex(t, conn(t, h))
				return &mcp.IOTransport{Reader: said, Writer: say}
			},
		} {
			t.Run(revision+" over "+over, func(t *testing.T) {
				h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, o)
				t.Cleanup(func() { _ = h.Shutdown(context.Background()) })
				asked := 0
				client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
					ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
						asked++
						return &mcp.ElicitResult{Action: "accept"}, nil
					},
				})
				session := mcptest.Must(client.Connect(t.Context(), connect(t, h), nil))(t)
				defer session.Close()
				if got := session.InitializeResult().ProtocolVersion; got != revision {
					t.Errorf("the revision is %s", got)
				}
				if session.InitializeResult().Capabilities.Experimental["holdfast/idempotencyKey"] == nil {
					t.Error("the client is not told of idempotency keys")
				}
				result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "ask"})
				if err != nil || result.IsError || asked != 2 {
					t.Errorf("%d questions, then %+v, %v", asked, result, err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				left := make(chan error, 1)
				go func() {
					_, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "hold"})
					left <- err
				}()
				<-began
				cancel()
				<-ended
				if err := <-left; err == nil {
					t.Error("a call that was cancelled has a result")
				}
			})
		}
	}
}

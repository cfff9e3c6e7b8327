package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/engine"
	_ "holdfast/engine/file"
	"holdfast/internal/mcptest"
	"holdfast/stream"
	"holdfast/webhook"
)

// With Options.Webhooks a client gets a webhook about a call that went on without
// it: how the call ended, or, if the server was shut down first, that it failed.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"completed", "failed"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			told := make(chan string, 10)
			receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				told <- string(body)
			}))
			defer receiver.Close()
			release := make(chan struct{})
			server := mcp.NewServer(&mcp.Implementation{Name: "slow", Version: "1.0.0"}, nil)
			mcp.AddTool(server, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
				select {
				case <-release:
					return nil, nil, errors.New("a tool's own failure is a result")
				case <-ctx.Done():
					return nil, nil, ctx.Err()
				}
			})
			handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
				Webhooks:        webhooksTo(t, "127.0.0.1"),
				DisconnectAfter: 10 * time.Millisecond, // then the client is not connected
				Logger:          slog.New(slog.DiscardHandler),
			})
			web := httptest.NewServer(handler)
			defer web.Close()

			callAndLeave(t, web.URL, receiver.URL)
			if status == "completed" {
				close(release)
				wantTold(t, told, status)
			}
			// There is no time for the client to come back, nor for the call to end.
			over, stop := context.WithTimeout(t.Context(), time.Millisecond)
			defer stop()
			if err := handler.Shutdown(over); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if status == "failed" {
				wantTold(t, told, status)
			}
			if n := len(told); n > 0 {
				t.Errorf("%d webhooks more", n)
			}
		})
	}
}

func webhooksTo(t *testing.T, place string) *webhook.Options {
	t.Helper()
	secret := mcptest.Must(webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))(t)
	allowed := mcptest.Must(webhook.ParseAllowed(place))(t)
	return &webhook.Options{Secret: secret, Allow: []webhook.Allowed{allowed}}
}

// callAndLeave calls a tool, and returns when the server has disconnected the client.
func callAndLeave(t *testing.T, url, hook string) {
	t.Helper()
	c := &mcptest.Client{URL: url}
	mcptest.Check(t, c.Begin(t.Context(), mcptest.Initialize("2025-11-25", "{}")))
	c.Post(t, mcptest.Call(7, "wait", "{}", fmt.Sprintf(`"_meta":{"holdfast/webhook":{"url":%q}}`, hook)))
}

func wantTold(t *testing.T, told <-chan string, status string) {
	t.Helper()
	select {
	case body := <-told:
		if !strings.Contains(body, `"data":{"requestId":7,"status":"`+status+`"}`) {
			t.Errorf("told %s", body)
		}
	case <-time.After(time.Minute):
		t.Fatal("no webhook")
	}
}

// With a store in memory the log says at the start that webhooks do not survive. With a store that outlives the process they do.
func TestWebhooksKept(t *testing.T) {
	t.Parallel()
	file := mcptest.Must(engine.Open(t.Context(), "file:"+t.TempDir(), engine.Options{}))(t)
	defer file.Close()
	for name, store := range map[string]stream.Store{"memory": nil, "file": file} {
		var log bytes.Buffer
		h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return nil }, &holdfast.Options{
			Webhooks: webhooksTo(t, "127.0.0.1"), Store: store, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err := h.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if said := strings.Contains(log.String(), "do not survive"); said != (store == nil) {
			t.Errorf("%s: the log is %s", name, &log)
		}
	}
}

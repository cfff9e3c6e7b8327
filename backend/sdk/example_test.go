package sdk_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend"
	"holdfast/backend/sdk"
)

// counting is a backend that counts the sessions of another one.
type counting struct {
	backend.Backend
	sessions atomic.Int64
}

func (c *counting) Open(ctx context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	c.sessions.Add(1)
	return c.Backend.Open(ctx, start, sink)
}

// Wrap the backend for go-sdk servers in another backend.
func ExampleNew() {
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	b := &counting{Backend: sdk.New(func(*http.Request) *mcp.Server { return server })}
	handler := holdfast.NewBackendHandler(b, nil)
	defer handler.Shutdown(context.Background())
	web := httptest.NewServer(handler)
	defer web.Close()

	client := mcp.NewClient(&mcp.Implementation{Name: "caller", Version: "1.0.0"}, nil)
	for range 2 {
		session, err := client.Connect(context.Background(), &mcp.StreamableClientTransport{Endpoint: web.URL},
			&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"}) // a revision with sessions
		if err != nil {
			fmt.Println(err)
			return
		}
		session.Close()
	}
	fmt.Println(b.sessions.Load(), "sessions")
	// Output: 2 sessions
}

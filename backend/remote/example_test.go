package remote_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/remote"
)

// A server that runs elsewhere gets an endpoint at which no call is lost.
func Example() {
	server := mcp.NewServer(&mcp.Implementation{Name: "example", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "greet"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, "hello", nil
	})
	elsewhere := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	defer elsewhere.Close()

	handler := holdfast.NewBackendHandler(remote.New(elsewhere.URL, nil), nil)
	front := httptest.NewServer(handler)
	defer front.Close()
	defer handler.Shutdown(context.Background())

	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil)
	session, err := client.Connect(context.Background(), holdfast.NewClientTransport(front.URL, nil), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close()
	result, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: "greet"})
	fmt.Println(result.StructuredContent, err)
	// Output: hello <nil>
}

package client_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
	"holdfast/jsonrpc"
)

// A client sends requests as raw messages, and receives their responses however often the connection is cut.
func Example() {
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, nil)
	defer handler.Shutdown(context.Background())
	web := httptest.NewServer(handler)
	defer web.Close()

	conn, err := client.New(web.URL, &client.Options{NoListen: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	ctx := context.Background()
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"ping"}`,
	} {
		m, err := jsonrpc.Parse([]byte(text))
		if err == nil {
			err = conn.Send(ctx, m)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		if m.Kind != jsonrpc.Request {
			continue
		}
		response, err := conn.Receive(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(m.Method, string(response.ID), response.Error == nil)
	}
	// Output:
	// initialize 1 true
	// ping 2 true
}

package engine_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/engine"
)

// A handler whose calls are kept for an hour. With "file:DIR" they outlive the process, and
// with a cluster's URL, such as "redis://HOST:PORT/DB", they outlive the machine.
func ExampleOpen() {
	ctx := context.Background()
	store, err := engine.Open(ctx, "memory:", engine.Options{Keep: time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Store: store,
		Keep:  time.Hour, // what clients are told
	})
	// Serve it, and at the end shut the handler down before the store is closed.
	fmt.Println(handler.Shutdown(ctx), store.Close())
	// Output: <nil> <nil>
}

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/engine"
)

// A handler that keeps calls for an hour. With "file:DIR" the calls outlive the process, and with
// a cluster's URL, such as "redis://HOST:PORT/DB", they outlive the machine. Import _
// "holdfast/engine/file" or "holdfast/engine/redis" for these.
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
		Keep:  time.Hour, // the time that clients are told
	})
	// Serve the handler, and at the end shut it down before the store is closed.
	fmt.Println(handler.Shutdown(ctx), store.Close())
	// Output: <nil> <nil>
}

// A program that tries again only while the engine is starting.
func ExampleOpen_errors() {
	ctx := context.Background()
	for {
		store, err := engine.Open(ctx, "memory:/var/lib/greeter", engine.Options{})
		switch {
		case err == nil:
			defer store.Close()
		case errors.Is(err, engine.ErrUnreachable):
			time.Sleep(time.Second)
			continue
		case errors.Is(err, engine.ErrURL):
			fmt.Println(err)
		}
		return
	}
	// Output: store "memory:": nothing may follow the colon: for a directory, want file:DIR
}

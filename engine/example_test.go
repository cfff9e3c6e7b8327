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

// A handler whose calls are kept for an hour. With "file:DIR" they outlive the process, and
// with a cluster's URL, such as "redis://HOST:PORT/DB", they outlive the machine; for these import
// _ "holdfast/engine/file" or "holdfast/engine/redis".
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

// A program that waits for an engine that is starting, and for no other reason.
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

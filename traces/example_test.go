package traces_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"holdfast"
	_ "holdfast/internal/testlong" // the flag -long
	"holdfast/traces"
)

// A handler that makes a span for each call.
func ExampleNew() {
	provider := sdk.NewTracerProvider() // with an exporter
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Traces: traces.New(provider, nil),
	})
	ctx := context.Background()
	fmt.Println(handler.Shutdown(ctx), provider.Shutdown(ctx)) // in this order
	// Output: <nil> <nil>
}

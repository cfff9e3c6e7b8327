package metrics_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	_ "holdfast/internal/testlong" // the flag -long
	"holdfast/metrics"
)

// A handler whose calls are counted. Serve the registry with promhttp.HandlerFor.
func ExampleNew() {
	registry := prometheus.NewRegistry()
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Metrics: metrics.New(registry),
	})
	figures, err := registry.Gather()
	fmt.Println(len(figures) > 0, err)
	fmt.Println(handler.Shutdown(context.Background()))
	figures, err = registry.Gather() // they are gone with the handler
	fmt.Println(len(figures), err)
	// Output:
	// true <nil>
	// <nil>
	// 0 <nil>
}

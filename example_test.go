package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/metrics"
	"holdfast/traces"
	"holdfast/webhook"
)

type greeting struct {
	Name string `json:"name"`
}

func greet(_ context.Context, _ *mcp.CallToolRequest, in greeting) (*mcp.CallToolResult, any, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "Hello, " + in.Name}}}, nil, nil
}

// A Go server changes one line to use Holdfast.
func ExampleNewHandler() {
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "greet", Description: "says hello"}, greet)

	// Before: mcp.NewStreamableHTTPHandler(…)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, nil)

	url, stop := listen(handler) // or http.ListenAndServe("localhost:8080", handler)
	defer stop()
	fmt.Println(callTool(url, "greet", greeting{"Ada"}))
	// Output: Hello, Ada
}

// listen serves a handler on a port of this machine, until stop is called.
func listen(handler *holdfast.Handler) (url string, stop func()) {
	web := httptest.NewServer(handler)
	return web.URL, func() {
		if err := handler.Shutdown(context.Background()); err != nil {
			log.Print(err)
		}
		web.Close()
	}
}

// post sends one message, and returns the body of the answer.
func post(url, message string) string {
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(message))
	if err != nil {
		return err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

// callTool calls a tool with the go-sdk's own client.
func callTool(url, name string, args any) string {
	ctx := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "example", Version: "1.0.0"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		return err.Error()
	}
	defer session.Close()
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return err.Error()
	}
	return result.Content[0].(*mcp.TextContent).Text
}

// A gateway answers raw messages itself.
func ExampleNewBackendHandler() {
	backend := message.New(message.HandlerFunc(func(x *message.Exchange) {
		switch x.Method {
		case "initialize":
			x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`))
		case "tools/call":
			x.Result([]byte(`{"content":[{"type":"text","text":"done"}]}`))
		}
	}))
	handler := holdfast.NewBackendHandler(backend, &holdfast.Options{Stateless: true})
	url, stop := listen(handler)
	defer stop()
	fmt.Println(post(url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work"}}`))
	// Output: {"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"done"}]}}
}

// A tool that works for long disconnects its client meanwhile. The client comes
// back by itself, and gets the messages that it missed.
func ExampleDisconnect() {
	server := mcp.NewServer(&mcp.Implementation{Name: "worker", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "work"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ any) (*mcp.CallToolResult, any, error) {
		holdfast.Disconnect(ctx, 10*time.Millisecond) // it comes back after this time
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done while you were away"}}}, nil, nil
	})
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, nil)
	url, stop := listen(handler)
	defer stop()
	fmt.Println(callTool(url, "work", nil))
	// Output: done while you were away
}

// A server that stops lets its calls end first: the handler is shut down before the
// HTTP server, so that clients can still come back for the messages that they missed.
func ExampleHandler_Shutdown() {
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, nil)
	web := &http.Server{Addr: "localhost:0", Handler: handler}
	served := make(chan error, 1)
	go func() { served <- web.ListenAndServe() }()

	// On SIGTERM (see signal.NotifyContext):
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := errors.Join(handler.Shutdown(ctx), web.Shutdown(ctx))
	fmt.Println(err, <-served)
	// Output: <nil> http: Server closed
}

// A Go client changes one line, too: its calls outlive the connections under them.
func ExampleNewClientTransport() {
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "greet", Description: "says hello"}, greet)
	url, stop := listen(holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, nil))
	defer stop()

	ctx := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "caller", Version: "1.0.0"}, nil)
	// Before: &mcp.StreamableClientTransport{Endpoint: url}
	session, err := client.Connect(ctx, holdfast.NewClientTransport(url, nil), nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer session.Close()

	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "greet", Arguments: greeting{"Ada"}})
	switch {
	case holdfast.OutcomeUnknown(err):
		fmt.Println("nobody knows whether the tool did its work:", err)
	case err != nil:
		fmt.Println("it did not:", err)
	default:
		fmt.Println(result.Content[0].(*mcp.TextContent).Text)
	}
	// Output: Hello, Ada
}

// A handler that counts its calls. Serve the registry with promhttp.HandlerFor.
func ExampleOptions_metrics() {
	registry := prometheus.NewRegistry()
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Metrics: metrics.New(registry),
	})
	figures, err := registry.Gather()
	fmt.Println(len(figures) > 0, err)
	fmt.Println(handler.Shutdown(context.Background()))
	figures, err = registry.Gather() // the figures are gone with the handler
	fmt.Println(len(figures), err)
	// Output:
	// true <nil>
	// <nil>
	// 0 <nil>
}

// A handler that makes a span for each call.
func ExampleOptions_traces() {
	provider := sdk.NewTracerProvider() // with an exporter
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Traces: traces.New(provider, nil),
	})
	ctx := context.Background()
	fmt.Println(handler.Shutdown(ctx), provider.Shutdown(ctx)) // in this order
	// Output: <nil> <nil>
}

// A handler with completion webhooks, which may also go to the operator's own network.
func ExampleOptions_webhooks() {
	secret, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") // from the environment, not the source
	if err != nil {
		fmt.Println(err)
		return
	}
	intranet, err := webhook.ParseAllowed("10.0.0.0/8")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Webhooks: &webhook.Options{Secret: secret, Allow: []webhook.Allowed{intranet}},
	})
	fmt.Println(secret, handler.Shutdown(context.Background()))
	// Output: whsec_(hidden) <nil>
}

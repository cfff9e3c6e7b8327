package message_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/jsonrpc"
)

// A server without an SDK: it answers two methods.
func Example() {
	backend := message.New(message.HandlerFunc(func(x *message.Exchange) {
		switch {
		case x.Kind != jsonrpc.Request: // a notification needs no answer
		case x.Method == "initialize":
			x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"raw","version":"1"}}`))
		case x.Method == "example/time":
			x.Result([]byte(`{"time":"12:00"}`))
		default:
			x.Error(jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "method not found: %s", x.Method))
		}
	}))
	handler := holdfast.NewBackendHandler(backend, &holdfast.Options{Stateless: true})
	defer handler.Shutdown(context.Background())
	server := httptest.NewServer(handler)
	defer server.Close()

	fmt.Println(post(server.URL, `{"jsonrpc":"2.0","id":1,"method":"example/time"}`))
	fmt.Println(post(server.URL, `{"jsonrpc":"2.0","id":2,"method":"example/date"}`))
	// Output:
	// {"jsonrpc":"2.0","id":1,"result":{"time":"12:00"}}
	// {"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"method not found: example/date"}}
}

// A request that takes time is answered from another goroutine, after a notification.
func ExampleExchange() {
	backend := message.New(message.HandlerFunc(func(x *message.Exchange) {
		switch x.Method {
		case "initialize":
			x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"raw","version":"1"}}`))
		case "example/work":
			go func() { // Serve must not wait
				x.Notify("notifications/message", []byte(`{"level":"info","data":"half done"}`))
				x.Result([]byte(`{"done":true}`))
			}()
		}
	}))
	handler := holdfast.NewBackendHandler(backend, &holdfast.Options{Stateless: true})
	defer handler.Shutdown(context.Background())
	server := httptest.NewServer(handler)
	defer server.Close()

	for line := range strings.Lines(post(server.URL, `{"jsonrpc":"2.0","id":1,"method":"example/work"}`)) {
		if strings.HasPrefix(line, "data: {") {
			fmt.Print(line)
		}
	}
	// Output:
	// data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"half done"}}
	// data: {"jsonrpc":"2.0","id":1,"result":{"done":true}}
}

func post(url, body string) string {
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
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
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

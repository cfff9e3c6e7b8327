package backend_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"holdfast"
	"holdfast/backend"
	"holdfast/jsonrpc"
)

// echo is a backend that answers every request with the request's own params.
type echo struct{}

func (echo) Open(_ context.Context, _ backend.Start, sink backend.Sink) (backend.Conn, error) {
	return conversation{sink}, nil
}

type conversation struct{ sink backend.Sink }

func (c conversation) Deliver(in backend.Inbound) error {
	if in.Kind != jsonrpc.Request {
		return nil // a notification: there is nothing to answer
	}
	result := in.Params
	if in.Method == "initialize" {
		result = []byte(`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"echo","version":"1"}}`)
	}
	// Deliver must not block. A backend that needs time answers from a goroutine.
	c.sink.Emit(in.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: in.ID, Result: result})
	return nil
}

func (conversation) Close() error { return nil }

// A minimal backend of one's own.
func Example() {
	handler := holdfast.NewBackendHandler(echo{}, &holdfast.Options{Stateless: true})
	server := httptest.NewServer(handler)
	defer server.Close()
	defer handler.Shutdown(context.Background())

	request, err := http.NewRequest(http.MethodPost, server.URL,
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"example/echo","params":{"text":"hello"}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	fmt.Println(string(body), err)
	// Output: {"jsonrpc":"2.0","id":1,"result":{"text":"hello"}} <nil>
}

package process_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"holdfast"
	"holdfast/backend/process"
)

// script is a very small MCP server: it answers every request with the same result.
const script = `
while read -r line; do
	id=${line#*\"id\":}
	[ "$id" = "$line" ] || echo "{\"jsonrpc\":\"2.0\",\"id\":${id%%,*},\"result\":{\"tools\":[]}}"
done`

// Serve a command that speaks MCP on stdio over HTTP.
func Example() {
	backend, err := process.New([]string{"/bin/sh", "-c", script}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()
	handler := holdfast.NewBackendHandler(backend, &holdfast.Options{Stateless: true})
	defer handler.Shutdown(context.Background())
	server := httptest.NewServer(handler)
	defer server.Close()

	request, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
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
	// Output: {"jsonrpc":"2.0","id":1,"result":{"tools":[]}} <nil>
}

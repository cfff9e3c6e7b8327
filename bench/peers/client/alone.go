package main

import (
	"context"
	"io"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// alone is a transport without a server: it answers each request as it is written, with a fixed
// answer. So the only cost is that of mcp.Client over any transport.
type alone struct{}

// Connect implements [mcp.Transport].
func (alone) Connect(context.Context) (mcp.Connection, error) {
	return &aloneConn{in: make(chan jsonrpc.Message, 16), done: make(chan struct{})}, nil
}

type aloneConn struct {
	in   chan jsonrpc.Message
	once sync.Once
	done chan struct{}
}

// Read implements [mcp.Connection].
func (c *aloneConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-c.in:
		return m, nil
	case <-c.done:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var (
	aloneOpening = []byte(`{"protocolVersion":"` + revision + `","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}}`)
	aloneAnswer  = []byte(`{"content":[{"type":"text","text":"` + strings.Repeat("e", echoSize) + `"}]}`)
	aloneEvent   = []byte(`{"progressToken":"bench","progress":10000,"total":10000,"message":"` + strings.Repeat("x", eventSize) + `"}`)
)

// Write implements [mcp.Connection].
func (c *aloneConn) Write(_ context.Context, m jsonrpc.Message) error {
	req, ok := m.(*jsonrpc.Request)
	if !ok || !req.IsCall() {
		return nil
	}
	result := aloneAnswer
	if req.Method == "initialize" {
		result = aloneOpening
	}
	// As over HTTP, each call has a goroutine that passes on its messages.
	go func() {
		if strings.Contains(string(req.Params), "progressToken") {
			for range events {
				c.put(&jsonrpc.Request{Method: "notifications/progress", Params: aloneEvent})
			}
		}
		c.put(&jsonrpc.Response{ID: req.ID, Result: result})
	}()
	return nil
}

func (c *aloneConn) put(m jsonrpc.Message) {
	select {
	case c.in <- m:
	case <-c.done:
	}
}

// Close implements [mcp.Connection].
func (c *aloneConn) Close() error {
	c.once.Do(func() { close(c.done) })
	return nil
}

// SessionID implements [mcp.Connection].
func (c *aloneConn) SessionID() string { return "" }

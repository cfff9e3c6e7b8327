package bench

import (
	"context"
	"io"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/bench/tools"
)

// A wire is the smallest connection of an mcp.Server: no HTTP, no encoding, no
// routing.
type wire struct {
	in, out chan jsonrpc.Message
	done    chan struct{}
}

func (w *wire) Connect(context.Context) (mcp.Connection, error) { return w, nil }
func (w *wire) SessionID() string                               { return "" }

func (w *wire) Read(context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-w.in:
		return m, nil
	case <-w.done:
		return nil, io.EOF
	}
}

func (w *wire) Write(_ context.Context, m jsonrpc.Message) error {
	w.out <- m
	return nil
}

func (w *wire) Close() error { return nil }

// BenchmarkServerAlone measures the cost of a plain call in an official mcp.Server
// over a connection. Every transport has this cost if it leaves the way from the
// connection to the tool to the SDK.
func BenchmarkServerAlone(b *testing.B) {
	w := &wire{in: make(chan jsonrpc.Message), out: make(chan jsonrpc.Message, 1), done: make(chan struct{})}
	ss, err := tools.NewServer().Connect(b.Context(), w, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		close(w.done)
		_ = ss.Wait()
	}()
	n := 0.0
	ask := func(method, params string) {
		n++
		id, err := jsonrpc.MakeID(n)
		if err != nil {
			b.Fatal(err)
		}
		w.in <- &jsonrpc.Request{ID: id, Method: method, Params: []byte(params)}
		if r, ok := (<-w.out).(*jsonrpc.Response); !ok || r.Error != nil {
			b.Fatalf("%s was not answered well: %v", method, r)
		}
	}
	ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`)
	w.in <- &jsonrpc.Request{Method: "notifications/initialized"}
	b.ReportAllocs()
	for b.Loop() {
		ask("tools/call", `{"name":"echo","arguments":{"text":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"}}`)
	}
}

// Package transcripts records the messages of clients on every transport, with the
// session on the node that they are connected to, on another node, and moved
// meanwhile. Each transcript is a file of testdata; go test -update writes them
// anew. The tests use the public API, and sockets, so that they stay as they are
// when the code behind them changes.
package transcripts_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(64)
	goleak.VerifyTestMain(m)
}

// nodes are handlers that share an engine, with the tools behind all of them.
type nodes struct {
	t     testing.TB
	all   []*node
	tools *tools
}

// node is a handler on a socket of its own.
type node struct {
	*holdfast.Handler
	addr   string
	handle *logtest.Handle // nil: the store is in memory
	close  func()          // the store
	web    *http.Server
	conns  *connections
	work   sync.WaitGroup
	once   sync.Once // for leave
}

// connections are the accepted connections of a node, also WebSockets.
type connections struct {
	*net.TCPListener
	mu  sync.Mutex
	all []*net.TCPConn
}

// Accept implements [net.Listener].
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.AcceptTCP()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, conn)
	return conn, nil
}

// end closes all connections, as when the node's process ends.
func (c *connections) end() {
	_ = c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		_ = conn.Close()
	}
}

// newNodes starts n handlers with the options o. A single handler has a store in memory.
func newNodes(t testing.TB, n int, o holdfast.Options) *nodes {
	t.Helper()
	engine := logtest.New(logtest.Options{})
	all := &nodes{t: t, tools: &tools{gates: map[string]chan struct{}{}, over: make(chan struct{})}}
	o.Logger = slog.New(slog.DiscardHandler)
	o.UpgradeAfter, o.PingAfter, o.KeepAlive = time.Minute, -1, -1 // no timer affects the transcripts
	o.Retry = 50 * time.Millisecond
	o.Principal = func(r *http.Request) string {
		return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	for range n {
		node, own := &node{close: func() {}}, o
		if n > 1 {
			node.handle = engine.Open()
			own.Store = durable.New(node.handle, durable.Options{Patience: 3 * time.Second, Logger: o.Logger})
			node.close = sync.OnceFunc(func() { _ = own.Store.Close() })
		}
		node.Handler = holdfast.NewBackendHandler(message.New(all.tools), &own)
		l := mcptest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		node.addr, node.conns = l.Addr().String(), &connections{TCPListener: l.(*net.TCPListener)}
		node.web = &http.Server{Handler: mcptest.Endpoints(node), ReadHeaderTimeout: time.Minute}
		node.work.Go(func() { _ = node.web.Serve(node.Listener(node.conns)) })
		t.Cleanup(func() {
			node.leave(0)
			node.work.Wait()
			node.close()
		})
		all.all = append(all.all, node)
	}
	t.Cleanup(func() { close(all.tools.over) }) // before the nodes end
	return all
}

// leave shuts the node down, like an operator. Calls in flight have the time within to end.
func (n *node) leave(within time.Duration) {
	n.once.Do(func() {
		ctx, stop := context.WithTimeout(context.Background(), within)
		defer stop()
		_ = n.Shutdown(ctx) // the error says that ctx is done
		last, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		if n.web.Shutdown(last) != nil {
			_ = n.web.Close()
		}
		n.conns.end()
	})
}

// kill makes the node vanish: the engine, other nodes and clients get no more
// messages from it. Its goroutines end meanwhile, as they would wait in vain for the engine and for the other nodes.
func (n *node) kill() {
	n.handle.Cut(true)
	_ = n.handle.Close()
	n.conns.end()
	n.work.Go(func() {
		n.close()
		n.leave(0)
	})
}

// tools answer the calls at all nodes.
type tools struct {
	over chan struct{}

	mu     sync.Mutex
	gates  map[string]chan struct{} // by name: calls wait for them
	asking []*message.Exchange      // calls that wait for their client's answer, oldest first
	asked  int
}

const list = `{"tools":[` +
	`{"name":"echo","annotations":{"readOnlyHint":true}},{"name":"count"},{"name":"gated"},{"name":"ask"},` +
	`{"name":"safe_count","annotations":{"idempotentHint":true}},{"name":"safe_gated","annotations":{"idempotentHint":true}}]}`

// Serve implements [message.Handler].
func (s *tools) Serve(x *message.Exchange) {
	switch {
	case x.Kind == jsonrpc.Response:
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.asking) > 0 {
			s.asking[0].Result(text("answered with " + string(x.Message.Result) + string(x.Message.Error)))
			s.asking = s.asking[1:]
		}
	case x.Method == "initialize":
		version := jsonrpc.Field(x.Params, "protocolVersion")
		x.Result(fmt.Appendf(nil, `{"protocolVersion":%s,"capabilities":{"tools":{}},"serverInfo":{"name":"tools","version":"1"}}`, version))
	case x.Method == "ping":
		x.Result([]byte(`{}`))
	case x.Method == "tools/list":
		x.Result([]byte(list))
	case x.Method == "notifications/say": // a message that belongs to no call
		m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":` + string(x.Params) + `}`))
		if err == nil {
			x.Sink.EmitUnrelated(m)
		}
	case x.Method == "tools/call":
		s.call(x)
	case x.Kind == jsonrpc.Request:
		x.Error(jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "no %s", x.Method))
	}
}

func (s *tools) call(x *message.Exchange) {
	args := jsonrpc.Field(x.Params, "arguments")
	name := jsonrpc.String(jsonrpc.Field(x.Params, "name"))
	key := jsonrpc.String(jsonrpc.Field(args, "key"))
	switch name {
	case "echo":
		x.Result(text(jsonrpc.String(jsonrpc.Field(args, "text"))))
	case "count", "safe_count":
		for i := range len(string(jsonrpc.Field(args, "to"))) { // "0": none, "1": one
			if string(jsonrpc.Field(args, "to")) != "0" {
				progress(x, i+1)
			}
		}
		x.Result(text("counted"))
	case "gated", "safe_gated":
		go func() {
			progress(x, 1)
			select {
			case <-s.gate(key):
				progress(x, 2)
				x.Result(text("done"))
			case <-s.over:
			}
		}()
	case "ask":
		s.mu.Lock()
		s.asked++
		id := fmt.Appendf(nil, `"q%d"`, s.asked)
		s.asking = append(s.asking, x)
		s.mu.Unlock()
		x.Request(id, "elicitation/create", []byte(`{"message":"?","requestedSchema":{"type":"object","properties":{}}}`))
	default:
		x.Error(jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "no tool %s", name))
	}
}

// gate returns a channel that is closed when the gate opens.
func (s *tools) gate(key string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates[key] == nil {
		s.gates[key] = make(chan struct{})
	}
	return s.gates[key]
}

func progress(x *message.Exchange, i int) {
	token := jsonrpc.Field(x.Params, "_meta", "progressToken")
	x.Notify("notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":%d}`, token, i))
}

func text(s string) []byte { return fmt.Appendf(nil, `{"content":[{"type":"text","text":%q}]}`, s) }

package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/backend/remote"
	"holdfast/bench/floor"
	"holdfast/bench/load"
	"holdfast/bench/tools"
)

const (
	events    = 1000 // in a stream
	eventSize = 64
	storeSize = 1 << 30
)

// A rival is a handler to measure. A path is empty if the handler has no such operation.
type rival struct {
	name string
	bare bool // answers any message, without a handshake
	// open returns the handler, and a function that ends it.
	open func() (http.Handler, func())

	plain, modern, sse, stream string
}

var rivals = []rival{
	{
		name: "floor", bare: true,
		open:  func() (http.Handler, func()) { return floor.New(), func() {} },
		plain: "/json", modern: "/modern", sse: "/sse", stream: "/events?n=1000&size=64",
	},
	{
		name: "holdfast-message",
		open: func() (http.Handler, func()) {
			return both(func(o *holdfast.Options) *holdfast.Handler {
				return holdfast.NewBackendHandler(message.New(message.HandlerFunc(tools.Answer)), o)
			})
		},
		plain: "/auto", sse: "/sse", stream: "/sse",
	},
	{
		name: "holdfast-observed", // with metrics and an audit log
		open: func() (http.Handler, func()) {
			observe, end, err := tools.Observe()
			if err != nil {
				panic(err)
			}
			n := 0
			h, stop := both(func(o *holdfast.Options) *holdfast.Handler {
				observe(o, fmt.Sprint(n))
				n++
				return holdfast.NewBackendHandler(message.New(message.HandlerFunc(tools.Answer)), o)
			})
			return h, func() {
				stop()
				end()
			}
		},
		plain: "/auto", sse: "/sse", stream: "/sse",
	},
	{
		name: "holdfast-sdk",
		open: func() (http.Handler, func()) {
			s := tools.NewServer()
			return both(func(o *holdfast.Options) *holdfast.Handler {
				return holdfast.NewHandler(func(*http.Request) *mcp.Server { return s }, o)
			})
		},
		plain: "/auto", modern: "/auto", sse: "/sse", stream: "/sse",
	},
	{
		name: "holdfast-remote", // in front of go-sdk
		open: func() (http.Handler, func()) {
			sdk, end := openSDK()
			server := httptest.NewServer(sdk)
			quiet := slog.New(slog.DiscardHandler)
			h, stop := both(func(o *holdfast.Options) *holdfast.Handler {
				return holdfast.NewBackendHandler(remote.New(server.URL+"/json", &remote.Options{Logger: quiet}), o)
			})
			return h, func() {
				stop()
				server.CloseClientConnections()
				server.Close()
				end()
			}
		},
		plain: "/auto",
	},
	{
		name: "go-sdk", open: openSDK,
		plain: "/json", modern: "/stateless", sse: "/store", stream: "/store",
	},
}

// both serves the handlers that newHandler makes: one that chooses between JSON and a stream, and one that always answers with a stream.
func both(newHandler func(*holdfast.Options) *holdfast.Handler) (http.Handler, func()) {
	mux := http.NewServeMux()
	quiet := slog.New(slog.DiscardHandler)
	auto := newHandler(&holdfast.Options{Logger: quiet, Eras: holdfast.ErasBoth})
	sse := newHandler(&holdfast.Options{Response: holdfast.ResponseSSE, Logger: quiet, Eras: holdfast.ErasBoth})
	mux.Handle("/auto", auto)
	mux.Handle("/sse", sse)
	return mux, func() {
		done, cancel := context.WithCancel(context.Background())
		cancel() // do not wait for clients
		_ = auto.Shutdown(done)
		_ = sse.Shutdown(done)
	}
}

func openSDK() (http.Handler, func()) {
	s := tools.NewServer()
	get := func(*http.Request) *mcp.Server { return s }
	store := mcp.NewMemoryEventStore(nil)
	store.SetMaxBytes(storeSize)
	mux := http.NewServeMux()
	mux.Handle("/json", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{JSONResponse: true}))
	mux.Handle("/stateless", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{JSONResponse: true, Stateless: true}))
	mux.Handle("/store", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{EventStore: store}))
	return mux, func() {}
}

// A client is a connection with a session.
type client struct {
	*load.Client
	addr, path, session string
}

func (c *client) post(msg string) *load.Request { return load.Post(c.addr, c.path, c.session, msg) }

// each runs a benchmark for every rival that has the path.
func each(b *testing.B, path func(*rival) string, run func(b *testing.B, dial func() *client)) {
	for i := range rivals {
		r := &rivals[i]
		if path(r) == "" {
			continue
		}
		b.Run(r.name, func(b *testing.B) {
			h, end := r.open()
			defer end()
			server := httptest.NewServer(h)
			defer server.CloseClientConnections()
			addr := strings.TrimPrefix(server.URL, "http://")
			b.ReportAllocs()
			run(b, func() *client {
				c, err := load.Dial(addr)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = c.Close() })
				session := "none"
				if !r.bare {
					if session, err = c.Handshake(path(r)); err != nil {
						b.Fatal(err)
					}
				}
				return &client{Client: c, addr: addr, path: path(r), session: session}
			})
		})
	}
}

// do sends a request, and returns its response, which must contain the text.
func (c *client) do(b *testing.B, req *load.Request, text string) load.Response {
	res, err := c.Do(req)
	if err == nil {
		err = res.Expect(200, text)
	}
	if err != nil {
		b.Error(err)
	}
	return res
}

func echo(b *testing.B, dial func() *client) {
	c := dial()
	req := c.post(load.Echo(32))
	for range 20 {
		c.do(b, req.Next(), "eeee")
	}
	for b.Loop() {
		if c.do(b, req.Next(), "eeee"); b.Failed() {
			return
		}
	}
}

func BenchmarkPlainCall(b *testing.B) {
	each(b, func(r *rival) string { return r.plain }, echo)
}

// BenchmarkModernCall is a plain call of revision 2026-07-28.
func BenchmarkModernCall(b *testing.B) {
	each(b, func(r *rival) string { return r.modern }, func(b *testing.B, dial func() *client) {
		c := dial()
		req := load.PostModern(c.addr, c.path, "echo", load.EchoArgs(32))
		for range 20 {
			c.do(b, req.Next(), "eeee")
		}
		for b.Loop() {
			if c.do(b, req.Next(), "eeee"); b.Failed() {
				return
			}
		}
	})
}

func BenchmarkSSECall(b *testing.B) {
	each(b, func(r *rival) string { return r.sse }, echo)
}

// An operation is one event of a live stream.
func BenchmarkStreamEvent(b *testing.B) {
	each(b, func(r *rival) string { return r.stream }, func(b *testing.B, dial func() *client) {
		c := dial()
		req := c.post(load.Progress(events, eventSize))
		b.ResetTimer()
		for n := 0; n < b.N; n += events {
			c.do(b, req.Next(), "done")
		}
	})
}

// An operation is one event of a finished stream.
func BenchmarkReplayedEvent(b *testing.B) {
	each(b, func(r *rival) string { return r.stream }, func(b *testing.B, dial func() *client) {
		c := dial()
		res := c.do(b, c.post(load.Progress(events, eventSize)), "done")
		req := load.Get(c.addr, c.path, c.session, load.FirstEventID(res.Body))
		b.ResetTimer()
		for n := 0; n < b.N; n += events {
			c.do(b, req, "done")
		}
	})
}

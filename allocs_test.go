package holdfast_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// exact is a backend with tools that cost as little as possible.
type exact struct {
	step chan struct{} // "paced" emits a message for each value
	pad  string        // further members of that message
	held chan struct{} // "held" answers when the channel is closed
}

var exactTools = []byte(`{"tools":[{"name":"echo","annotations":{"readOnlyHint":true}},{"name":"paced"},{"name":"held"}]}`)

// Serve implements [message.Handler].
func (e *exact) Serve(x *message.Exchange) {
	done := []byte(`{"content":[]}`)
	switch {
	case x.Method == "initialize":
		x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"exact","version":"1"}}`))
	case x.Method == "tools/list":
		x.Result(exactTools)
	case x.Method != "tools/call":
	case bytes.Contains(x.Params, []byte(`"echo"`)):
		x.Result(done)
	case bytes.Contains(x.Params, []byte(`"held"`)):
		go func() {
			<-e.held
			x.Result(done)
		}()
	default:
		said := []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1` + e.pad + `}}`)
		m, _ := jsonrpc.Parse(said)
		go func() {
			for range e.step {
				x.Sink.Emit(x.Call, m)
			}
			x.Result(done)
		}()
	}
}

// sink is the client's end of a response. It keeps only the header.
type sink struct {
	head http.Header
	said chan struct{} // receives for each event with data; may be nil
}

func (s *sink) Header() http.Header { return s.head }
func (s *sink) WriteHeader(int)     {}
func (s *sink) Flush()              {}
func (s *sink) Write(b []byte) (int, error) {
	if s.said != nil {
		for range bytes.Count(b, []byte("data: {")) {
			s.said <- struct{}{}
		}
	}
	return len(b), nil
}

// SetWriteDeadline and SetReadDeadline are the methods that [http.ResponseController] looks for.
func (s *sink) SetWriteDeadline(time.Time) error { return nil }
func (s *sink) SetReadDeadline(time.Time) error  { return nil }

// body is a request's body that can be read again.
type body struct{ bytes.Reader }

func (*body) Close() error { return nil }

// measured is a handler with a session, without a socket.
type measured struct {
	*holdfast.Handler
	backend *exact
	session string
	header  http.Header // headers of each request, beside those that all requests have
}

func newMeasured(t *testing.T, with ...func(*holdfast.Options)) *measured {
	t.Helper()
	m := &measured{backend: &exact{held: make(chan struct{})}}
	o := &holdfast.Options{Logger: slog.New(slog.DiscardHandler), UpgradeAfter: time.Minute, KeepAlive: -1, Eras: holdfast.ErasBoth}
	for _, set := range with {
		set(o)
	}
	m.Handler = holdfast.NewBackendHandler(message.New(m.backend), o)
	t.Cleanup(func() { _ = m.Shutdown(t.Context()) })
	m.begin()
	return m
}

// begin begins the session, and makes it list the tools.
func (m *measured) begin() {
	first := &sink{head: http.Header{}}
	m.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)(first)
	m.session = first.head.Get("Mcp-Session-Id")
	m.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)(&sink{head: http.Header{}})
}

// post returns a function that makes the same request each time.
func (m *measured) post(text string) func(w *sink) {
	b := &body{}
	r, err := http.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", b)
	if err != nil {
		panic(err)
	}
	r.RemoteAddr = "127.0.0.1:1"
	r.ContentLength = int64(len(text))
	r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if m.session != "" {
		r.Header["Mcp-Session-Id"] = []string{m.session}
		r.Header["Mcp-Protocol-Version"] = []string{"2025-11-25"}
	}
	maps.Copy(r.Header, m.header)
	return func(w *sink) {
		b.Reset([]byte(text))
		clear(w.head)
		m.ServeHTTP(w, r)
	}
}

func toolCall(id int, name string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{},"_meta":{"progressToken":1}}}`, id, name)
}

// allocations returns how many objects f allocates each time, as an average over many times.
func allocations(f func()) float64 {
	const n = 5000
	f()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as in testing.AllocsPerRun, which rounds its result down
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / n
}

// TestAllocationsOfLightCall guards the path of a light call at its session's node,
// which stays direct. The figure leaves out the allocations of net/http. Three of
// the allocations are the test's own.
func TestAllocationsOfLightCall(t *testing.T) {
	if testlong.Race {
		t.Skip("the race detector allocates, too")
	}
	m := newMeasured(t)
	post, w := m.post(toolCall(2, "echo")), &sink{head: http.Header{}}
	if got := allocations(func() { post(w) }); got > 16.5 {
		t.Errorf("%v allocations for a light call, want 16: keep its path free of what only streams need", got)
	}
}

// TestAllocationsOfStreamedCall guards the path of a call that is answered with a stream, and equals no other call.
func TestAllocationsOfStreamedCall(t *testing.T) {
	if testlong.Race {
		t.Skip("the race detector allocates, too")
	}
	m := newMeasured(t, func(o *holdfast.Options) { o.Response = holdfast.ResponseSSE })
	post, w := m.post(toolCall(2, "echo")), &sink{head: http.Header{}}
	if got := allocations(func() { post(w) }); got > 32.5 {
		t.Errorf("%v allocations for a call with a stream, want 32", got)
	}
}

// TestAllocationsOfModernCall guards the path of a call of revision 2026-07-28 to an mcp.Server
// and back. The figure has the allocations of the path and of the go-sdk.
func TestAllocationsOfModernCall(t *testing.T) {
	if testlong.Race {
		t.Skip("the race detector allocates, too")
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "exact", Version: "1"}, nil)
	done := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}
	server.AddTool(&mcp.Tool{Name: "echo", InputSchema: map[string]any{"type": "object"}},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return done, nil })
	m := &measured{Handler: holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Eras:   holdfast.ErasBoth,
		Logger: slog.New(slog.DiscardHandler),
	})}
	t.Cleanup(func() { _ = m.Shutdown(t.Context()) })
	const revision = "2026-07-28"
	m.header = http.Header{"Mcp-Protocol-Version": {revision}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"echo"}}
	post := m.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"` + revision + `","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":{}}}}`)
	w := &sink{head: http.Header{}}
	if got := allocations(func() { post(w) }); got > 32.5 {
		t.Errorf("%v allocations for a modern call, want 32", got)
	}
}

// TestAllocationsOfStreamEvent guards the path of a message from the backend to the
// store, and from there to a client that waits for it.
func TestAllocationsOfStreamEvent(t *testing.T) {
	if testlong.Race {
		t.Skip("the race detector allocates, too")
	}
	var got float64
	events(t, "", func(event func()) { got = allocations(event) })
	if got > 0.1 {
		t.Errorf("%v allocations for an event of a stream, want none", got)
	}
}

// TestStreamEventIsNotParsed guards the path of a stream's event from the backend to a client: its message
// was parsed when it came from the server, and is not parsed again. So an event with a long message takes
// a fraction of the time that a search for a member of the message takes.
func TestStreamEventIsNotParsed(t *testing.T) {
	pad := `,"_meta":{"seen":[0` + strings.Repeat(",0", 64<<10) + `]}`
	params := []byte(`{"progressToken":1` + pad + `}`)
	fastest := func(f func()) time.Duration {
		best := time.Hour
		for range 100 {
			began := time.Now()
			f()
			best = min(best, time.Since(began))
		}
		return best
	}
	parse := fastest(func() {
		if jsonrpc.Field(params, "progressToken") == nil {
			t.Error("there is no progress token")
		}
	})
	var event time.Duration
	events(t, pad, func(send func()) { event = fastest(send) })
	if event > parse/4 {
		t.Errorf("an event of %d bytes takes %v, and to parse it %v: does its way parse what was parsed before?", len(params), event, parse)
	}
}

// events runs f with a function that lets a backend emit one message of a call, and returns when the call's
// client has it. pad makes the message longer.
func events(t *testing.T, pad string, f func(event func())) {
	t.Helper()
	m := newMeasured(t)
	m.backend.step, m.backend.pad = make(chan struct{}), pad
	w := &sink{head: http.Header{}, said: make(chan struct{})}
	over := make(chan struct{})
	go func() {
		defer close(over)
		m.post(toolCall(2, "paced"))(w)
	}()
	f(func() {
		m.backend.step <- struct{}{}
		<-w.said
	})
	close(m.backend.step)
	<-w.said
	<-over
}

// TestBytesOfWaitingCall guards the memory of a call with a client that waits for its answer.
func TestBytesOfWaitingCall(t *testing.T) {
	if testlong.Race {
		t.Skip("the race detector takes memory, too")
	}
	m := newMeasured(t)
	web := httptest.NewServer(m)
	defer web.Close()
	const n = 500
	used := func() (heap, stack uint64) {
		runtime.GC()
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc, s.StackInuse
	}
	heap, stack := used()
	for i := range n {
		c := mcptest.Must(net.Dial("tcp", web.Listener.Addr().String()))(t)
		defer c.Close()
		text := toolCall(i+2, "held")
		fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
			"Mcp-Session-Id: %s\r\nContent-Length: %d\r\n\r\n%s", web.Listener.Addr(), m.session, len(text), text)
		mcptest.Must(io.ReadFull(c, make([]byte, 300)))(t)
	}
	h, s := used()
	if sum := (h - heap + s - stack) / n; sum > 33_000 { // half a stack more is 4,096
		t.Errorf("a waiting call takes %d bytes of heap and %d of stack, want 31,000 in all: "+
			"has a function on the way to its reader got a larger frame?", (h-heap)/n, (s-stack)/n)
	}
	close(m.backend.held)
}

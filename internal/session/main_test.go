package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/backend"
	"holdfast/internal/caller"
	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/observe/observetest"
	"holdfast/internal/reading"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(32)
	goleak.VerifyTestMain(m)
}

// desk is a backend that the test plays: the test sees the delivered messages and
// emits messages with say. A desk answers initialize and tools/list by itself.
type desk struct {
	mu    sync.Mutex
	links []*deskConn
	err   error  // the error of Open
	slow  func() // Open waits for it

	initialized string                      // the result of initialize; "": a plain result
	refuses     func(backend.Inbound) error // the error for a message that it does not take; nil: it takes all
	mute        bool                        // initialize gets no answer

	asked   chan backend.Inbound // gets each tools/list, for the test to answer; nil: the desk answers
	listing chan struct{}        // the answer to tools/list waits for it; nil: it does not wait
	tools   string               // the tools that it lists

	// The places where the desk panics. Deliver panics at messages of a method.
	openPanics, closePanics atomic.Bool
	deliverPanics           atomic.Pointer[string]
}

type deskConn struct {
	desk   *desk
	sink   backend.Sink
	start  backend.Start
	in     chan backend.Inbound // the delivered messages, but for initialize
	closed chan struct{}
}

func (d *desk) Open(_ context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	if d.openPanics.Load() {
		panic("hunter2")
	}
	if d.slow != nil {
		d.slow()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return nil, d.err
	}
	c := &deskConn{desk: d, sink: sink, start: start, in: make(chan backend.Inbound, 2000), closed: make(chan struct{})}
	d.links = append(d.links, c)
	return c, nil
}

// last returns the conversation that was opened last.
func (d *desk) last() *deskConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.links[len(d.links)-1]
}

func (c *deskConn) Deliver(in backend.Inbound) error {
	if at := c.desk.deliverPanics.Load(); at != nil && *at == in.Method {
		panic("hunter2")
	}
	if c.desk.refuses != nil {
		if err := c.desk.refuses(in); err != nil {
			return err
		}
	}
	switch in.Method {
	case "initialize":
		if c.desk.mute {
			return nil
		}
		result := c.desk.initialized
		if result == "" {
			result = `{"protocolVersion":"2025-11-25","capabilities":{}}`
		}
		c.sink.Emit(in.Call, mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, in.ID, result)))
	case "tools/list":
		if c.desk.asked != nil {
			c.desk.asked <- in
			return nil
		}
		answer := mcptest.Parse(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s]}}`, in.ID, c.desk.tools))
		if c.desk.listing == nil {
			c.sink.Emit(in.Call, answer)
			return nil
		}
		go func() {
			<-c.desk.listing
			c.sink.Emit(in.Call, answer)
		}()
	default:
		c.in <- in
	}
	return nil
}

func (c *deskConn) Close() error {
	if c.desk.closePanics.Load() {
		panic("hunter2")
	}
	close(c.closed)
	return nil
}

// house is a manager with its desk, store and logger.
type house struct {
	*Manager
	t     testing.TB
	desk  *desk
	store stream.Store
}

// newHouse builds a manager over a memory store, or over the store that wrap makes of it.
func newHouse(t testing.TB, o Options, wrap func(stream.Store) stream.Store) *house {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	o.Observers = append(o.Observers, observetest.New(t))
	h := &house{t: t, desk: &desk{}, store: memory.New(memory.Options{})}
	if wrap != nil {
		h.store = wrap(h.store)
	}
	h.Manager = NewManager(h.store, h.desk, o)
	return h
}

func (h *house) close() {
	h.Close()
	if err := h.store.Close(); err != nil {
		h.t.Error(err)
	}
}

// open begins a session and initializes it.
func (h *house) open(principal string) *Session { h.t.Helper(); return h.openAt("", principal) }

// asked are the capabilities of a client that the backends of the tests ask for.
const asked = `"roots":{},"sampling":{},"elicitation":{}`

// openAt begins a session at a server.
func (h *house) openAt(server, principal string) *Session {
	h.t.Helper()
	return h.openAs(server, principal, `{`+asked+`}`)
}

// openAs begins a session of a client with the given capabilities.
func (h *house) openAs(server, principal, capabilities string) *Session {
	h.t.Helper()
	s := mcptest.Must(h.New(newRequest(), caller.At(server, principal), false, nil))(h.t)
	h.initialize(s, capabilities)
	return s
}

func (h *house) initialize(s *Session, capabilities string) {
	h.t.Helper()
	c := begin(h.t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`}}`)
	if answers, done := c.Wait(h.t.Context(), 0); !done || len(answers) != 1 {
		h.t.Fatalf("initialize: %q", answers)
	}
}

func newRequest() *http.Request { return httptest.NewRequest(http.MethodPost, "/", nil) }

// begin opens a call for requests and delivers them.
func begin(t testing.TB, s *Session, light bool, texts ...string) *Call {
	t.Helper()
	var msgs []jsonrpc.Message
	for _, text := range texts {
		msgs = append(msgs, mcptest.Parse(text))
	}
	c := mcptest.Must(s.Begin(msgs, light))(t)
	c.Deliver(context.Background(), msgs, nil)
	return c
}

// awaitListed waits until the sessions know the tools of their backends: a call waits for that
// list only as long as tools.Patience.
func awaitListed(t testing.TB, all ...*Session) {
	t.Helper()
	for _, s := range all {
		m := mcptest.Parse(request(0))
		mcptest.Eventually(t, "the tools to be known", time.Minute, func() bool {
			s.Tools.Light(t.Context(), &m, nil)
			return s.Tools.IsComplete()
		})
	}
}

func request(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id)
}

// say emits a message about a call.
func (c *deskConn) say(call backend.Call, text string) { c.sink.Emit(call, mcptest.Parse(text)) }

// readAll reads a stream from its beginning to its end.
func readAll(t testing.TB, s *Session, number uint64) []string {
	t.Helper()
	ready := make(chan struct{}, 1)
	r := mcptest.Must(s.Read(t.Context(), number, 0, 0, ready))(t)
	defer r.Detach(false, true, false)
	return toEnd(t, r, ready)
}

// toEnd reads the rest of a reader's stream.
func toEnd(t testing.TB, r *reading.Reader, ready <-chan struct{}) []string {
	t.Helper()
	said, err := told(t, r, ready, 0)
	if err != nil {
		t.Fatalf("Next: %v, after %q", err, said)
	}
	return said
}

// told reads n messages of a reader's stream; 0: to the end. It returns the error that ends the reading before.
func told(t testing.TB, r *reading.Reader, ready <-chan struct{}, n int) (said []string, err error) {
	t.Helper()
	timeout := time.After(time.Minute)
	for n == 0 || len(said) < n {
		entries, err := r.Next(t.Context(), make([]stream.Entry, 0, max(2, n)))
		if errors.Is(err, io.EOF) && n == 0 {
			return said, nil
		}
		if err != nil {
			return said, err
		}
		over := false
		for _, e := range entries {
			if over = e.Last; len(e.Data) > 0 {
				said = append(said, string(e.Data))
			}
		}
		if len(entries) > 0 {
			r.Delivered()
			if over && n == 0 {
				return said, nil
			}
			continue
		}
		select {
		case <-ready:
		case <-timeout:
			t.Fatalf("the stream hangs after %q", said)
		}
	}
	return said, nil
}

// Read is [reading.Streams.Read] for a client that sends its own cursor.
func (s *Session) Read(ctx context.Context, number, epoch, seq uint64, ready chan struct{}) (*reading.Reader, error) {
	return s.streams.Read(ctx, reading.Says, stream.Cursor{Stream: stream.ID{Number: number}, Epoch: epoch, Seq: seq}, ready)
}

package message_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/backend"
	"holdfast/backend/message"
	"holdfast/internal/mcptest"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a handler that selects its answer by the name of the tool.
type server struct {
	mu     sync.Mutex
	asking map[string]*message.Exchange // by the id of the server's request
	opened map[backend.Sink]bool
	closed []backend.Sink
}

func (s *server) Serve(x *message.Exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened[x.Sink] = true
	switch {
	case x.Kind == jsonrpc.Response:
		if call := s.asking[string(x.ID)]; call != nil {
			delete(s.asking, string(x.ID))
			call.Result(fmt.Appendf(nil, `{"result":%s,"error":%s}`, orNull(x.Message.Result), orNull(x.Message.Error)))
		}
	case x.Method == "initialize":
		x.Result([]byte(`{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"m","version":"1"}}`))
	case x.Method == "talk":
		x.Notify("notifications/message", []byte("{\n\"data\": 1\r\n}"))
		x.Notify("notifications/empty", nil)
		x.Result([]byte("{\r\n\t\"text\": \"a\\nb\"\n}"))
	case x.Method == "fail":
		x.Error(&jsonrpc.Error{Code: -32042, Message: "no\nway", Data: []byte("[1,\n2]")})
	case x.Method == "nothing":
		x.Result(nil)
	case x.Method == "ask":
		id := fmt.Sprintf(`"q%d"`, len(s.asking)+1)
		s.asking[id] = x
		x.Request([]byte(id), "elicitation/create", []byte("{\n}"))
	case x.Method == "later":
		time.AfterFunc(time.Millisecond, func() { x.Result([]byte(`"later"`)) })
	}
}

func orNull(raw []byte) []byte {
	if raw == nil {
		return []byte("null")
	}
	return raw
}

func (s *server) Closed(sink backend.Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = append(s.closed, sink)
}

// client is one session over a real socket.
type client struct {
	t       *testing.T
	url, id string
}

func newClient(t *testing.T, h message.Handler) (*client, *holdfast.Handler) {
	t.Helper()
	handler := holdfast.NewBackendHandler(message.New(h), &holdfast.Options{Logger: slog.New(slog.DiscardHandler)})
	ts := httptest.NewServer(handler)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := handler.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		ts.Close()
	})
	c := &client{t: t, url: ts.URL}
	c.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`, nil)
	return c, handler
}

// post sends a message and returns the messages that answer it. said is called with
// each message on arrival.
func (c *client) post(text string, said func(jsonrpc.Message)) (all []string) {
	c.t.Helper()
	res, err := (&mcptest.Client{URL: c.url, Session: c.id, HTTP: mcptest.Unpooled}).Send(c.t.Context(), http.MethodPost, text)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	c.id = cmp.Or(c.id, res.Header.Get("Mcp-Session-Id"))
	if !strings.HasPrefix(res.Header.Get("Content-Type"), sse.ContentType) {
		all, err := mcptest.Read(res, nil)
		if err != nil {
			c.t.Fatal(err)
		}
		return []string{all.Body}
	}
	for rd := sse.NewReader(res.Body, 1<<20); ; {
		ev, err := rd.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			c.t.Fatal(err)
		}
		if len(ev.Data) == 0 {
			continue
		}
		m, err := jsonrpc.Parse(slices.Clone(ev.Data))
		if err != nil {
			c.t.Fatalf("%q: %v", ev.Data, err)
		}
		all = append(all, string(ev.Data))
		if said != nil {
			said(m)
		}
	}
}

func (c *client) check(text string, want ...string) {
	c.t.Helper()
	if got := c.post(text, nil); !slices.Equal(got, want) {
		c.t.Errorf("got %q, want %q", got, want)
	}
}

func newServer() *server {
	return &server{asking: map[string]*message.Exchange{}, opened: map[backend.Sink]bool{}}
}

func TestExchange(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, newServer())
	c.check(`{"jsonrpc":"2.0","id":"a b","method":"talk"}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{ "data": 1  }}`,
		`{"jsonrpc":"2.0","method":"notifications/empty"}`,
		`{"jsonrpc":"2.0","id":"a b","result":{  `+"\t"+`"text": "a\nb" }}`)
	c.check(`{"jsonrpc":"2.0","id":12345678901234567890,"method":"fail"}`,
		`{"jsonrpc":"2.0","id":12345678901234567890,"error":{"code":-32042,"message":"no\nway","data":[1,2]}}`)
	c.check(`{"jsonrpc":"2.0","id":1,"method":"nothing"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	c.check(`{"jsonrpc":"2.0","id":1,"method":"later"}`, `{"jsonrpc":"2.0","id":1,"result":"later"}`)
}

// The answer to a server's request reaches the handler under the request's own id,
// whatever id the client saw.
func TestRequest(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t, newServer())
	for _, answer := range []string{`"result":{"action":"accept"}`, `"error":{"code":-1,"message":"no"}`} {
		asked := false
		all := c.post(`{"jsonrpc":"2.0","id":7,"method":"ask"}`, func(m jsonrpc.Message) {
			if m.Kind == jsonrpc.Request {
				asked = true
				if m.Method != "elicitation/create" || string(m.ID) == `"q1"` {
					t.Errorf("asked %s", m.Raw)
				}
				c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, answer), nil)
			}
		})
		_, value, _ := strings.Cut(answer, ":")
		if last := all[len(all)-1]; !asked || len(all) != 2 || !strings.Contains(last, value) {
			t.Errorf("got %q", all)
		}
	}
}

// A handler that implements Closed is called once when a conversation has ended.
func TestClosed(t *testing.T) {
	t.Parallel()
	s := newServer()
	c, h := newClient(t, s)
	c.check(`{"jsonrpc":"2.0","id":1,"method":"nothing"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	s.mu.Lock()
	if len(s.closed) != 0 || len(s.opened) != 1 {
		t.Errorf("%d opened and %d closed", len(s.opened), len(s.closed))
	}
	s.mu.Unlock()
	if err := h.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.closed) != 1 || !s.opened[s.closed[0]] {
		t.Errorf("%d closed", len(s.closed))
	}
}

// Exchange.Error sends a response with the error's code and message, and without a result.
func TestErrorMessage(t *testing.T) {
	t.Parallel()
	got := make(sink, 1)
	x := message.Exchange{Sink: got}
	x.ID = []byte(`1`)
	x.Error(jsonrpc.Errorf(-1, "no"))
	if m := <-got; string(m.Error) != `{"code":-1,"message":"no"}` || m.Kind != jsonrpc.Response || m.Result != nil {
		t.Errorf("got %s in %s", m.Error, m.Raw)
	}
}

type sink chan jsonrpc.Message

func (s sink) Emit(_ backend.Call, m jsonrpc.Message) { s <- m }
func (s sink) EmitUnrelated(m jsonrpc.Message)        { s <- m }
func (s sink) Closed(error, bool)                     {}

// A function is a handler, and is not called when a conversation ends.
func TestHandlerFunc(t *testing.T) {
	t.Parallel()
	c, h := newClient(t, message.HandlerFunc(func(x *message.Exchange) { x.Result([]byte(`{"protocolVersion":"2025-06-18"}`)) }))
	c.check(`{"jsonrpc":"2.0","id":1,"method":"x"}`, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18"}}`)
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

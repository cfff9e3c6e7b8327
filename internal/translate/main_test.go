package translate

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	_ "holdfast/internal/testlong" // the flag -long
	"holdfast/jsonrpc"
)

var quiet = slog.New(slog.DiscardHandler)

// soon bounds all waits of the tests.
const soon = time.Minute

// call is a call of Holdfast. The tests take the place of Holdfast.
type call struct{ name string }

func (*call) Disconnect(time.Duration) {}

// said is a message to Holdfast.
type said struct {
	call   *call
	m      jsonrpc.Message
	closed error
}

// holdfast is a conversation, from Holdfast's side.
type holdfast struct {
	t    *testing.T
	conn backend.Conn

	mu   sync.Mutex
	said []said
	more chan struct{} // closed when said has grown
}

func (h *holdfast) add(s said) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, s)
	close(h.more)
	h.more = make(chan struct{})
}

func (h *holdfast) Emit(of backend.Call, m jsonrpc.Message) {
	c, _ := of.(*call)
	if again, err := jsonrpc.Parse([]byte(strings.Clone(string(m.Raw)))); err != nil || again.Kind != m.Kind || again.Method != m.Method ||
		string(again.ID) != string(m.ID) || string(again.Params) != string(m.Params) || string(again.Result) != string(m.Result) || string(again.Error) != string(m.Error) {
		h.t.Errorf("%s is not what the message says: %+v, %v", m.Raw, m, err)
	}
	h.add(said{call: c, m: m})
}

func (h *holdfast) EmitUnrelated(m jsonrpc.Message) { h.Emit((*call)(nil), m) }
func (h *holdfast) Closed(why error, _ bool)        { h.add(said{closed: why}) }

// next returns the next message.
func (h *holdfast) next() said {
	h.t.Helper()
	deadline := time.After(soon)
	for {
		h.mu.Lock()
		if len(h.said) > 0 {
			s := h.said[0]
			h.said = h.said[1:]
			h.mu.Unlock()
			return s
		}
		more := h.more
		h.mu.Unlock()
		select {
		case <-more:
		case <-deadline:
			h.t.Fatal("nothing more was said")
		}
	}
}

// expect checks the next message, and its call; nil: no call.
func (h *holdfast) expect(of *call, text string) {
	h.t.Helper()
	s := h.next()
	switch {
	case s.closed != nil:
		h.t.Fatalf("closed: %v, want %s", s.closed, text)
	case string(s.m.Raw) != text:
		h.t.Errorf("said:\n%s\nwant:\n%s", s.m.Raw, text)
	case s.call != of:
		h.t.Errorf("%s was said in %v, want %v", text, s.call, of)
	}
}

// quiet checks that no message is left.
func (h *holdfast) quiet() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.said {
		h.t.Errorf("said besides: %s %v", s.m.Raw, s.closed)
	}
}

// deliver sends a message to the server. A request belongs to the call.
func (h *holdfast) deliver(of *call, text string) {
	h.t.Helper()
	m, err := jsonrpc.Parse([]byte(text))
	if err != nil {
		h.t.Fatalf("%s: %v", text, err)
	}
	in := backend.Inbound{Message: m, Context: h.t.Context(), Header: http.Header{"X": {"y"}}}
	if of != nil {
		in.Call = of
	}
	if err := h.conn.Deliver(in); err != nil {
		h.t.Fatalf("%s: %v", text, err)
	}
}

// converse opens a conversation.
func converse(t *testing.T, b backend.Backend, revision string) *holdfast {
	t.Helper()
	h := &holdfast{t: t, more: make(chan struct{})}
	conn := mcptest.Must(b.Open(t.Context(), backend.Start{Session: "s", Revision: revision}, h))(t)
	h.conn = conn
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		h.quiet()
	})
	return h
}

// aClient is the _meta of each request of a client, without braces.
const aClient = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"roots":{},"extensions":{"x/y":{}}}`

// modernRequest returns a request. more are members of the params, and of their _meta.
func modernRequest(id, method, params, more string) string {
	if params != "" {
		params += ","
	}
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s"_meta":{%s%s}}}`, id, method, params, aClient, more)
}

// script is a server: messages to it go to a channel, and the test answers.
type script struct {
	t      *testing.T
	eras   backend.Eras
	heard  chan backend.Inbound
	opened chan backend.Start
	answer func(s *script, in backend.Inbound) bool // reports whether it has answered; or nil
	takes  func() error                             // runs first in Deliver; an error makes Deliver fail; or nil
	// sessionless says that the server keeps no session.
	sessionless bool

	mu     sync.Mutex
	sink   backend.Sink
	refuse error    // of Deliver
	tokens []string // of requests; they are random, so that tests write 1, 2, and so on
}

func newScript(t *testing.T, eras backend.Eras) *script {
	return &script{t: t, eras: eras, heard: make(chan backend.Inbound, 1000), opened: make(chan backend.Start, 100)}
}

func (s *script) Eras() backend.Eras { return s.eras }

func (s *script) Open(_ context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sink, s.tokens = sink, nil
	s.opened <- start
	return &scriptConn{s, sink}, nil
}

type scriptConn struct {
	s    *script
	sink backend.Sink
}

func (c *scriptConn) Deliver(in backend.Inbound) error {
	if c.s.takes != nil {
		if err := c.s.takes(); err != nil {
			return err
		}
	}
	c.s.mu.Lock()
	refuse := c.s.refuse
	c.s.mu.Unlock()
	if refuse != nil {
		return refuse
	}
	if in.Method == protocol.MethodPing && in.Call == nil { // Holdfast's own ping, see leftOfLook
		c.sink.Emit(nil, mcptest.Parse(`{"jsonrpc":"2.0","id":`+string(in.ID)+`,"result":{}}`))
		return nil
	}
	if again, err := jsonrpc.Parse([]byte(string(in.Raw))); err != nil || again.Method != in.Method || string(again.Params) != string(in.Params) {
		c.s.t.Errorf("%s is not what the message says: %v", in.Raw, err)
	}
	if c.s.answer == nil || !c.s.answer(c.s, in) {
		c.s.heard <- in
	}
	return nil
}

func (c *scriptConn) Close() error { return nil }

func (c *scriptConn) Sessionless() bool { return c.s.sessionless }

// say sends a message, as if the server had written it.
func (s *script) say(of *call, text string) {
	s.t.Helper()
	m, err := jsonrpc.Parse([]byte(text))
	if err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
	s.mu.Lock()
	sink := s.sink
	for i, token := range s.tokens {
		if string(jsonrpc.Field(m.Params, "progressToken")) == strconv.Itoa(i+1) {
			m.Params, _ = jsonrpc.Set(m.Params, []byte(token), "progressToken")
			m.Raw, _ = jsonrpc.Set(m.Raw, m.Params, "params")
			break
		}
	}
	s.mu.Unlock()
	if of == nil {
		sink.Emit(nil, m)
	} else {
		sink.Emit(of, m)
	}
}

// hears checks the next message to the server, with its own id in place of the text ID, and returns the id.
func (s *script) hears(text string) (id []byte) {
	s.t.Helper()
	select {
	case in := <-s.heard:
		want := strings.ReplaceAll(text, `"id":ID`, `"id":`+string(in.ID))
		raw := string(in.Raw)
		if token := string(jsonrpc.Field(in.Params, "_meta", "progressToken")); len(token) == 16 {
			s.mu.Lock()
			i := slices.Index(s.tokens, token)
			if i < 0 {
				i = len(s.tokens)
				s.tokens = append(s.tokens, token)
			}
			s.mu.Unlock()
			raw = strings.ReplaceAll(raw, token, strconv.Itoa(i+1))
		}
		if raw != want {
			s.t.Errorf("heard:\n%s\nwant:\n%s", in.Raw, want)
		}
		return in.ID
	case <-time.After(soon):
		s.t.Fatalf("the server does not hear %s", text)
	}
	return nil
}

// untold checks that the server got no other message.
func (s *script) untold() {
	s.t.Helper()
	select {
	case in := <-s.heard:
		s.t.Errorf("heard besides: %s", in.Raw)
	default:
	}
}

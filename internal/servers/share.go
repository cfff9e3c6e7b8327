package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// shared is a backend with one conversation below for all sessions, for servers without state:
// ids and progress tokens are mapped. The server is told of a client without capabilities,
// as nobody could say which session a question of it would be for. It is a legacy conversation.
// What the server keeps for a client is not offered: a level for logs, subscriptions, tasks.
//
// No lock is held while the server or a session is told anything.
type shared struct {
	inner backend.Backend
	log   *slog.Logger
	wait  sync.WaitGroup

	mu      sync.Mutex
	conns   map[*sharedConn]bool
	opening *sharedOpening // nil: none is under way
	current *sharing       // nil: the server is not open
	last    uint64         // of the ids for the server
	closed  bool
}

// sharing is one opening of the server.
type sharing struct {
	s      *shared
	conn   backend.Conn // set when opened is closed; nil: it could not be opened
	opened chan struct{}
	result []byte // of initialize
	asked  map[string]*sharedRequest
	over   bool
}

// sharedRequest is a request that the server has not answered.
type sharedRequest struct {
	from   *sharedConn // nil: our own
	call   backend.Call
	id     []byte // the session's
	token  []byte // the session's, or nil
	method string
	answer chan jsonrpc.Message // of our own
}

func newShared(inner backend.Backend, log *slog.Logger) *shared {
	return &shared{inner: inner, log: log, conns: make(map[*sharedConn]bool)}
}

// Open implements [backend.Backend].
func (s *shared) Open(_ context.Context, start backend.Start, sink backend.Sink) (backend.Conn, error) {
	c := &sharedConn{s: s, start: start, sink: sink, done: make(chan struct{})}
	c.start.HTTP = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errStopped
	}
	s.conns[c] = true
	return c, nil
}

// sharedOpen bounds how long a shared server may take to start and to answer initialize.
const sharedOpen = 60 * time.Second

// get returns the server, which is opened if it is not.
func (s *shared) get(c *sharedConn) (*sharing, error) {
	s.mu.Lock()
	for {
		now, opening := s.current, s.opening
		switch {
		case s.closed:
			s.mu.Unlock()
			return nil, errStopped
		case now != nil:
			s.mu.Unlock()
			return now, nil
		case opening == nil:
			opening = &sharedOpening{done: make(chan struct{})}
			s.opening = opening
			s.wait.Go(func() { s.begin(c.start, opening) })
		}
		s.mu.Unlock()
		select {
		case <-opening.done:
		case <-c.done:
			return nil, errStopped
		}
		if opening.err != nil {
			return nil, opening.err
		}
		s.mu.Lock()
	}
}

// sharedOpening is under way.
type sharedOpening struct {
	done chan struct{} // closed when the server is open, or could not be
	err  error         // why it could not; to be read after that
}

// begin opens the server for all who wait.
func (s *shared) begin(start backend.Start, o *sharedOpening) {
	now, err := s.open(start)
	s.mu.Lock()
	if err == nil && (now.over || s.closed) {
		err = errStopped
	}
	if err == nil {
		s.current = now
	} else if now != nil {
		now.over = true
	}
	s.opening, o.err = nil, err
	s.mu.Unlock()
	close(o.done)
	if err != nil && now != nil && now.conn != nil {
		_ = now.conn.Close()
	}
}

var sharedInitialize = []byte(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"holdfast","version":"1"}}`)

// open opens the server, and initializes it.
func (s *shared) open(start backend.Start) (*sharing, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sharedOpen)
	defer cancel()
	now := &sharing{s: s, opened: make(chan struct{}), asked: make(map[string]*sharedRequest)}
	start.HTTP = (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: make(http.Header)}).WithContext(ctx)
	conn, err := s.inner.Open(ctx, start, now)
	now.conn = conn
	close(now.opened)
	if err != nil {
		return nil, err
	}
	rq := &sharedRequest{method: protocol.MethodInitialize, answer: make(chan jsonrpc.Message, 1)}
	err = now.send(backend.Inbound{Message: jsonrpc.Message{Kind: jsonrpc.Request, Method: rq.method, Params: sharedInitialize}, Context: context.Background()}, rq)
	if err != nil {
		return now, err
	}
	select {
	case m, ok := <-rq.answer:
		switch {
		case !ok:
			return now, errors.New("the server ended at once")
		case m.Error != nil:
			return now, fmt.Errorf("initialize failed: %s", m.Error)
		}
		now.result = offered(m.Result)
	case <-ctx.Done():
		return now, ctx.Err()
	}
	note := protocol.MethodInitialized
	return now, conn.Deliver(backend.Inbound{
		Message: jsonrpc.Message{Kind: jsonrpc.Notification, Method: note, Raw: jsonrpc.AppendRequest(nil, nil, note, nil)}, Context: context.Background(),
	})
}

// offered returns the result of initialize without what is not offered.
func offered(result []byte) []byte {
	var all map[string]json.RawMessage
	if json.Unmarshal(jsonrpc.Field(result, "capabilities"), &all) != nil {
		return result
	}
	delete(all, "logging")
	delete(all, "tasks")
	var resources map[string]json.RawMessage
	if json.Unmarshal(all["resources"], &resources) == nil && resources != nil {
		delete(resources, "subscribe")
		all["resources"], _ = json.Marshal(resources)
	}
	capabilities, err := json.Marshal(all)
	if err != nil {
		return result
	}
	result, _ = jsonrpc.Set(result, capabilities, "capabilities")
	return result
}

// isOffered reports whether sessions may make requests of a method.
func isOffered(method string) bool {
	switch method {
	case protocol.MethodSetLevel, protocol.MethodSubscribe, protocol.MethodUnsubscribe:
		return false
	}
	return !strings.HasPrefix(method, "tasks/")
}

// send makes a request to the server, under an id of ours.
func (n *sharing) send(in backend.Inbound, rq *sharedRequest) error {
	rq.token = jsonrpc.Field(in.Params, "_meta", "progressToken")
	n.s.mu.Lock()
	if n.over {
		n.s.mu.Unlock()
		return errStopped
	}
	n.s.last++
	id := strconv.AppendUint(nil, n.s.last, 10)
	n.asked[string(id)] = rq
	n.s.mu.Unlock()
	in.ID = id
	if rq.token != nil {
		in.Params, _ = jsonrpc.Set(in.Params, id, "_meta", "progressToken")
	}
	in.Raw = jsonrpc.AppendRequest(nil, id, in.Method, in.Params)
	err := n.conn.Deliver(in)
	if err != nil && n.take(id) == nil {
		return nil // it was answered
	}
	return err
}

// take returns a request in flight, and forgets it.
func (n *sharing) take(id []byte) *sharedRequest {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	key := string(jsonrpc.Key(id))
	rq := n.asked[key]
	delete(n.asked, key)
	return rq
}

// Emit implements [backend.Sink].
func (n *sharing) Emit(_ backend.Call, m jsonrpc.Message) { n.heard(m) }

// EmitUnrelated implements [backend.Sink].
func (n *sharing) EmitUnrelated(m jsonrpc.Message) { n.heard(m) }

// heard takes a message of the server.
func (n *sharing) heard(m jsonrpc.Message) {
	switch {
	case m.Kind == jsonrpc.Response:
		rq := n.take(m.ID)
		switch {
		case rq == nil: // it was cancelled
		case rq.from == nil:
			rq.answer <- m
		default:
			m.Raw = m.WithID(rq.id)
			m.ID = rq.id
			rq.from.sink.Emit(rq.call, m)
		}
	case m.Kind == jsonrpc.Request:
		n.s.wait.Go(func() { n.refuse(m) })
	case m.Method == protocol.MethodProgress:
		n.s.mu.Lock()
		rq := n.asked[string(jsonrpc.Key(jsonrpc.Field(m.Params, "progressToken")))]
		n.s.mu.Unlock()
		if rq == nil || rq.from == nil || rq.token == nil {
			return
		}
		m.Params, _ = jsonrpc.Set(m.Params, rq.token, "progressToken")
		m.Raw = jsonrpc.AppendRequest(nil, nil, m.Method, m.Params)
		rq.from.sink.Emit(rq.call, m)
	case strings.HasSuffix(m.Method, "/list_changed"): // all else may be about one session
		n.s.mu.Lock()
		var all []*sharedConn
		for c, ready := range n.s.conns {
			if ready {
				all = append(all, c)
			}
		}
		n.s.mu.Unlock()
		for _, c := range all {
			c.sink.EmitUnrelated(m)
		}
	}
}

// refuse answers a request of the server.
func (n *sharing) refuse(m jsonrpc.Message) {
	text := jsonrpc.AppendResult(nil, m.ID, nil)
	if m.Method != protocol.MethodPing {
		text = jsonrpc.AppendError(nil, m.ID, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "the server is shared by many clients: none can be asked"))
	}
	answer, err := jsonrpc.Parse(text)
	<-n.opened // a server may ask before
	if n.conn == nil {
		return
	}
	if err == nil {
		err = n.conn.Deliver(backend.Inbound{Message: answer, Context: context.Background()})
	}
	if err != nil {
		n.s.log.Debug("request of a shared server not answered", "error", err)
	}
}

// Closed implements [backend.Sink]. The server is opened again when it is needed.
func (n *sharing) Closed(why error, _ bool) {
	s := n.s
	s.mu.Lock()
	over := n.over
	n.over = true
	lost := n.asked
	n.asked = make(map[string]*sharedRequest)
	was := s.current == n
	if was {
		s.current = nil
	}
	s.mu.Unlock()
	if over {
		return
	}
	s.log.Warn("shared server ended", "error", why, "calls", len(lost))
	for _, rq := range lost {
		if rq.from == nil {
			close(rq.answer)
			continue
		}
		rq.from.fail(rq.call, rq.id, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%s: %v", protocol.TextOutcomeUnknown, why))
	}
	if was {
		s.wait.Go(func() { _ = n.conn.Close() }) // not here: it may wait for us
	}
}

// close ends the conversation with the server.
func (s *shared) close() {
	s.mu.Lock()
	s.closed = true
	now := s.current
	s.current = nil
	if now != nil {
		now.over = true
	}
	s.mu.Unlock()
	if now != nil {
		_ = now.conn.Close()
	}
	s.wait.Wait()
}

// A sharedConn is the conversation of one session with a shared server.
type sharedConn struct {
	s     *shared
	start backend.Start
	sink  backend.Sink
	done  chan struct{}  // closed by Close
	work  sync.WaitGroup // requests that wait for the server
}

// Deliver implements [backend.Conn].
func (c *sharedConn) Deliver(in backend.Inbound) error {
	switch {
	case in.Kind == jsonrpc.Request && in.Method == protocol.MethodPing:
		c.sink.Emit(in.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: in.ID, Result: []byte("{}"), Raw: jsonrpc.AppendResult(nil, in.ID, nil)})
		return nil
	case in.Kind == jsonrpc.Request && !isOffered(in.Method):
		c.fail(in.Call, in.ID, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "the server is shared by many clients: it has no %s", in.Method))
		return nil
	case in.Kind == jsonrpc.Request:
		c.s.mu.Lock()
		now := c.s.current
		c.s.mu.Unlock()
		if now != nil {
			if err := c.request(now, in); !errors.Is(err, errStopped) {
				return err
			}
		}
		c.work.Go(func() { // it waits for the server
			now, err := c.s.get(c)
			if err == nil {
				err = c.request(now, in)
			}
			if err != nil {
				c.fail(in.Call, in.ID, jsonrpc.Errorf(jsonrpc.CodeServer, "the server did not take the request: %v", err))
			}
		})
	case in.Method == protocol.MethodInitialized:
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if _, open := c.s.conns[c]; open {
			c.s.conns[c] = true
		}
	case in.Method == protocol.MethodCancelled:
		c.cancel(in)
	}
	return nil // roots, and responses to questions that are not passed on
}

// request makes a request of the session to the server.
func (c *sharedConn) request(now *sharing, in backend.Inbound) error {
	if in.Method == protocol.MethodInitialize {
		result := now.result
		if wants := jsonrpc.String(jsonrpc.Field(in.Params, "protocolVersion")); protocol.Known(wants) && wants < jsonrpc.String(jsonrpc.Field(result, "protocolVersion")) {
			result, _ = jsonrpc.Set(result, jsonrpc.Quote(wants), "protocolVersion")
		}
		c.sink.Emit(in.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: in.ID, Result: result, Raw: jsonrpc.AppendResult(nil, in.ID, result)})
		return nil
	}
	return now.send(in, &sharedRequest{from: c, call: in.Call, id: in.ID, method: in.Method})
}

// cancel passes a cancellation on, with the id that the server knows.
func (c *sharedConn) cancel(in backend.Inbound) {
	id := string(jsonrpc.Key(jsonrpc.Field(in.Params, "requestId")))
	c.s.mu.Lock()
	now := c.s.current
	known := ""
	if now != nil {
		for key, rq := range now.asked {
			if rq.from == c && string(jsonrpc.Key(rq.id)) == id {
				known = key
				delete(now.asked, key)
			}
		}
	}
	c.s.mu.Unlock()
	if known == "" {
		return
	}
	in.Params, _ = jsonrpc.Set(in.Params, json.RawMessage(known), "requestId")
	in.Raw = jsonrpc.AppendRequest(nil, nil, in.Method, in.Params)
	if err := now.conn.Deliver(in); err != nil {
		c.s.log.Debug("cancellation not delivered", "error", err)
	}
}

func (c *sharedConn) fail(call backend.Call, id []byte, e *jsonrpc.Error) {
	raw := jsonrpc.AppendError(nil, id, e)
	c.sink.Emit(call, jsonrpc.Message{Kind: jsonrpc.Response, ID: id, Error: jsonrpc.Field(raw, "error"), Raw: raw})
}

// Close implements [backend.Conn]. What the session has in flight is cancelled.
func (c *sharedConn) Close() error {
	c.s.mu.Lock()
	delete(c.s.conns, c)
	close(c.done)
	now := c.s.current
	var left []string
	if now != nil {
		for key, rq := range now.asked {
			if rq.from == c {
				delete(now.asked, key)
				left = append(left, key)
			}
		}
	}
	c.s.mu.Unlock()
	for _, key := range left {
		params := []byte(`{"requestId":` + key + `,"reason":"the session ended"}`)
		m := jsonrpc.Message{Kind: jsonrpc.Notification, Method: protocol.MethodCancelled, Params: params, Raw: jsonrpc.AppendRequest(nil, nil, protocol.MethodCancelled, params)}
		_ = now.conn.Deliver(backend.Inbound{Message: m, Context: context.Background()}) // it has ended
	}
	c.work.Wait()
	return nil
}

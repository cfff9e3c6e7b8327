package servers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"holdfast/backend"
	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/translate"
	"holdfast/jsonrpc"
)

// sharing is one opening of the server.
type sharing struct {
	s      *shared
	conn   backend.Conn // set when opened is closed; nil: it could not be opened
	opened chan struct{}
	budget budget.Account // of the session that the server was opened for; see Account

	// Guarded by s.mu; the first two are not changed once the server is open.
	result   []byte                    // of initialize
	revision string                    // that the result says
	asked    map[string]*sharedRequest // by the keys of their ids
	tokens   map[string]*sharedRequest // by the progress tokens that the server knows
	used     time.Time                 // when a message of a call was last passed on
	idle     *time.Timer               // ends the conversation; nil: it is not about to end
	over     bool
	why      error // why the server ended it; nil: it has not
}

// sharedRequest is a request that the server has not answered.
type sharedRequest struct {
	from   *sharedConn // nil: our own
	call   backend.Call
	id     []byte // the session's
	token  []byte // the session's, or nil
	ours   string // the token that the server knows, or ""
	method string
	answer chan jsonrpc.Message // of our own

	// Guarded by s.mu.
	sent   bool             // the server has it
	lost   bool             // the server ended while it was being sent
	gone   bool             // it was cancelled
	cancel *backend.Inbound // for the server, once it has the request
}

// open opens the server, and initializes it for clients of a revision.
func (s *shared) open(start backend.Start, sink backend.Sink, revision string) (*sharing, error) {
	ctx, cancel := context.WithTimeout(s.ctx, sharedOpen)
	defer cancel()
	now := &sharing{s: s, opened: make(chan struct{}), budget: budget.Of(sink), asked: make(map[string]*sharedRequest), tokens: make(map[string]*sharedRequest)}
	start.HTTP = (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: make(http.Header)}).WithContext(ctx)
	conn, err := s.inner.Open(ctx, start, now)
	now.conn = conn
	close(now.opened)
	if errors.Is(err, context.DeadlineExceeded) {
		err = &protocol.NoAnswer{Server: start.Server, Within: sharedOpen}
	}
	if err != nil {
		return nil, err
	}
	rq := &sharedRequest{method: protocol.MethodInitialize, answer: make(chan jsonrpc.Message, 1)}
	params := []byte(`{"protocolVersion":"` + revision + `","capabilities":{},"clientInfo":{"name":"holdfast","version":"1"}}`)
	err = now.send(backend.Inbound{Message: jsonrpc.Message{Kind: jsonrpc.Request, Method: rq.method, Params: params}, Context: context.Background()}, rq)
	if err != nil {
		return now, now.because(err)
	}
	select {
	case m, ok := <-rq.answer:
		switch {
		case !ok:
			return now, now.whyEnded()
		case m.Error != nil:
			return now, fmt.Errorf("initialize failed: %s", m.Error)
		}
		s.mu.Lock()
		now.result = offered(m.Result)
		now.revision = cmp.Or(jsonrpc.String(jsonrpc.Field(m.Result, "protocolVersion")), revision)
		s.mu.Unlock()
	case <-ctx.Done():
		if s.ctx.Err() == nil {
			return now, &protocol.NoAnswer{Server: start.Server, Method: rq.method, Within: sharedOpen}
		}
		return now, errStopped
	}
	note := protocol.MethodInitialized
	return now, conn.Deliver(backend.Inbound{
		Message: jsonrpc.Message{Kind: jsonrpc.Notification, Method: note, Raw: jsonrpc.AppendRequest(nil, nil, note, nil)}, Context: context.Background(),
	})
}

// offered returns the result of initialize without the capabilities that are not offered.
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

// send makes a request to the server, under an id of ours. A request that was cancelled is not
// made.
func (n *sharing) send(in backend.Inbound, rq *sharedRequest) error {
	rq.token = protocol.ProgressToken(in.Params)
	if rq.token != nil {
		rq.ours = string(translate.NewToken())
	}
	n.s.mu.Lock()
	switch {
	case rq.gone:
		n.s.mu.Unlock()
		return nil
	case n.over:
		n.s.mu.Unlock()
		return errStopped
	}
	n.s.last++
	id := strconv.AppendUint(nil, n.s.last, 10)
	n.asked[string(id)] = rq
	if rq.ours != "" {
		n.tokens[rq.ours] = rq
	}
	if rq.from != nil {
		delete(rq.from.waiting, rq)
	}
	n.used = time.Now()
	n.s.mu.Unlock()
	in.ID = id
	if rq.token != nil {
		in.Params, _ = jsonrpc.Set(in.Params, []byte(rq.ours), "_meta", "progressToken")
	}
	in.Raw = jsonrpc.AppendRequest(nil, id, in.Method, in.Params)
	err := n.conn.Deliver(in)
	n.s.mu.Lock()
	waits := n.asked[string(id)] == rq
	if rq.sent = err == nil; !rq.sent {
		n.forget(string(id))
	}
	cancel, lost, why := rq.cancel, rq.lost, n.why
	n.s.mu.Unlock()
	switch {
	case err != nil && !waits && !lost:
		return nil // it was answered, or cancelled
	case err != nil:
		return err
	case lost:
		rq.end(why)
	case cancel != nil:
		n.tell(*cancel)
	}
	return nil
}

// end answers a request of a session that the server has, and will not answer.
func (rq *sharedRequest) end(why error) {
	rq.from.fail(rq.call, rq.id, jsonrpc.Errorf(protocol.CodeOutcomeUnknown, "%s: %v", protocol.TextOutcomeUnknown, why))
}

// tell passes a cancellation on.
func (n *sharing) tell(in backend.Inbound) {
	if err := n.conn.Deliver(in); err != nil {
		n.s.log.Debug("cancellation not delivered", "error", err)
	}
}

// take returns a request in flight, and forgets it.
func (n *sharing) take(id []byte) *sharedRequest {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	n.used = time.Now()
	return n.forget(string(jsonrpc.Key(id)))
}

// forget removes a request from the tables, and returns it; nil: there is none. n.s.mu is held.
func (n *sharing) forget(key string) *sharedRequest {
	rq := n.asked[key]
	if rq != nil {
		delete(n.asked, key)
		delete(n.tokens, rq.ours)
	}
	return rq
}

// Account implements [budget.Accounted]: messages of the server belong to no session in particular.
func (n *sharing) Account() budget.Account { return forAll{n.budget} }

// forAll counts messages that are read for several sessions.
type forAll struct{ of budget.Account }

// Hold implements [budget.Account]: the server's conversation is kept for no session in particular.
func (forAll) Hold(int64) error { return nil }

// Arrive implements [budget.Account].
func (a forAll) Arrive(done <-chan struct{}) *budget.Arrival { return a.of.Arrive(done).Unnamed() }

// Emit implements [backend.Sink].
func (n *sharing) Emit(_ backend.Call, m jsonrpc.Message) { n.receive(m) }

// EmitUnrelated implements [backend.Sink].
func (n *sharing) EmitUnrelated(m jsonrpc.Message) { n.receive(m) }

// receive takes a message of the server.
func (n *sharing) receive(m jsonrpc.Message) {
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
		n.s.mu.Lock()
		if !n.s.closed {
			n.s.wait.Go(func() { n.refuse(m) })
		}
		n.s.mu.Unlock()
	case m.Method == protocol.MethodProgress:
		n.s.mu.Lock()
		rq := n.tokens[string(jsonrpc.Key(jsonrpc.Field(m.Params, "progressToken")))]
		n.s.mu.Unlock()
		if rq == nil || protocol.CheckClear(&m) != nil { // a client could read another token than ours in it
			return
		}
		m.Params, _ = jsonrpc.Set(m.Params, rq.token, "progressToken")
		m.Raw = jsonrpc.AppendRequest(nil, nil, m.Method, m.Params)
		rq.from.sink.Emit(rq.call, m)
	case strings.HasSuffix(m.Method, "/list_changed"): // all else may be about one session
		n.s.mu.Lock()
		var all []*sharedConn
		for c, ready := range n.s.conns {
			if ready && n.s.spoken(c.revision) == n.revision { // others hear it from their own
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
	n.over, n.why = true, why
	lost := n.asked
	for key, rq := range lost {
		if rq.from != nil && !rq.sent { // [sharing.send] finds out whether the server has it
			rq.lost = true
			delete(lost, key)
		}
	}
	n.asked, n.tokens = make(map[string]*sharedRequest), make(map[string]*sharedRequest)
	was := s.current[n.revision] == n
	if was {
		delete(s.current, n.revision)
		s.wait.Add(1) // while s is open: current is empty once it is closed
	}
	s.mu.Unlock()
	if over {
		return
	}
	level := slog.LevelWarn
	if protocol.Logged(why) {
		level = slog.LevelDebug
	}
	s.log.Log(context.Background(), level, "shared server ended", "error", why, "calls", len(lost))
	for _, rq := range lost {
		if rq.from == nil {
			close(rq.answer)
			continue
		}
		rq.end(why)
	}
	if was {
		go func() { // not here: it may wait for us
			defer s.wait.Done()
			_ = n.conn.Close()
		}()
	}
}

// because returns why the server ended the conversation by itself, if err says only that it has ended, else err.
func (n *sharing) because(err error) error {
	if !errors.Is(err, errStopped) {
		return err
	}
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	return cmp.Or(n.why, err)
}

// whyEnded returns why the server ended the conversation.
func (n *sharing) whyEnded() error {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	return cmp.Or(n.why, errors.New("the server ended"))
}

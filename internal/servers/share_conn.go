package servers

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A sharedConn is the conversation of one session with a shared server.
type sharedConn struct {
	s     *shared
	start backend.Start
	sink  backend.Sink
	done  chan struct{}           // closed by Close
	now   atomic.Pointer[sharing] // the conversation of the last request; nil at first
	work  sync.WaitGroup          // requests that wait for the server

	// Guarded by s.mu.
	revision string                      // that the client asks for
	waiting  map[*sharedRequest]struct{} // for the server to be opened
}

// Deliver implements [backend.Conn].
func (c *sharedConn) Deliver(in backend.Inbound) error {
	switch {
	case in.Kind == jsonrpc.Request && in.Method == protocol.MethodPing:
		c.sink.Emit(in.Call, jsonrpc.Message{Kind: jsonrpc.Response, ID: in.ID, Result: []byte("{}"), Raw: jsonrpc.AppendResult(nil, in.ID, nil)})
	case in.Kind == jsonrpc.Request && !isOffered(in.Method):
		c.fail(in.Call, in.ID, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "the server is shared by many clients: it has no %s", in.Method))
	case in.Kind == jsonrpc.Request:
		return c.ask(in)
	case in.Kind == jsonrpc.Response: // to a question that is not passed on
	case in.Method == protocol.MethodInitialized:
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if _, open := c.s.conns[c]; open {
			c.s.conns[c] = true
		}
	case in.Method == protocol.MethodCancelled:
		c.cancel(in)
	}
	return nil // other notifications are of roots, and dropped
}

// ask makes a request of the session. It waits for nothing: if the server is not open, the
// request is made when it is.
func (c *sharedConn) ask(in backend.Inbound) error {
	rq := &sharedRequest{from: c, call: in.Call, id: in.ID, method: in.Method}
	if now := c.now.Load(); now != nil && in.Method != protocol.MethodInitialize {
		if err := now.send(in, rq); !errors.Is(err, errStopped) {
			return err
		}
	}
	c.s.mu.Lock()
	if in.Method == protocol.MethodInitialize {
		if wants := jsonrpc.String(jsonrpc.Field(in.Params, "protocolVersion")); protocol.Known(wants) {
			c.s.users[c.revision]--
			c.revision = wants
			c.s.users[wants]++
			c.s.rest()
		}
	}
	c.waiting[rq] = struct{}{}
	c.s.mu.Unlock()
	c.work.Go(func() {
		now, err := c.s.get(c)
		switch {
		case err != nil:
		case in.Method == protocol.MethodInitialize:
			c.initialize(now, rq)
		default:
			err = now.because(now.send(in, rq))
		}
		if err != nil && !c.isGone(rq) {
			if of, ok := in.Call.(notTaken); ok {
				of.NotTaken()
			}
			c.fail(in.Call, in.ID, jsonrpc.Errorf(jsonrpc.CodeServer, "the server did not take the request: %v", err))
		}
	})
	return nil
}

// initialize answers a session's initialize with the server's result.
func (c *sharedConn) initialize(now *sharing, rq *sharedRequest) {
	if !c.isGone(rq) {
		c.sink.Emit(rq.call, jsonrpc.Message{Kind: jsonrpc.Response, ID: rq.id, Result: now.result, Raw: jsonrpc.AppendResult(nil, rq.id, now.result)})
	}
}

// A notTaken is a [backend.Call] that can be told that no server has its request: its client may make it again under the same idempotency key.
type notTaken interface{ NotTaken() }

// isGone reports whether a request that has waited was cancelled. It takes the request out of waiting.
func (c *sharedConn) isGone(rq *sharedRequest) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	delete(c.waiting, rq)
	return rq.gone
}

// cancel passes a cancellation on, with the id that the server knows.
func (c *sharedConn) cancel(in backend.Inbound) {
	id := string(jsonrpc.Key(jsonrpc.Field(in.Params, "requestId")))
	c.withdraw(func(rq *sharedRequest) bool { return string(jsonrpc.Key(rq.id)) == id }, func(known string) backend.Inbound {
		in := in
		in.Params, _ = jsonrpc.Set(in.Params, json.RawMessage(known), "requestId")
		in.Raw = jsonrpc.AppendRequest(nil, nil, in.Method, in.Params)
		return in
	})
}

// withdraw cancels requests of the session. note makes the cancellation of the request that the
// server knows by an id.
func (c *sharedConn) withdraw(which func(*sharedRequest) bool, note func(id string) backend.Inbound) {
	var notes []backend.Inbound
	c.s.mu.Lock()
	for rq := range c.waiting {
		if which(rq) {
			rq.gone = true // it is not made
		}
	}
	now := c.now.Load()
	if now != nil {
		for key, rq := range now.asked {
			if rq.from != c || !which(rq) {
				continue
			}
			now.forget(key)
			in := note(key)
			if rq.gone = true; rq.sent {
				notes = append(notes, in)
			} else {
				rq.cancel = &in // the server must hear of the request first
			}
		}
	}
	c.s.mu.Unlock()
	for _, in := range notes {
		now.tell(in)
	}
}

func (c *sharedConn) fail(call backend.Call, id []byte, e *jsonrpc.Error) {
	raw := jsonrpc.AppendError(nil, id, e)
	c.sink.Emit(call, jsonrpc.Message{Kind: jsonrpc.Response, ID: id, Error: jsonrpc.Field(raw, "error"), Raw: raw})
}

// Close implements [backend.Conn]. The session's requests in flight are cancelled.
func (c *sharedConn) Close() error {
	c.withdraw(func(*sharedRequest) bool { return true }, func(known string) backend.Inbound {
		params := []byte(`{"requestId":` + known + `,"reason":"the session ended"}`)
		m := jsonrpc.Message{Kind: jsonrpc.Notification, Method: protocol.MethodCancelled, Params: params, Raw: jsonrpc.AppendRequest(nil, nil, protocol.MethodCancelled, params)}
		return backend.Inbound{Message: m, Context: context.Background()}
	})
	close(c.done)
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.users[c.revision]--
	c.s.rest()
	c.s.mu.Unlock()
	c.work.Wait()
	return nil
}

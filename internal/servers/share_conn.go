package servers

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

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

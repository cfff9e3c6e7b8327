package client

import (
	"context"
	"crypto/rand"
	"errors"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// request makes a request of our own, and returns its response.
func (c *Conn) request(ctx context.Context, method string, params []byte) (jsonrpc.Message, error) {
	id := c.newID()
	k := newCall(c, request{id: id, method: method, body: jsonrpc.AppendRequest(nil, id, method, params)})
	k.origin.failFast = method == protocol.MethodStatus
	return c.await(ctx, k)
}

// await runs a call, and returns its response instead of delivering it to the host.
func (c *Conn) await(ctx context.Context, k *call) (jsonrpc.Message, error) {
	response := make(chan jsonrpc.Message, 1)
	k.origin.response = response
	if err := c.register(k); err != nil {
		return jsonrpc.Message{}, err
	}
	if !c.start(k) {
		c.unregister(k)
		return jsonrpc.Message{}, ErrClosed
	}
	select {
	case m := <-response:
		return m, nil
	case <-ctx.Done():
		cause := context.Cause(ctx)
		if errors.Is(cause, ErrCancelled) {
			m := jsonrpc.Message{Method: protocol.MethodCancelled}
			m.Raw = jsonrpc.AppendRequest(nil, nil, m.Method, append(append([]byte(`{"requestId":`), k.id...), '}'))
			c.cancelCall(k, m)
		} else {
			k.cancel(cause)
		}
		return jsonrpc.Message{}, cause
	case <-c.ctx.Done():
		return jsonrpc.Message{}, ErrClosed
	}
}

// newID returns an id for a request of our own, which no host uses.
func (c *Conn) newID() []byte { return c.ids.Next() }

// newKey returns an idempotency key: 130 random bits.
func newKey() string { return rand.Text() }

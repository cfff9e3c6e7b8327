package client

import (
	"bytes"
	"context"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// notify sends a notification of the host.
func (c *Conn) notify(ctx context.Context, m jsonrpc.Message) error {
	switch m.Method {
	case protocol.MethodInitialized:
		c.mu.Lock()
		c.opening.ready = true
		c.mu.Unlock()
		err := c.tell(sentWith(joined(ctx, c.ctx), ctx), nil, m.Raw, c.opts.ConnectTimeout)
		if err != nil {
			c.logger.Warn("notifications/initialized not delivered", "error", err)
		}
		c.changed()
		c.listen()
		return nil
	case protocol.MethodCancelled:
		c.cancelled(m)
		return nil
	}
	start := c.out.put(func() {
		if err := c.tell(sentWith(c.ctx, ctx), nil, m.Raw, c.opts.GiveUp); err != nil && c.ctx.Err() == nil {
			c.logger.Warn("notification not delivered", "method", m.Method, "error", err)
		}
	})
	if start && !c.spawn(c.out.run) {
		c.out.drop() // or Close, which has begun, would wait for it
		return ErrClosed
	}
	return nil
}

// joined returns a context that ends with ctx or with other.
func joined(ctx, other context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx
}

// cancelWait bounds how long a cancellation waits until the server has the request: before
// that the cancellation means nothing to the server.
const cancelWait = 2 * time.Second

// cancelled handles notifications/cancelled of the host.
func (c *Conn) cancelled(m jsonrpc.Message) {
	if k := c.calls.of(jsonrpc.Field(m.Params, "requestId")); k != nil { // else it has its response
		c.cancelCall(k, m)
	}
}

// cancelCall ends a call, and sends the cancellation m to the server. The call stays
// registered until the server has the cancellation, or the Conn ends.
func (c *Conn) cancelCall(k *call, m jsonrpc.Message) {
	if !k.happened(eventCancelled) {
		return // it has its response, or was cancelled before
	}
	c.calls.givenUp.Store(true)
	c.requests.forgetCall(k)
	c.cancelling.add(1)
	ok := c.spawn(func() {
		defer c.cancelling.add(-1)
		defer c.unregister(k)
		defer k.cancel(ErrCancelled)
		if k.isModern() {
			if t := k.asTask(); t != nil {
				t.cancel()
			}
			k.cancelModern()
			return
		}
		t := time.NewTimer(cancelWait)
		defer t.Stop()
		select {
		case <-k.reached:
		case <-t.C:
		case <-c.ctx.Done():
			return
		}
		ctx, stop := context.WithTimeout(c.ctx, c.opts.ConnectTimeout)
		defer stop()
		if raw := k.cancellation(m); raw != nil {
			if err := c.tell(ctx, k, raw, c.opts.ConnectTimeout); err != nil {
				c.logger.Debug("cancellation not delivered", "error", err)
			}
		}
	})
	if !ok {
		k.cancel(ErrCancelled)
		c.unregister(k)
		c.cancelling.add(-1)
	}
}

// cancellation returns m under the id by which the server knows the call. It returns nil if
// no cancellation can be sent: the id alone would name another call.
func (k *call) cancellation(m jsonrpc.Message) []byte {
	shared := k.c.transport().shared()
	k.mu.Lock()
	defer k.mu.Unlock()
	elsewhere := k.origin.otherSession && shared
	switch {
	case elsewhere && k.ways.token == "":
		return nil
	case bytes.Equal(k.nameAtServer(), k.id) && k.session.id != "" && !elsewhere:
		return m.Raw
	}
	params := append([]byte(`{"requestId":`), k.nameAtServer()...)
	if k.ways.token != "" {
		params = append(params, `,"_meta":`...)
		params = append(params, jsonrpc.Object(protocol.MetaResumeToken, k.ways.token)...)
	}
	return jsonrpc.AppendRequest(nil, nil, m.Method, append(params, '}'))
}

// tell sends a message that has no response, until the server has it or was out of reach
// for atMost. k is the call that the message belongs to, or nil.
func (c *Conn) tell(ctx context.Context, k *call, raw []byte, atMost time.Duration) error {
	return c.transport().send(ctx, k, raw, atMost)
}

package client

import (
	"bytes"
	"context"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// notify takes a notification of the host.
func (c *Conn) notify(ctx context.Context, m jsonrpc.Message) error {
	switch m.Method {
	case protocol.MethodInitialized:
		c.mu.Lock()
		c.opening.ready = true
		c.mu.Unlock()
		err := c.tell(joined(ctx, c.ctx), nil, m.Raw, c.opts.ConnectTimeout)
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
		if err := c.tell(c.ctx, nil, m.Raw, c.opts.GiveUp); err != nil && c.ctx.Err() == nil {
			c.logger.Warn("notification not delivered", "method", m.Method, "error", err)
		}
	})
	if start && !c.spawn(c.out.run) {
		return ErrClosed
	}
	return nil
}

// joined returns a context that ends with either.
func joined(ctx, other context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx
}

// cancelWait bounds how long the word that a request is cancelled waits for the
// request to arrive: it means nothing to a server that does not know it yet.
const cancelWait = 2 * time.Second

// cancelled ends a request that the host does not want answered any more.
func (c *Conn) cancelled(m jsonrpc.Message) {
	id := jsonrpc.Field(m.Params, "requestId")
	c.mu.Lock()
	k := c.calls[string(jsonrpc.Key(id))]
	c.mu.Unlock()
	if k == nil {
		return // it has its answer
	}
	c.giveUp(k, m)
}

// giveUp ends a call that nobody wants answered any more; m says so to the server. The
// call is on record until that was said, or the Conn ends.
func (c *Conn) giveUp(k *call, m jsonrpc.Message) {
	if !k.happened(eventCancelled) {
		return // it has its answer, or this was said before
	}
	c.mu.Lock()
	c.asks.forgetCall(k)
	c.mu.Unlock()
	c.countCancelling(1)
	ok := c.spawn(func() {
		defer c.countCancelling(-1)
		defer c.leave(k)
		defer k.cancel(ErrCancelled)
		t := time.NewTimer(cancelWait)
		defer t.Stop()
		select {
		case <-k.posted:
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
		c.leave(k)
		c.countCancelling(-1)
	}
}

// cancellation is what the server is told, under the id by which it knows the
// call: nil if that is nothing, because the end of the connection says it.
func (k *call) cancellation(m jsonrpc.Message) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.session.revision >= protocol.V20260728 {
		return nil
	}
	if k.origin.foreign && k.c.transport().shared() && k.ways.token == "" {
		return nil // here the id alone would be that of another
	}
	if bytes.Equal(k.wire, k.id) && k.session.id != "" && (!k.origin.foreign || !k.c.transport().shared()) {
		return m.Raw
	}
	params := append([]byte(`{"requestId":`), k.wire...)
	if k.ways.token != "" {
		params = append(params, `,"_meta":`...)
		params = append(params, jsonrpc.Object(protocol.MetaResumeToken, k.ways.token)...)
	}
	return jsonrpc.AppendRequest(nil, nil, m.Method, append(params, '}'))
}

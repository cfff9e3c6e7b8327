package client

import (
	"context"
	"errors"

	"holdfast/jsonrpc"
)

// single says whether one line carries everything.
func (c *Conn) single() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.line != nil || c.opts.Transport >= SSE
}

// fallsBack says whether a status is one that an HTTP+SSE server answers a POST
// with (2025-11-25, Transports, "Backwards Compatibility").
func (c *Conn) fallsBack(status int) bool {
	return c.opts.Transport == Auto && (status == 400 || status == 404 || status == 405)
}

func (c *Conn) fallBack(*call, *refusal) error { return errors.New("not built yet") }

func (c *Conn) overLine(*call) error { return errors.New("not built yet") }

func (c *Conn) overLineTell(context.Context, jsonrpc.Message) error {
	return errors.New("not built yet")
}

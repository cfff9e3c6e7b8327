package client

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// A connState is how far a [Conn] has come:
//
//	state        event              next
//	connOpen     Close or Detach    connClosing
//	connClosing  all work has ended connClosed
type connState uint8

const (
	connOpen    connState = iota // calls and other work may begin
	connClosing                  // no new work begins; waiting notifications and cancellations are sent
	connClosed                   // no work is left
)

// closeTimeout bounds how long the end of a session may take.
const closeTimeout = 5 * time.Second

// Close ends the session: it sends the notifications and cancellations that wait, and
// deletes the session at the server (2025-11-25, Transports, "Session Management"). Calls in
// flight end without a response. It waits for the server for at most five seconds. Its error
// says why the session may not have ended at the server; a second Close returns nil.
func (c *Conn) Close() error {
	if !c.end() {
		return nil
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(c.ctx), closeTimeout)
	defer stop()
	c.out.wait(ctx)
	c.cancelling.wait(ctx) // a call of another session does not end with this one
	err := c.delete(ctx)
	c.finish()
	return err
}

// Detach ends the Conn without ending the session: another Conn can continue it and its calls from
// [Conn.State]. Calls that the host has cancelled are cancelled at the server first, for which it
// waits at most five seconds: a call goes on if its cancellation has not reached the server by then.
func (c *Conn) Detach() {
	if !c.end() {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(c.ctx), closeTimeout)
	defer stop()
	c.cancelling.wait(ctx)
	c.finish()
}

// end moves the Conn from connOpen to connClosing. It reports whether it was the first to do so.
func (c *Conn) end() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != connOpen {
		return false
	}
	c.state = connClosing
	return true
}

// finish ends all work of the Conn, and waits for its end.
func (c *Conn) finish() {
	c.stop()
	c.work.Wait()
	c.remote.outage.Close()
	if c.remote.own != nil {
		c.remote.own.CloseIdleConnections()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = connClosed
}

// delete ends the session on the server (2025-11-25, Transports, "Session Management"). It returns
// nil if the server does not have the session any more, or does not let clients end sessions.
func (c *Conn) delete(ctx context.Context) error {
	s := c.current()
	if s.id == "" || s.state == sessionLost {
		return nil
	}
	x := exchange{method: http.MethodDelete, session: &s, wait: closeTimeout / 2}
	resp, err := c.remote.do(ctx, x)
	if err != nil {
		resp, err = c.remote.do(ctx, x) // the connection may have been at fault
	}
	if err != nil {
		return fmt.Errorf("end of session: %w", err)
	}
	resp.Close()
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return nil
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("end of session: %s", resp.Status)
	}
	return nil
}

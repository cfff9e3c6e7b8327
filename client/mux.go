package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A mux is the transport that carries all messages of a session over one connection,
// which is opened again when it ends: an HTTP+SSE pair or a WebSocket.
type mux struct {
	c       *Conn
	conn    muxConn
	backoff backoff
	seen    eventIDs // of the standalone stream
	// names are the names of calls' streams: a late event of a call that has ended does not
	// belong to the standalone stream.
	names eventIDs

	mu      sync.Mutex
	state   muxState
	session muxSession
	number  int           // of the newest connection; 0: there was none
	err     error         // why there will be no connection
	ended   chan struct{} // closed when the newest connection has ended
	changed chan struct{} // closed at the next change of state
	waiting int           // how many callers wait for a connection
	replies replies
}

// A muxSession is the state of a [mux]'s session.
type muxSession struct {
	begun    bool // the server has the session
	renewing bool // it is being begun in the place of one that has ended
	born     int  // the connection that began it; 0: another Conn's did
}

// opened notes that a connection was opened. resumed says that it continues the session, and
// ended that the session has ended and must be begun anew. It reports whether to start a renewal.
func (s *muxSession) opened(number int, resumed, ended bool) (renew bool) {
	s.begun = !ended && (s.begun || number == 1)
	if !resumed {
		s.born = number
	}
	renew = ended && !s.renewing
	s.renewing = s.renewing || renew
	return renew
}

// renewed notes that a renewal has ended.
func (s *muxSession) renewed(begun bool) { s.renewing, s.begun = false, begun }

// A muxConn is the connection of a [mux].
type muxConn interface {
	// open connects, and waits for the server's answer for up to within. It reports whether the
	// server continues the old session, or else returns the id of the new one, if that has an id.
	open(ctx context.Context, within time.Duration) (id string, resumed bool, err error)
	// read passes on the messages that come, until the connection ends.
	read(take func(jsonrpc.Message)) error
	// write sends a message. A [refusal] says that the server did not take it.
	write(ctx context.Context, raw []byte) error
	// resumes reports whether a call can be resumed over another connection.
	resumes() bool
	// confirm returns when the server has all messages that were written.
	confirm(ctx context.Context) error
	// close ends the connection.
	close()
}

// muxed reports whether one connection carries all messages. c.mu is held.
func (c *Conn) muxed() bool {
	// A State with an endpoint is one of a Conn that fell back.
	fell := c.opts.Transport == Auto && c.opts.State != nil && c.opts.State.Endpoint != ""
	return c.mux != nil || c.opts.Transport >= SSE || fell
}

// transport returns the transport of messages. A mux starts with its first use.
func (c *Conn) transport() transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.muxed():
		return exchanges{c}
	case c.mux != nil && !c.mux.failed():
	case c.opts.Transport == WebSocket:
		c.mux = newMux(c, newWebSocket(c))
	default:
		c.mux = newMux(c, newSSEPair(c))
	}
	return c.mux
}

// fallsBack reports whether to try HTTP+SSE: the transport is Auto, and an HTTP+SSE server
// answers a POST with this status (2025-11-25, Transports, "Backwards Compatibility").
func (c *Conn) fallsBack(status int) bool {
	return c.opts.Transport == Auto && (status == 400 || status == 404 || status == 405)
}

// fallBack makes an initialize go over HTTP+SSE, after Streamable HTTP was refused.
func (c *Conn) fallBack(k *call, no *refusal) error {
	c.mu.Lock()
	p := newSSEPair(c)
	c.mu.Unlock()
	_, _, err := p.open(c.ctx, c.remote.opensWithin())
	var not *refusal
	switch {
	case errors.As(err, &not) && !not.passes():
		return no // the first reason is the better one
	case err != nil:
		return fmt.Errorf("HTTP+SSE: %v", c.remote.secrets.Error(err)) //nolint:errorlint // it is tried again, whatever it was
	}
	p.opened = true
	c.mu.Lock()
	first := c.mux == nil
	if first {
		c.mux = newMux(c, p)
	}
	x := c.mux
	c.mu.Unlock()
	k.setTransport(x)
	if !first {
		p.close()
	}
	return errNext
}

// newMux starts a mux. c.mu is held.
func newMux(c *Conn, conn muxConn) *mux {
	x := &mux{c: c, conn: conn, changed: make(chan struct{}), replies: replies{unconfirmed: make(map[string]*reply)}}
	x.backoff.idle, x.backoff.nudge = x.idle, make(chan struct{}, 1)
	x.session.begun = c.session.revision == "" || c.session.id != "" || c.standalone.endpoint != ""
	if c.state == connOpen {
		c.work.Go(x.run)
	}
	return x
}

// failed reports whether there will be no connection any more.
func (x *mux) failed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.state == muxFailed
}

// wait waits until messages can be sent. opening says that the message is one that begins a
// session. It returns the number of the connection.
func (x *mux) wait(ctx context.Context, opening bool) (int, error) {
	x.waits(1)
	defer x.waits(-1)
	for {
		x.mu.Lock()
		state, number, err, changed := x.state, x.number, x.err, x.changed
		x.mu.Unlock()
		switch {
		case state == muxFailed:
			return 0, err
		case state == muxOpen, state == muxOpening && opening:
			return number, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// waits counts n more callers that wait for the connection, or fewer.
func (x *mux) waits(n int) {
	x.mu.Lock()
	x.waiting += n
	x.mu.Unlock()
	x.backoff.hurry()
}

// idle reports whether no caller waits for the connection, and no call is in flight.
func (x *mux) idle() bool {
	x.mu.Lock()
	waiting := x.waiting
	x.mu.Unlock()
	return waiting == 0 && x.c.calls.count() == 0
}

// up reports whether the connection of a number is open. x.mu is held.
func (x *mux) up(number int) bool {
	return x.number == number && x.state.connected()
}

// gone returns a channel that is closed when the connection of a number has ended.
func (x *mux) gone(number int) <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.up(number) {
		return x.ended
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}

// run keeps the connection open.
func (x *mux) run() {
	for {
		err := x.connect()
		if x.c.ctx.Err() != nil || x.failed() {
			return
		}
		if err = x.pause(err); err != nil {
			x.giveUp(err)
			return
		}
	}
}

// connect opens the connection, and reads it to its end. An error says why it could not
// be opened.
func (x *mux) connect() error {
	c := x.c
	within := c.remote.opensWithin()
	if x.number > 0 {
		within = x.backoff.bound(c.opts.ConnectTimeout)
	}
	id, resumed, err := x.conn.open(c.ctx, within)
	if err != nil {
		return err
	}
	x.backoff.reached()
	x.c.remote.outage.Reached()
	x.opened(id, resumed)
	if x.failed() { // while it was opened
		x.conn.close()
		return nil
	}
	err = x.conn.read(x.receive)
	x.conn.close()
	x.mu.Lock()
	x.transition(muxDisconnected)
	x.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil
	}
	c.logger.Debug("connection ended", "error", err)
	if big, ok := errors.AsType[*oversize](err); ok {
		x.refused(big.raw)
	}
	return nil
}

// pause waits before the next connection. err is why the last one could not be opened. An
// error says why there will be no other.
func (x *mux) pause(err error) error {
	var no *refusal
	first := x.number == 0
	switch {
	case panicked(err):
		return err
	case errors.As(err, &no):
		if !no.passes() && (first || !no.keepsSession()) {
			return no
		}
		x.backoff.atLeast = no.after
	}
	if first {
		return x.backoff.waitBriefly(x.c.ctx, x.c, err)
	}
	return x.backoff.wait(x.c.ctx, x.c, err)
}

// keepsSession reports whether the session is likely to be there still, though the server refuses the connection now.
func (e *refusal) keepsSession() bool {
	return e.auth || e.status == http.StatusUnauthorized || e.status == http.StatusConflict
}

// opened notes that there is a connection. Calls in flight continue by themselves, in [call.run].
func (x *mux) opened(id string, resumed bool) {
	c := x.c
	c.mu.Lock()
	if !resumed {
		x.seen, x.names = eventIDs{}, eventIDs{} // ids may begin anew
	}
	lost := !resumed && c.opening.request != nil && c.session.revision != ""
	ended := lost || !resumed && c.session.state == sessionLost
	session := c.session
	c.mu.Unlock()
	if lost {
		c.loseSession(session)
	}
	if !resumed {
		c.named(id)
	}
	x.mu.Lock()
	x.number++
	number := x.number
	renew := x.session.opened(number, resumed, ended)
	if !resumed {
		x.replies.loseSession()
	}
	x.transition(muxConnected)
	x.mu.Unlock()
	if renew {
		c.spawn(x.renew)
	}
	if resumed && x.conn.resumes() {
		// The connection is read meanwhile: a server may read no more before it has written.
		c.spawn(func() { x.repeatReplies(number) })
	}
}

// renew begins a session in the place of one that the server has ended.
func (x *mux) renew() {
	err := x.c.beginAgain()
	if err != nil && x.c.ctx.Err() == nil {
		x.giveUp(fmt.Errorf("the server has ended the session, and did not begin another: %w", err))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.session.renewed(err == nil); err == nil {
		x.transition(muxSessionBegun)
	}
}

// giveUp ends the mux: every call that waits for it fails.
func (x *mux) giveUp(err error) {
	x.mu.Lock()
	first := x.state != muxFailed
	if first {
		x.err = final("%w", err)
		x.transition(muxGaveUp)
	}
	x.mu.Unlock()
	if first {
		x.conn.close() // which ends run
	}
}

// refused fails a message that was too large for the server, which would not take it a
// second time either.
func (x *mux) refused(raw []byte) {
	c := x.c
	m, err := jsonrpc.Parse(raw)
	why := &oversize{raw}
	c.logger.Warn("message not taken", "method", m.Method, "error", why)
	if err != nil {
		return
	}
	switch m.Kind {
	case jsonrpc.Request:
		if k := c.calls.find(m.ID); k != nil {
			k.fail(unknownIf(m.Method == protocol.MethodResume, why))
			k.cancel(nil)
		}
	case jsonrpc.Response:
		// The server gets an error for its request, instead of waiting for the reply.
		x.mu.Lock()
		defer x.mu.Unlock()
		if r := x.replies.unconfirmed[string(jsonrpc.Key(m.ID))]; r != nil {
			r.raw = jsonrpc.AppendError(nil, m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", why))
		}
	}
}

// Errors of writing to a mux that say that the server certainly does not have the message.
var (
	errStale  = errors.New("the connection has ended")
	errUnsent = errors.New("not sent")
)

// write sends a message over the connection of a number.
func (x *mux) write(ctx context.Context, number int, raw []byte) error {
	x.mu.Lock()
	up := x.up(number)
	x.mu.Unlock()
	if !up {
		return errStale
	}
	return x.conn.write(ctx, raw)
}

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

// A line carries all messages of a session over one connection, which is opened
// again when it ends: an HTTP+SSE pair or a WebSocket.
type line struct {
	c    *Conn
	wire wire
	pace pace
	seen seen // of the standalone stream
	// names are of the streams of calls: what comes late of a call that is over is
	// none of the standalone stream's.
	names seen

	mu      sync.Mutex
	up      int           // which connection is open; 0: none
	opens   int           // how many have been
	fit     bool          // the session is begun
	born    int           // which connection was the first of the session; 0: of another Conn
	begins  bool          // it is being begun anew
	err     error         // why there will be none
	changed chan struct{} // closed at the next change
	waiting int           // how many wait for it to be open
	// on says over which connection each call was sent last, or is about to be.
	on      map[*call]int
	answers answers
}

// A wire is what a line is made of.
type wire interface {
	// open connects. It says whether the session is the one of before, or else what
	// its id is, if it has one. The server may take so long to answer.
	open(ctx context.Context, within time.Duration) (id string, resumed bool, err error)
	// read gives out messages until the connection ends.
	read(take func(jsonrpc.Message)) error
	// write sends a message. A [refusal] says that it was not taken.
	write(ctx context.Context, raw []byte) error
	// resumes says whether calls can be gone on with over another connection.
	resumes() bool
	// confirm returns when the server has all that was written.
	confirm(ctx context.Context) error
	// close ends the connection.
	close()
}

// single says whether one line carries everything.
func (c *Conn) single() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A State with an endpoint is of one that fell back.
	fell := c.opts.Transport == Auto && c.opts.State != nil && c.opts.State.Endpoint != ""
	return c.line != nil || c.opts.Transport >= SSE || fell
}

// keeps says whether a session that was there is likely to be there still, though
// the server does not let us to it now.
func (e *refusal) keeps() bool {
	return e.auth || e.status == http.StatusUnauthorized || e.status == http.StatusConflict
}

// fallsBack says whether a status is one that an HTTP+SSE server answers a POST
// with (2025-11-25, Transports, "Backwards Compatibility").
func (c *Conn) fallsBack(status int) bool {
	return c.opts.Transport == Auto && (status == 400 || status == 404 || status == 405)
}

// fallBack makes an initialize over HTTP+SSE, after Streamable HTTP was refused.
func (c *Conn) fallBack(k *call, no *refusal) error {
	c.mu.Lock()
	w := newPair(c)
	c.mu.Unlock()
	_, _, err := w.open(c.ctx, c.opts.ConnectTimeout)
	var not *refusal
	switch {
	case errors.As(err, &not) && !not.passes():
		return no // the first reason is the better one
	case err != nil:
		return k.pace.waitBriefly(k.ctx, c, err)
	}
	w.opened = true
	c.mu.Lock()
	first := c.line == nil
	if first {
		c.line = newLine(c, w)
	}
	c.mu.Unlock()
	if !first {
		w.close()
	}
	if err := c.overLine(k); err != nil {
		return err
	}
	return errNext
}

// theLine returns the line, and starts it if need be.
func (c *Conn) theLine() *line {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.line == nil || c.line.dead() {
		if c.opts.Transport == WebSocket {
			c.line = newLine(c, newSocket(c))
		} else {
			c.line = newLine(c, newPair(c))
		}
	}
	return c.line
}

// newLine starts a line. c.mu is held.
func newLine(c *Conn, w wire) *line {
	l := &line{c: c, wire: w, changed: make(chan struct{}), on: make(map[*call]int), answers: newAnswers()}
	l.pace.idle, l.pace.nudge = l.idle, make(chan struct{}, 1)
	l.fit = c.session.revision == "" || c.session.id != "" || c.endpoint != ""
	if !c.closed {
		c.work.Go(l.run)
	}
	return l
}

func (l *line) dead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// change notes a change. l.mu is held.
func (l *line) change() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// wait waits until messages can be sent, those of the opening or all, and returns
// the number of the connection.
func (l *line) wait(ctx context.Context, early bool) (int, error) {
	l.waits(1)
	defer l.waits(-1)
	for {
		l.mu.Lock()
		up, fit, err, changed := l.up, l.fit, l.err, l.changed
		l.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if up != 0 && (fit || early) {
			return up, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// waits notes who waits for the connection, one more or one less.
func (l *line) waits(n int) {
	l.mu.Lock()
	l.waiting += n
	l.mu.Unlock()
	l.pace.hurry()
}

// idle says whether nobody waits for the connection.
func (l *line) idle() bool {
	l.mu.Lock()
	waiting := l.waiting
	l.mu.Unlock()
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return waiting == 0 && len(l.c.calls) == 0
}

// run keeps the connection open.
func (l *line) run() {
	c := l.c
	for {
		within := c.opts.ConnectTimeout
		if l.opens > 0 {
			within = l.pace.bound(within)
		}
		id, resumed, err := l.wire.open(c.ctx, within)
		if err == nil {
			l.pace.reached()
			l.opened(id, resumed)
			err = l.wire.read(l.take)
			l.wire.close()
			l.mu.Lock()
			l.up = 0
			l.change()
			l.mu.Unlock()
			if c.ctx.Err() != nil {
				return
			}
			c.logger.Debug("connection ended", "error", err)
			var big *oversize
			if errors.As(err, &big) {
				l.refused(big.raw)
			}
			err = nil
		}
		if panicked(err) {
			l.end(err)
			return
		}
		var no *refusal
		if errors.As(err, &no) && !no.passes() && (l.opens == 0 || !no.keeps()) {
			l.end(no)
			return
		}
		if no != nil {
			l.pace.atleast = no.after
		}
		if l.opens == 0 {
			err = l.pace.waitBriefly(c.ctx, c, err)
		} else {
			err = l.pace.wait(c.ctx, c, err)
		}
		if err != nil {
			l.end(err)
			return
		}
	}
}

// opened notes that there is a connection, and goes on with what was in flight.
func (l *line) opened(id string, resumed bool) {
	c := l.c
	var old []*call
	c.mu.Lock()
	for _, k := range c.calls {
		if k.isWritten() {
			old = append(old, k)
		}
	}
	if !resumed {
		l.seen, l.names = seen{}, seen{} // ids may begin anew
	}
	lost := !resumed && c.opener != nil && c.session.revision != ""
	anew := lost || !resumed && c.session.lost
	session := c.session
	c.mu.Unlock()
	if lost {
		c.tellLost(session)
	}
	if !resumed {
		c.named(id)
	}
	l.mu.Lock()
	l.opens++
	l.up, l.fit = l.opens, !anew && (l.fit || l.opens == 1)
	if !resumed {
		l.born = l.opens
		l.answers.sessionEnds()
	}
	up := l.up
	begin := anew && !l.begins
	l.begins = l.begins || begin
	l.change()
	l.mu.Unlock()
	for _, k := range old {
		c.spawn(func() { l.again(k, up) })
	}
	if begin {
		c.spawn(l.begin)
	}
	if resumed && l.wire.resumes() {
		l.answerAgain(up)
	}
}

// begin begins a session in the place of one that the server has ended.
func (l *line) begin() {
	err := l.c.beginAgain()
	if err != nil && l.c.ctx.Err() == nil {
		l.end(fmt.Errorf("the server has ended the session, and did not begin another: %w", err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begins, l.fit = false, err == nil
	l.change()
}

// end gives up: whatever waits fails.
func (l *line) end(err error) {
	l.mu.Lock()
	l.err = err
	l.change()
	l.mu.Unlock()
	l.c.failWritten(err)
}

// failWritten fails all calls that have gone over the line.
func (c *Conn) failWritten(err error) {
	c.mu.Lock()
	calls := make([]*call, 0, len(c.calls))
	for _, k := range c.calls {
		calls = append(calls, k)
	}
	c.mu.Unlock()
	for _, k := range calls {
		if k.isWritten() {
			k.fail(&unknownOutcome{err})
			k.cancel(nil)
		}
	}
}

// An oversize is the end of a connection because the server does not take messages
// as large as one that was written.
type oversize struct{ raw []byte }

// Error implements error.
func (o *oversize) Error() string {
	return fmt.Sprintf("the server does not take a message as large as this, of %d bytes", len(o.raw))
}

// refused fails what was too large for the server, which would not take it a second
// time either.
func (l *line) refused(raw []byte) {
	c := l.c
	m, err := jsonrpc.Parse(raw)
	why := &oversize{raw}
	c.logger.Warn("message not taken", "method", m.Method, "error", why)
	if err != nil {
		return
	}
	switch m.Kind {
	case jsonrpc.Request:
		if k := c.callNamed(m.ID); k != nil {
			k.fail(unknownIf(m.Method == protocol.MethodResume, why))
			k.cancel(nil)
		}
	case jsonrpc.Response:
		// Who asked is told that there is no answer, instead of waiting for it.
		l.mu.Lock()
		defer l.mu.Unlock()
		if a := l.answers.kept[string(jsonrpc.Key(m.ID))]; a != nil {
			a.raw = jsonrpc.AppendError(nil, m.ID, jsonrpc.Errorf(jsonrpc.CodeInternal, "%v", why))
		}
	}
}

// callNamed returns the call in flight that goes by an id, or nil.
func (c *Conn) callNamed(id []byte) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		if k.named(id) {
			return k
		}
	}
	return nil
}

// Errors of writing to a line, after which the server certainly has nothing.
var (
	errStale  = errors.New("the connection has ended")
	errUnsent = errors.New("not sent")
)

// write sends a message over the connection of a number.
func (l *line) write(ctx context.Context, up int, raw []byte) error {
	l.mu.Lock()
	current := l.up == up
	l.mu.Unlock()
	if !current {
		return errStale
	}
	return l.wire.write(ctx, raw)
}

package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// link is a call's place on a [mux].
type link struct {
	// Touched only by call.run.
	next    int   // the connection for the next attempt
	sent    int   // the connection over which the call was sent last; 0: none of this Conn's
	resumed bool  // next continues the session in which the call was sent
	stall   stall // watches the call while no message of it comes

	// Guarded by call.mu.
	stream   string    // the name of its stream, in event ids
	came     time.Time // when a message of it came last; zero: not known yet
	resuming bool      // requests/resume was sent for it, and no message has come since
	repeated bool      // it was sent again under its key
}

// opens reports whether the call is one that begins a session.
func (k *call) opens() bool { return protocol.Opens(k.method) }

// shared implements [transport].
func (x *mux) shared() bool { return true }

// ready implements [transport]: it waits until there is a connection.
func (x *mux) ready(k *call) error {
	number, err := x.wait(k.ctx, k.opens())
	if err != nil {
		return err
	}
	now := x.c.current()
	x.mu.Lock()
	k.link.next, k.link.resumed = number, k.link.sent >= x.session.born
	x.mu.Unlock()
	k.mu.Lock()
	had := k.key
	if k.session.state == sessionLost && k.state == callUnsent { // it was made between two sessions
		k.session = now
		k.keyAnew(now)
	}
	gained := k.key != had
	k.mu.Unlock()
	if gained {
		x.c.changed() // before it is sent
	}
	return nil
}

// can implements [transport].
func (x *mux) can(k *call, kind attemptKind) bool {
	resumes, l := x.conn.resumes(), &k.link
	switch kind {
	case attemptWait:
		// A resumed stream goes on with the calls that the server has.
		return l.sent < l.next && l.resumed && (k.opens() || !resumes && !k.origin.maybeSent)
	case attemptToken:
		return resumes
	case attemptRequest:
		return true
	case attemptAgain:
		return k.sends < mostCuts && (resumes && l.resumed && k.key != "" && !k.origin.otherSession || k.safe())
	}
	return false
}

// attempt implements [transport].
func (x *mux) attempt(k *call, kind attemptKind) (left bool, err error) {
	raw := k.frame(kind)
	before := k.link.sent
	k.link.sent = k.link.next
	if raw != nil {
		err = x.write(k.ctx, k.link.next, raw)
	}
	var no *refusal
	switch {
	case err == nil, x.conn.resumes() && !errors.Is(err, errStale): // it may have arrived
	case errors.Is(err, errStale):
		k.link.sent = before
		return false, errNext
	case errors.As(err, &no):
		switch forgets, unrun := x.forgets(k, no); {
		case forgets && unrun:
			k.link.sent = before
			return false, errNext
		case forgets:
			return true, errNext
		case no.certain():
			k.link.sent = before
			return false, err
		}
		return true, x.unsureWrite(k, err)
	case errors.Is(err, errUnsent):
		k.link.sent = before
		return false, err
	default:
		return true, x.unsureWrite(k, err)
	}
	k.taken()
	return true, x.await(k)
}

// unsureWrite waits for the response to a request that was sent with an error, though it may have
// arrived: the response would come over this connection or the next one. A retry-safe request does not
// wait longer than the connection lasts, and a request that begins a session no longer than over HTTP.
func (x *mux) unsureWrite(k *call, err error) error {
	k.happened(eventSent)
	var gone <-chan struct{}
	if k.safe() {
		gone = x.gone(k.link.sent)
	}
	var no *refusal
	most := x.c.opts.Silence
	switch refused := errors.As(err, &no); {
	case k.opens():
		most = min(most, x.c.remote.opensWithin())
	case refused && no.page && k.safe():
		most = min(most, firstPoll) // it is unlikely to have arrived
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-k.ctx.Done():
	case <-gone:
		return errNext
	case <-t.C:
	}
	switch {
	case no != nil:
		return err
	case k.safe():
		return fmt.Errorf("the request may have arrived: %v", err) //nolint:errorlint // it is as good as any other
	}
	return final("the request may have arrived: %w", err)
}

// await waits until the call is answered, or its connection has ended. A request that
// begins a session may take as long as over HTTP.
func (x *mux) await(k *call) error {
	gone := x.gone(k.link.sent)
	most := firstPoll
	switch {
	case k.opens():
		most = x.c.remote.opensWithin()
	case !x.conn.resumes():
		most = forever
	}
	t := time.NewTimer(most)
	defer t.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return nil
		case <-gone:
			return errNext
		case <-t.C:
		}
		if k.opens() {
			return final("the server did not answer within %v", most)
		}
		next, err := k.link.stall.look(k)
		if err != nil {
			return err
		}
		t.Reset(next)
	}
}

// forever is as long as any wait.
const forever time.Duration = math.MaxInt64

// frame returns the message that an attempt sends; nil: none.
func (k *call) frame(kind attemptKind) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch kind {
	case attemptWait:
		return nil
	case attemptToken:
		k.link.resuming, k.link.came = true, time.Now()
		params := jsonrpc.Object("resumeToken", k.ways.token)
		if last := k.ways.received.last; last != "" {
			params, _ = jsonrpc.Set(params, jsonrpc.Quote(last), "_meta", protocol.MetaLastEventID)
		}
		k.wire = k.ways.tokenFor
		return jsonrpc.AppendRequest(nil, k.wire, protocol.MethodResume, params)
	}
	k.link.repeated = kind == attemptAgain && k.key != ""
	k.unsent = false
	k.renameAgain(kind)
	k.sends++
	body := k.body
	if k.key != "" {
		body, _ = jsonrpc.Set(body, jsonrpc.Quote(k.key), "params", "_meta", protocol.MetaIdempotencyKey)
	}
	return k.underWireID(body)
}

// send implements [transport].
func (x *mux) send(ctx context.Context, k *call, raw []byte, atMost time.Duration) error {
	m, err := jsonrpc.Parse(raw)
	if err != nil {
		return err
	}
	var r *reply
	resumes := m.Kind == jsonrpc.Response && x.conn.resumes()
	if resumes {
		x.mu.Lock()
		r = x.replies.add(k, m)
		x.mu.Unlock()
	}
	var b backoff
	for {
		number, err := x.wait(ctx, m.Method == protocol.MethodInitialized)
		if err != nil {
			return err
		}
		if err = x.writeReply(ctx, number, m.Raw, r); err == nil || resumes {
			return nil
		}
		if no, ok := errors.AsType[*refusal](err); ok {
			if !no.passes() {
				return fmt.Errorf("not taken: %w", err)
			}
			b.atLeast = no.after
		}
		if err := b.waitFor(ctx, err, atMost); err != nil {
			return err
		}
	}
}

// pong implements [transport]. The server asks about this connection, whether or not it has a session yet.
func (x *mux) pong(ctx context.Context, _ *call, raw []byte) error {
	x.mu.Lock()
	number := x.number
	x.mu.Unlock()
	return x.write(ctx, number, raw)
}

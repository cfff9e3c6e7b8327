package client

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// again goes on with a call over the connection of a number, where it has not been
// sent yet, but over another or by another Conn.
func (l *line) again(k *call, up int) {
	l.mu.Lock()
	last := l.on[k]
	resumed := last >= l.born
	over := last >= up || !k.isWritten() // it is sent anew
	// A stream that goes on does so with its calls, if the server has them.
	over = over || resumed && (k.opens() || !l.wire.resumes() && !k.unsure)
	if !over {
		l.on[k] = up
	}
	l.mu.Unlock()
	if over {
		return
	}
	raw := k.lineAgain(l.wire.resumes(), resumed)
	if raw == nil {
		err := errors.New("the connection ended before the answer, and the server offers no way to ask again")
		switch {
		case k.unsure:
			err = errors.New("the process that was to send the request ended, and the server offers no way to ask for it")
		case !l.wire.resumes() && k.body == nil:
			err = errors.New("a call cannot be gone on with over HTTP+SSE: use the URL of the server's Streamable HTTP endpoint")
		}
		if k.sentOften() {
			err = errors.New("the server ends each connection without an answer")
		}
		k.fail(&unknownOutcome{err})
		k.cancel(nil)
		return
	}
	if _, err := l.wait(k.ctx, k.opens()); err == nil {
		_ = l.write(k.ctx, up, raw) // what fails is sent again over the next connection
	}
}

// opens says whether the call is one that begins a session.
func (k *call) opens() bool {
	return k.method == protocol.MethodInitialize || k.method == protocol.MethodDiscover
}

// lineAgain returns what brings a call on over another connection, where the server
// has to be asked to; nil: nothing.
func (k *call) lineAgain(resumes, resumed bool) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case resumes && k.place.token != "":
		k.resuming, k.came = true, time.Now()
		params := jsonrpc.Object("resumeToken", k.place.token)
		if k.place.last != "" {
			params, _ = jsonrpc.Set(params, jsonrpc.Quote(k.place.last), "_meta", protocol.MetaLastEventID)
		}
		return jsonrpc.AppendRequest(nil, k.id, protocol.MethodResume, params)
	case k.body == nil, k.progress.sent >= mostCuts:
		return nil
	case resumes && resumed && k.key != "" && !k.foreign:
		k.repeated = true
		return k.lineBody()
	case k.safe():
		k.wire = k.c.newID()
		return k.lineBody()
	}
	return nil
}

// sentOften reports whether the request was sent as often as it may be.
func (k *call) sentOften() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.progress.sent >= mostCuts
}

// lineBody is the request as it goes over a line. k.mu is held.
func (k *call) lineBody() []byte {
	k.progress.sent++
	body := k.body
	if k.key != "" {
		body, _ = jsonrpc.Set(body, jsonrpc.Quote(k.key), "params", "_meta", protocol.MetaIdempotencyKey)
	}
	if string(k.wire) != string(k.id) {
		if m, err := jsonrpc.Parse(slices.Clone(body)); err == nil {
			body = m.WithID(k.wire)
		}
	}
	return body
}

func (k *call) isWritten() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.written && !k.over
}

// overLine sends a call over the line and waits for its answer.
func (c *Conn) overLine(k *call) error {
	l := c.theLine()
	defer l.off(k)
	restored := k.maybe && !k.opens() // another Conn has sent it
	for {
		up, err := l.wait(k.ctx, k.opens())
		if err != nil {
			return err
		}
		if k.done() {
			return nil // what nobody wants any more is not begun
		}
		had := k.key
		raw, ok := l.about(k, up, restored)
		if !ok {
			continue // to the next connection
		}
		if k.key != had {
			c.changed() // before it is sent
		}
		if raw == nil {
			l.again(k, up)
			break
		}
		k.maybe = true
		if err = l.write(k.ctx, up, raw); err == nil || l.wire.resumes() && !errors.Is(err, errStale) {
			break
		}
		again, err := l.failed(k, up, err)
		if err != nil {
			return err
		}
		if !again {
			break
		}
	}
	k.arrive(true)
	if k.opens() {
		return k.waitOpening(c.opts.ConnectTimeout)
	}
	if l.wire.resumes() {
		l.attend(k)
	}
	<-k.ctx.Done()
	return nil
}

// waitOpening waits for the answer to what begins a session. The server may take so
// long, as over HTTP.
func (k *call) waitOpening(most time.Duration) error {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-k.ctx.Done():
		return nil
	case <-t.C:
		return fmt.Errorf("the server did not answer within %v", most)
	}
}

// about notes that a call is about to be sent over the connection of a number, and
// returns its request; nil: it goes on with what was sent before. It is false if the
// connection has ended: then the next one does not take the call for one that was
// sent.
func (l *line) about(k *call, up int, restored bool) (raw []byte, ok bool) {
	l.c.mu.Lock()
	now := l.c.session
	l.c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.up != up {
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return nil, false
	}
	if k.session.lost && !restored { // it was made between two sessions
		k.session = now
		k.keyAnew(now)
	}
	k.written = true
	if restored || k.body == nil || l.on[k] == up {
		return nil, true
	}
	l.on[k] = up
	return k.lineBody(), true
}

// off forgets a call that is over.
func (l *line) off(k *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.on, k)
}

// back takes back that a call was sent over the connection of a number. It is false
// if it has been gone on with over another.
func (l *line) back(k *call, up int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on[k] != up {
		return false
	}
	delete(l.on, k)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.written = false
	return true
}

// failed says whether a call is to be sent again after its sending over the
// connection of a number has failed, or else why not; nil: what was sent counts.
func (l *line) failed(k *call, up int, err error) (again bool, _ error) {
	c := l.c
	var no *refusal
	switch {
	case errors.As(err, &no) && no.certain():
		if no.status != http.StatusTooManyRequests && no.status != http.StatusServiceUnavailable {
			k.maybe = false
			return false, no
		}
		k.pace.atleast = no.after
		fallthrough
	case errors.Is(err, errUnsent), errors.Is(err, errStale):
		if !l.back(k, up) {
			return false, nil
		}
		k.maybe = false
		err = k.pace.wait(k.ctx, c, err)
		return err == nil, err
	}
	// It may have arrived all the same, and then its answer comes over the line.
	t := time.NewTimer(c.opts.Silence)
	defer t.Stop()
	select {
	case <-k.ctx.Done():
		return false, nil
	case <-t.C:
	}
	if !k.safe() {
		return false, fmt.Errorf("the request may have arrived: %w", err)
	}
	if err := k.pace.wait(k.ctx, c, err); err != nil {
		return false, err
	}
	if !l.back(k, up) {
		return false, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.opens() {
		k.wire = c.newID() // it may be in flight under the other
	}
	return true, nil
}

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// listenWait bounds how long the Conn waits for the standalone stream: some servers send its
// header only with the first event.
const listenWait = time.Second

// listen opens the standalone stream, and keeps it open (2025-11-25, Transports, "Listening
// for Messages from the Server"). It waits until the server has answered, for [listenWait]
// at the most: many servers lose messages that they send before.
func (c *Conn) listen() {
	if c.opts.NoListen || c.transport().shared() {
		return
	}
	c.mu.Lock()
	ok := c.opening.ready && c.session.state == sessionBegun && c.session.revision < protocol.V20260728
	c.mu.Unlock()
	if !ok || c.standaloneHappened(standaloneWanted) != standaloneOff {
		return
	}
	l := &listener{c: c, answered: make(chan struct{})}
	l.backoff.idle = func() bool { return true }
	started := c.spawn(func() {
		err := l.run()
		if c.ctx.Err() == nil {
			c.logger.Debug("not listening", "reason", err)
		}
		c.standaloneHappened(standaloneRefused)
	})
	if !started {
		return
	}
	t := time.NewTimer(listenWait)
	defer t.Stop()
	select {
	case <-l.answered:
	case <-t.C:
	case <-c.ctx.Done():
	}
}

// errBatch says why an event of the standalone stream is dropped.
var errBatch = errors.New("a batch")

// longSilence is how many times Options.Silence a stream may be silent that has brought no
// keep-alive and can be resumed.
const longSilence = 5

// A listener reads the standalone stream.
type listener struct {
	c        *Conn
	answered chan struct{} // closed when the server has answered, or cannot be reached
	once     sync.Once     // closes it
	backoff  backoff
	seen     eventIDs
	// session is the id of the session that seen belongs to.
	session string
	// keepAlives says that the server sends them: then silence means a dead connection.
	keepAlives bool
	// own is the last event id that is certainly the standalone stream's: some servers
	// continue other streams on the same connection.
	own  string
	pure bool // the connection began after the standalone stream's last own event
	// renewals is how many sessions were begun since the server last answered with the
	// stream.
	renewals int
}

// wasOpen reports whether the server has ever answered with the stream.
func (l *listener) wasOpen() bool {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	return l.c.standalone.state != standaloneOpening
}

// run reads until the server does not offer the stream, or the Conn ends.
func (l *listener) run() error {
	c := l.c
	for c.ctx.Err() == nil {
		c.mu.Lock()
		s, last := c.session, c.standalone.lastEventID
		c.mu.Unlock()
		if s.id != l.session {
			l.session, l.seen = s.id, eventIDs{seed: l.seen.seed} // its ids may begin anew
		}
		r, err := c.remote.do(c.ctx, exchange{method: http.MethodGet, session: &s, last: last, wait: c.opts.ConnectTimeout})
		l.once.Do(func() { close(l.answered) })
		if err == nil {
			err = l.read(r)
		}
		var no *refusal
		switch {
		case isFinal(err):
			return err
		case errors.As(err, &no):
			again, why := l.retryRefused(no, s, last)
			switch {
			case !again:
				return why
			case why == nil && l.renewals < 2:
				continue
			case why == nil: // the server begins sessions, and does not know them
				err = nil
			}
		}
		if errors.Is(err, errCut) {
			err = nil
		}
		if err := l.backoff.waitFor(c.ctx, err, 1<<62); err != nil {
			return err
		}
	}
	return c.ctx.Err()
}

// retryRefused reports whether to try again after a refusal: at once if err is nil.
func (l *listener) retryRefused(no *refusal, s session, last string) (again bool, err error) {
	if l.doubts(no, s) {
		if lost, _ := l.c.settle(l.c.ctx, s, no, func() verdict { return (&probe{c: l.c, no: no}).prove(s) }); lost {
			l.renewals++
			return true, nil
		}
	}
	switch {
	case no.passes(), no.auth, no.status == http.StatusConflict: // the server has not noticed the end of the last connection
		l.backoff.atLeast = min(no.after, l.c.opts.GiveUp)
		return true, no
	case no.forgot():
		if s.id == "" {
			return false, no
		}
		// Some servers answer 404 where they mean 405. The session has ended only if the
		// stream was there before.
		if l.wasOpen() || last != "" {
			l.renewals++
			_, err := l.c.renew(l.c.ctx, s)
			return err == nil, err
		}
		return false, no
	}
	if !no.shuts() && l.wasOpen() {
		return true, no // it was there, and will be again
	}
	if last == "" {
		return false, no
	}
	if l.own == "" || l.own == last {
		// The server does not have the events after the last one: continue with the events that come now.
		l.c.logger.Warn("messages of the standalone stream may be lost", "reason", no)
	}
	l.back(last)
	return true, nil
}

// doubts reports whether the session may be lost, as the stream was there and is refused now.
func (l *listener) doubts(no *refusal, s session) bool {
	switch {
	case !l.wasOpen(), s.id == "", s.state != sessionBegun, no.status == http.StatusConflict, !no.doubtful():
		return false
	case no.passes():
		return !s.keys && !l.backoff.since.IsZero() && time.Since(l.backoff.since) >= downFor
	}
	return l.c.raises(no.doubt())
}

// back sets the last event id to the last one that is certainly of the standalone stream, or
// to none if that was refused.
func (l *listener) back(from string) {
	if l.own == from {
		l.own = ""
	}
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	if l.c.standalone.lastEventID == from {
		l.c.standalone.lastEventID = l.own
	}
}

// read reads the stream until its connection ends.
func (l *listener) read(r *response) error {
	defer r.Close()
	last := r.Request.Header.Get(protocol.HeaderLastEventID)
	switch {
	case r.StatusCode == http.StatusNoContent && last != "":
		l.back(last) // the event id was that of another stream, which has ended
		return errCut
	case r.StatusCode == http.StatusNoContent:
		return unusable("there is no such stream")
	case r.StatusCode != http.StatusOK:
		return l.c.remote.refused(r)
	case r.media() != sse.ContentType && (l.wasOpen() || last != ""):
		return fmt.Errorf("it answered with %.60q, not an event stream", r.media()) // for a while, as a proxy may do
	case r.media() != sse.ContentType:
		return unusable("it answered with %.60q, not an event stream", r.media())
	}
	l.backoff.reached()
	l.renewals = 0
	l.c.standaloneHappened(standaloneConnected)
	defer l.c.standaloneHappened(standaloneDisconnected)
	id, replay := r.Request.Header.Get(protocol.HeaderSession), last != ""
	l.pure = last == "" || last == l.own
	ours := l.c.current().keys
	replay = replay || ours // a Holdfast continues here the calls that a client may have lost
	switch {
	case ours:
		r.expect(l.c.opts.quick)
	case l.keepAlives:
		r.expect(l.c.opts.Silence)
	case last != "":
		r.expect(longSilence * l.c.opts.Silence)
	default:
		r.expect(0)
	}
	body := &keepAliveReader{r: r, silence: l.c.opts.Silence, quick: l.c.opts.quick}
	events := sse.NewReader(body, l.c.opts.MaxMessage)
	arrival := l.c.count(events)
	defer arrival.Done()
	for {
		arrival.Done()
		ev, err := events.Next()
		l.keepAlives = l.keepAlives || body.seen
		switch {
		case err == nil:
		case budget.Full(err):
			if err = l.c.skip(events, err, l.c.answer, func(m jsonrpc.Message) { l.c.response(nil, m) }); err != nil {
				return fmt.Errorf("%w: %w", errCut, err)
			}
			continue
		case errors.Is(err, io.EOF):
			return errCut
		default:
			return fmt.Errorf("%w: %w", errCut, err)
		}
		r.pause(true)
		l.event(&ev, id, replay)
		r.pause(false)
	}
}

// event handles one event of the standalone stream of a session. It may be a replay.
func (l *listener) event(ev *sse.Event, session string, replay bool) {
	c := l.c
	if ev.Retry >= 0 {
		l.backoff.ask(ev.Retry, c)
	}
	if !headable(ev.ID) {
		ev.ID = ""
	}
	if ev.ID != "" {
		c.mu.Lock()
		if c.session.id == session {
			c.standalone.lastEventID = ev.ID
		}
		c.mu.Unlock()
		if l.pure && len(ev.Data) == 0 {
			l.own = ev.ID
		}
		c.changed()
		if !l.seen.add(ev.ID) {
			return
		}
	}
	if len(ev.Data) == 0 || ev.Name != "" && ev.Name != "message" {
		return
	}
	again := c.repeated(ev)
	msgs, err := rpc.Parse(ev.Data)
	if err == nil && len(msgs) > 1 {
		err = errBatch
	}
	if err != nil {
		c.dropped(ev.Data, err)
		return
	}
	m := msgs[0]
	if again && (replay || m.Kind != jsonrpc.Notification || m.Method == protocol.MethodProgress) {
		return // two such messages are alike only if the server repeats itself
	}
	l.backoff.progress()
	switch m.Kind {
	case jsonrpc.Response:
		c.response(nil, m)
	case jsonrpc.Request:
		c.requests.pass(nil, m)
	case jsonrpc.Notification:
		switch m.Method {
		case protocol.MethodToolsListChanged, protocol.MethodPromptsListChanged,
			protocol.MethodResourcesListChanged, protocol.MethodResourceUpdated:
			if ev.ID != "" {
				l.own = ev.ID // they belong to no call
			}
		}
		c.notification(nil, m)
	}
}

// answer sends a response to the server.
func (c *Conn) answer(ctx context.Context, raw []byte) error {
	return exchanges{c}.send(ctx, nil, raw, c.opts.ConnectTimeout)
}

// notification handles a notification that did not come on a call's own stream, and
// passes it to the host. k is the call that it belongs to, if that is known.
func (c *Conn) notification(k *call, m jsonrpc.Message) {
	switch m.Method {
	case protocol.MethodResumePolicy:
		if c.policy(m) {
			return
		}
	case protocol.MethodCancelled:
		m = c.requests.withdrawn(k, m)
	}
	if !c.goesBack(k, m) {
		c.deliver(k, m)
	}
}

// repeated notes an event, and reports whether the same event has come on any stream. Some
// servers use the same ids in each stream, so the data counts too.
func (c *Conn) repeated(ev *sse.Event) bool {
	if ev.ID == "" {
		return false
	}
	h := c.seen.hash(ev.ID, ev.Data)
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.seen.addHash(h)
}

// policy passes a resume policy to its call. It reports whether to hide the policy from the host.
func (c *Conn) policy(m jsonrpc.Message) bool {
	if k := c.calls.of(jsonrpc.Field(m.Params, "requestId")); k != nil {
		return k.policy(m)
	}
	return !c.hostWantsPolicies()
}

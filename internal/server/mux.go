package server

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/session"
	"holdfast/stream"
)

// A pipe carries messages both ways between a client and its [mux]: what is particular to
// a transport. Read has one caller at a time, and so have the others together.
type pipe interface {
	// Read returns the next message, which is the caller's to keep. A *jsonrpc.Error
	// says that one was left out, and why; io.EOF that no other will come, though the
	// client may still read. After any other error the pipe is of no use.
	Read() ([]byte, error)
	// Write writes messages, each of which ends in a line feed, without waiting for
	// a slow client for ever. After an error it is not called again.
	Write(lines []byte) error
	// Ping asks the other end for a sign of life, and breaks the pipe if none comes.
	// It does not wait.
	Ping()
	// Close ends the pipe because of why, and with it Read. retry is when the client
	// may come back.
	Close(why error, retry time.Duration)
}

// A mux is a connection that carries many exchanges at a time, of one session or of
// several. One goroutine takes what comes in (dispatch.go). Another, [mux.run], answers
// light calls, which wait without a goroutine, and copies the standalone stream of the
// connection's session. Each call that streams has a goroutine of its own: it copies
// the stream from the log (muxexchange.go), or from another node (muxforward.go).
type mux struct {
	h          *Handler
	key        stream.SessionKey               // of the connection's own session
	local      atomic.Pointer[session.Session] // that session; nil while it is on another node
	remote     *remoteSession                  // for a session that was on another node at first, else nil
	client     *muxClient
	out        output
	standalone *muxExchange  // reads the standalone stream
	ready      chan struct{} // signalled when [mux.run] may have something to do
	drain      <-chan struct{}
	times      muxTimes

	queue  queue
	lights []*muxExchange // the light calls, oldest first; used by run only

	mu            sync.Mutex
	state         muxState
	open          map[*muxExchange]struct{} // that have a goroutine
	foreign       map[string]*muxExchange   // those of other sessions, by the ids of their requests
	otherSessions bool                      // a call of another session was resumed here
	work          sync.WaitGroup            // those that copy from the log
	ctx           context.Context           // of all that have a goroutine
	stop          context.CancelCauseFunc
}

// A muxState is what may still happen on a connection:
//
//	open      messages come in        → leaving: what can't be gone on with here was asked for
//	open      the client sends no more → finished
//	leaving   the client is to come back as soon as nothing is unanswered
//	finished  the connection ends when everything was sent
//	any       → closed: it has ended
//
// A connection stays leaving when its client sends no more: something is unanswered.
type muxState uint8

const (
	muxOpen muxState = iota
	muxLeaving
	muxFinished
	muxClosed
)

// become makes a transition, unless the connection is beyond it. m.mu is held.
func (m *mux) become(to muxState) {
	if m.state == muxOpen || to == muxClosed {
		m.state = to
	}
}

// A muxClient is the client of a mux.
type muxClient struct {
	principal string
	values    context.Context // of the request that began the connection; it does not end with it
	header    http.Header     // of that request
	returns   bool            // the client can connect again, to the same session
}

// muxTimes are what [mux.run] goes by.
type muxTimes struct {
	opened  time.Time
	pinged  time.Time
	leaving time.Time     // when to leave, as the node is drained; zero: it is not
	retry   time.Duration // after which the client may come back
}

// Why a mux ends, besides.
var (
	errSessionEnded = errors.New("the session ended")
	errSilent       = errors.New("no initialize request came")
	errPanicked     = errors.New("a message was not handled to its end")
)

// newMux prepares a connection in the session with a key, which is nil if it is on another
// node. r is the request that began the connection.
func (h *Handler) newMux(r *http.Request, s *session.Session, key stream.SessionKey, returns bool) *mux {
	m := &mux{
		h:     h,
		key:   key,
		ready: make(chan struct{}, 1),
		open:  make(map[*muxExchange]struct{}),
		client: &muxClient{
			principal: h.principal(r), values: context.WithoutCancel(r.Context()), header: r.Header, returns: returns,
		},
	}
	m.times.opened = time.Now()
	m.times.pinged = m.times.opened
	m.queue.ready = m.ready
	m.queue.room.L = &m.queue.mu
	m.standalone = m.newExchange(s, key, nil)
	m.standalone.ready = m.ready
	m.local.Store(s)
	if s == nil {
		m.remote = &remoteSession{serving: make(chan struct{})}
	}
	m.ctx, m.stop = context.WithCancelCause(m.client.values)
	return m
}

// listen attaches to the standalone stream, after the last message that was delivered.
func (m *mux) listen(ctx context.Context) error {
	return m.standalone.standalone(ctx, m.h.logger, m.standalone.s.EventIDs(), m.showsIDs())
}

// serve carries messages until the client has left (then it returns the error of ctx or
// of the pipe), until the connection is ended for another reason, or, if the client sends
// no more, until all its requests are answered (nil). [mux.listen] must have been called.
func (m *mux) serve(ctx context.Context, p pipe) (err error) {
	m.out.pipe = p
	if m.remote != nil {
		close(m.remote.serving)
	}
	defer context.AfterFunc(ctx, func() { m.stop(ctx.Err()) })()
	over := make(chan struct{})
	go func() {
		defer close(over)
		err = m.run(m.ctx)
		if m.ctx.Err() != nil && errors.Is(err, m.ctx.Err()) {
			err = context.Cause(m.ctx)
		}
		m.close(err)
		p.Close(err, m.times.retry)
	}()
	defer func() {
		m.stop(errPanicked) // if nothing has ended it yet
		<-over
	}()
	m.receive()
	<-over
	return err
}

// run answers light calls, copies the standalone stream, and does what is due, until
// the connection is over.
func (m *mux) run(ctx context.Context) error {
	timer := time.AfterFunc(time.Hour, func() { session.Wake(m.ready) })
	defer timer.Stop()
	for {
		more, err := m.answerLights()
		if err == nil {
			var moreStandalone bool
			moreStandalone, err = m.copyStandalone(ctx)
			more = more || moreStandalone
		}
		switch {
		case err != nil:
			return err
		case m.isOver():
			return nil
		case more:
			continue
		}
		a := alarm{now: time.Now()}
		if err := m.due(&a); err != nil {
			return err
		}
		if !a.next.IsZero() {
			timer.Reset(a.next.Sub(a.now))
		}
		select {
		case <-m.ready:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.drain:
		}
	}
}

// copyStandalone writes what the standalone stream holds, and reports whether there may be
// more. A stream that is read elsewhere, or over, is let go of.
func (m *mux) copyStandalone(ctx context.Context) (more bool, err error) {
	if m.standalone.r == nil {
		return false, nil
	}
	gone := m.standalone.r.Gone() // asked first, so that everything before is written
	more, err = m.standalone.turn(ctx)
	trimmed := errors.Is(err, stream.ErrTrimmed) || errors.Is(err, stream.ErrNotFound)
	if trimmed && !m.standalone.s.Moved() {
		more, err = true, m.reattach(ctx)
	}
	switch {
	case err != nil && m.standalone.s.Moved() && ctx.Err() == nil:
		if !m.follows() {
			return false, errComeBack
		}
		m.standalone.detach(false) // the rest is for the session's next client
		return true, nil
	case err == nil && !trimmed && (m.standalone.state >= last || gone && !more):
		m.standalone.detach(false)
	}
	return more, err
}

// reattach continues the standalone stream where part of it is no longer stored.
func (m *mux) reattach(ctx context.Context) error {
	m.standalone.detach(false)
	s := m.standalone.s
	if s.Ended() {
		return nil
	}
	m.h.logger.Warn("messages of the standalone stream were dropped unread", "session", s.Name())
	return m.standalone.read(ctx, stream.Cursor{Seq: s.Oldest(ctx)}, m.showsIDs())
}

// due does what its time has come for.
func (m *mux) due(a *alarm) error {
	opts, t := &m.h.opts, &m.times
	if retry, ok := m.disconnected(); ok {
		if err := m.leave(retry); err != nil {
			return err
		}
	}
	m.promoteLights(a)
	m.awaitDrain(a.now)
	switch ended := m.ends(); {
	case ended != nil:
		return ended
	case m.isSilent() && a.due(t.opened.Add(opts.BodyTimeout)):
		return errSilent
	case m.isQuiet() && a.due(t.leaving):
		return m.leave(opts.Retry + rand.N(opts.Retry+1))
	case opts.DisconnectAfter > 0 && m.mayLeave() && a.due(t.opened.Add(opts.DisconnectAfter)):
		return m.leave(opts.Retry)
	case opts.KeepAlive > 0 && a.due(t.pinged.Add(opts.KeepAlive)):
		t.pinged = a.now
		a.due(a.now.Add(opts.KeepAlive))
		m.touch()
		m.out.ping()
	}
	return nil
}

// ends returns why the connection ends now, if it does.
func (m *mux) ends() error {
	quiet := m.isIdle() && m.isAlone()
	s := m.session()
	switch {
	case m.is(muxLeaving) && m.isIdle() && m.announced():
		m.times.retry = m.h.opts.Retry
		return errComeBack
	case m.remoteEnded() && quiet:
		return errSessionEnded
	case s == nil:
	case s.Moved() && (m.client.returns || quiet):
		return errComeBack
	case s.Moved(): // what its client has asked for is gone on with elsewhere
	case s.Ended() && quiet:
		return errSessionEnded
	}
	return nil
}

// awaitDrain sets when the connection is to end, if the node is drained. What is
// unanswered is waited for.
func (m *mux) awaitDrain(now time.Time) {
	m.drain = nil
	switch {
	case !m.times.leaving.IsZero() || !m.isQuiet():
	case m.h.isDraining():
		m.times.leaving = now.Add(rand.N(m.h.spread + 1))
	default:
		m.drain = m.h.draining
	}
}

// disconnected reports whether a call has asked for the connection's end, and its
// client knows how to come back.
func (m *mux) disconnected() (retry time.Duration, ok bool) {
	if !m.isIdle() || !m.announced() {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for x := range m.open {
		if asked := x.retry.Swap(nil); asked != nil {
			if *asked < 0 {
				return m.h.opts.Retry, true
			}
			return *asked, true
		}
	}
	return 0, false
}

// leave ends the connection, and has the client come back after a time. Where it could
// not come back, it stays.
func (m *mux) leave(retry time.Duration) error {
	if !m.mayLeave() {
		return nil
	}
	m.times.retry = retry
	return errComeBack
}

// mayLeave reports whether the connection may be ended: the client can connect again
// and find all that it has asked for, or is being sent away by a node that has
// nothing more to tell it.
func (m *mux) mayLeave() bool {
	switch {
	case !m.isIdle():
		return false
	case m.h.isDraining():
		return m.isAlone()
	}
	return m.client.returns && (m.isAlone() || m.resumes() && m.announced())
}

// is reports whether the connection is in a state.
func (m *mux) is(state muxState) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == state
}

// isIdle reports whether nothing that was asked here is unanswered, but what is copied
// from a stream.
func (m *mux) isIdle() bool { return m.queue.isEmpty() && len(m.lights) == 0 }

// isAlone reports whether no call is copied from a stream, here or from another node.
func (m *mux) isAlone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.open) == 0
}

// isQuiet reports whether the client waits for nothing in particular.
func (m *mux) isQuiet() bool { return m.isIdle() && m.isAlone() }

// isOver reports whether everything was sent to a client that sends no more.
func (m *mux) isOver() bool { return m.is(muxFinished) && m.isAlone() && m.isIdle() }

// announced reports whether the client got the tokens of all calls here that have one.
func (m *mux) announced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for x := range m.open {
		if !x.announced.Load() && (x.forward == nil || x.forward.unsafe) {
			return false
		}
	}
	return true
}

// isSilent reports whether the client of a connection that can be made again has yet to
// begin.
func (m *mux) isSilent() bool { return m.client.returns && !m.begun() && !m.isBare() }

// isBare reports whether the client came for calls of other sessions, and has begun
// none here.
func (m *mux) isBare() bool {
	m.mu.Lock()
	otherSessions := m.otherSessions
	m.mu.Unlock()
	return otherSessions && !m.begun()
}

// resumes reports whether the client can resume the calls that it receives here.
func (m *mux) resumes() bool {
	s := m.session()
	if s == nil {
		return m.remote.resumes
	}
	return s.Resumable() && s.Revision() != "" || m.isBare()
}

// showsIDs reports whether the client gets event ids. A client that has not initialized a
// session here has had no way to ask for them.
func (m *mux) showsIDs() bool {
	s := m.session()
	if s == nil {
		return m.remote.eventIDs
	}
	return s.EventIDs() || !m.begun()
}

// begun reports whether the session is initialized, or about to be.
func (m *mux) begun() bool {
	s := m.session()
	return s == nil || s.Initializing() != nil || s.Revision() != "" // in this order
}

// touch notes that the connection's session is in use. One on another node has a reader.
func (m *mux) touch() {
	if s := m.session(); s != nil {
		s.Touch()
	}
}

// remoteEnded reports whether the session, which was on another node, has ended.
func (m *mux) remoteEnded() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.remote != nil && m.remote.ended
}

// comeBack has the client come back, as soon as nothing is unanswered, for what can't
// be gone on with here.
func (m *mux) comeBack() {
	m.mu.Lock()
	m.become(muxLeaving)
	m.mu.Unlock()
	session.Wake(m.ready)
}

// close lets go of all that the connection reads and waits for, after it has ended with
// err.
func (m *mux) close(err error) {
	m.mu.Lock()
	m.become(muxClosed)
	m.mu.Unlock()
	m.out.close()
	m.stop(errOver)
	for _, x := range append(m.lights, m.queue.close()...) {
		x.light.call.ConnectionLost()
	}
	m.lights = nil
	m.work.Wait()
	m.standalone.detach(false)
	m.mu.Lock()
	rest := slices.Collect(maps.Keys(m.open))
	m.mu.Unlock()
	for _, x := range rest {
		x.detach(err != nil && x.state != delivered)
	}
}

// An output is the one way to a client. What is written is written whole.
type output struct {
	mu   sync.Mutex
	pipe pipe
	err  error // why nothing is written any more
}

// write writes messages, each of which ends in a line feed.
func (o *output) write(lines []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = o.pipe.Write(lines)
	}
	return o.err
}

// ping asks the client for a sign of life.
func (o *output) ping() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.pipe.Ping()
	}
}

// close waits for who writes. Nothing is written any more.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = errOver
	}
}

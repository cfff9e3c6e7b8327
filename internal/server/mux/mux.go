package mux

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/observe"
	"holdfast/internal/reading"
	"holdfast/internal/server/copying"
	"holdfast/internal/server/exchange"
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
// the stream from the log (carried.go), or from another node (forward.go).
type mux struct {
	front *Front
	muxSession
	client     *client
	out        output
	standalone *carried      // reads the standalone stream
	ready      chan struct{} // signalled when [mux.run] may have something to do
	times      times

	queue  queue
	lights []*carried // the light calls, oldest first; used by run only

	mu    sync.Mutex
	state state
	muxExchanges
	ctx  context.Context // of all that have a goroutine
	stop context.CancelCauseFunc
}

// A muxSession is the connection's own session.
type muxSession struct {
	key    stream.SessionKey
	local  atomic.Pointer[session.Session] // nil while it is on another node
	remote *remoteSession                  // nil if it was not on another node at first
}

// muxExchanges are those of a mux that have a goroutine. They are guarded by mux.mu.
type muxExchanges struct {
	open          map[*carried]struct{}
	foreign       map[string]*carried       // those of other sessions, by the ids of their requests
	otherSessions bool                      // a call of another session was resumed here, or a request has come that needs none
	modern        map[string]*modernRequest // the requests of revision 2026-07-28 in flight, by their ids
	work          sync.WaitGroup            // those that copy from the log, or wait for their turn
	waiting       int                       // calls that a limit has wait, and requests of revision 2026-07-28 that are served
}

// A state is what may still happen on a connection:
//
//	open      messages come in        → leaving: what can't be gone on with here was asked for
//	open      the client sends no more → finished
//	leaving   the client is to come back as soon as nothing is unanswered
//	finished  the connection ends when everything was sent
//	any       → closed: it has ended
//
// A connection stays leaving when its client sends no more: something is unanswered.
type state uint8

const (
	stateOpen state = iota
	stateLeaving
	stateFinished
	stateClosed
)

// become makes a transition, unless the connection is beyond it. m.mu is held.
func (m *mux) become(to state) {
	if m.state == stateOpen || to == stateClosed {
		m.state = to
	}
}

// A client is the client of a mux.
type client struct {
	principal caller.Principal
	values    context.Context // of the request that began the connection; it does not end with it
	header    http.Header     // of that request
	address   string          // of that request
	returns   bool            // the client can connect again, to the same session
	door      observe.Door
	rights    copying.Rights // nil: they do not change
}

// Why a mux ends, besides.
var (
	errSessionEnded = errors.New("the session ended")
	errSilent       = errors.New("no initialize request came")
	errPanicked     = errors.New("a message was not handled to its end")
)

// newMux prepares a connection in the session of the exchange that began it, which is nil if it is on another node. key is
// that session's.
func (fr *Front) newMux(x *exchange.Exchange, key stream.SessionKey, returns bool) *mux {
	r, s := x.HTTP, x.Session
	m := &mux{
		front:        fr,
		muxSession:   muxSession{key: key},
		ready:        make(chan struct{}, 1),
		muxExchanges: muxExchanges{open: make(map[*carried]struct{})},
		client: &client{
			principal: x.Principal, values: context.WithoutCancel(r.Context()), header: r.Header, address: r.RemoteAddr, returns: returns, door: observe.DoorSocket,
		},
	}
	m.times.opened = time.Now()
	m.times.pinged = m.times.opened
	if returns {
		m.client.rights = copying.RightsOf(r.Context())
	} else {
		m.client.door = observe.DoorPipe
	}
	m.queue.ready = m.ready
	m.queue.room.L = &m.queue.mu
	m.standalone = m.newExchange(s, key, nil)
	m.standalone.Ready = m.ready
	m.local.Store(s)
	if s == nil {
		m.remote = &remoteSession{serving: make(chan struct{})}
	}
	m.ctx, m.stop = context.WithCancelCause(m.client.values)
	return m
}

// listen attaches to the standalone stream, after the last message that was delivered.
func (m *mux) listen(ctx context.Context) error {
	return m.standalone.Standalone(ctx, m.front.Logger, m.standalone.Session.Resumes().EventIDs(), m.showsIDs())
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
	defer m.watchRights()()
	m.receive()
	<-over
	return err
}

// run answers light calls, copies the standalone stream, and does what is due, until
// the connection is over.
func (m *mux) run(ctx context.Context) error {
	timer := time.AfterFunc(time.Hour, func() { reading.Wake(m.ready) })
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
		a := copying.Alarm{Now: time.Now()}
		if err := m.due(&a); err != nil {
			return err
		}
		if !a.Next.IsZero() {
			timer.Reset(a.Next.Sub(a.Now))
		}
		select {
		case <-m.ready:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.times.drain:
		}
	}
}

// copyStandalone writes what the standalone stream holds, and reports whether there may be
// more. A stream that is read elsewhere, or over, is let go of.
func (m *mux) copyStandalone(ctx context.Context) (more bool, err error) {
	if m.standalone.Reader == nil {
		return false, nil
	}
	gone := m.standalone.Reader.Gone() // asked first, so that everything before is written
	more, err = m.standalone.Turn(ctx)
	trimmed := errors.Is(err, stream.ErrTrimmed) || errors.Is(err, stream.ErrNotFound)
	if trimmed && !m.standalone.Session.Moved() {
		more, err = true, m.reattach(ctx)
	}
	switch {
	case err != nil && m.standalone.Session.Moved() && ctx.Err() == nil:
		if !m.follows() {
			return false, copying.ErrComeBack
		}
		m.standalone.detach(false) // the rest is for the session's next client
		return true, nil
	case err == nil && !trimmed && (m.standalone.IsRead() || gone && !more):
		m.standalone.detach(false)
	}
	return more, err
}

// reattach continues the standalone stream where part of it is no longer stored.
func (m *mux) reattach(ctx context.Context) error {
	m.standalone.detach(false)
	s := m.standalone.Session
	if s.Ended() {
		return nil
	}
	m.front.Logger.Warn("messages of the standalone stream were dropped unread", "session", s.Name())
	return m.standalone.Read(ctx, stream.Cursor{Seq: s.Streams().Oldest(ctx, reading.Standalone)}, m.showsIDs())
}

// is reports whether the connection is in a state.
func (m *mux) is(state state) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == state
}

// showsIDs reports whether the client gets event ids. A client that has not initialized a
// session here has had no way to ask for them.
func (m *mux) showsIDs() bool {
	s := m.session()
	if s == nil {
		return m.remote.eventIDs
	}
	return s.Resumes().EventIDs() || !m.begun()
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

// close lets go of all that the connection reads and waits for, after it has ended with
// err.
func (m *mux) close(err error) {
	m.mu.Lock()
	m.become(stateClosed)
	m.mu.Unlock()
	m.out.close()
	m.stop(copying.ErrOver)
	for _, x := range append(m.lights, m.queue.close()...) {
		x.light.call.ConnectionLost()
		x.light.call.Answered()
	}
	m.lights = nil
	m.work.Wait()
	m.standalone.detach(false)
	m.mu.Lock()
	rest := slices.Collect(maps.Keys(m.open))
	m.mu.Unlock()
	for _, x := range rest {
		x.detach(err != nil && !x.IsDelivered())
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
		o.err = copying.ErrOver
	}
}

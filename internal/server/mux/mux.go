package mux

import (
	"context"
	"errors"
	"sync"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/reading"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/streaming"
	"holdfast/stream"
)

// A pipe carries messages both ways between a client and its [mux], over one transport.
// Read has one caller at a time; so have the other methods together.
type pipe interface {
	// Read returns the next message, which the caller may keep. A *jsonrpc.Error says why a message was left out; io.EOF says
	// that the client sends no more, though it may still read. After any other error the pipe is unusable.
	Read() ([]byte, error)
	// Write writes messages, each of which ends in a line feed. It waits only a
	// bounded time for a slow client. After an error it is not called again.
	Write(lines []byte) error
	// Ping asks the client for a sign of life, and breaks the pipe if none comes. It does not wait.
	Ping()
	// Close ends the pipe because of why, and with it Read. retry is the time after which the client may come back.
	Close(why error, retry time.Duration)
}

// A mux is a connection that carries many exchanges at a time, of one session or of several. One goroutine takes the client's
// messages (dispatch.go). Another, [mux.run], answers light calls, which wait without a goroutine, and copies the standalone
// stream of the connection's session. Each call that streams has a goroutine of its own: it copies the stream from the log
// (carried.go), or from another node (forward.go).
type mux struct {
	front *Front
	home
	traffic
	out        output
	standalone standalone // reads the standalone stream
	times      times

	queue  queue
	lights []*carried  // the light calls, oldest first; used by run only
	early  []*delivery // which end when no light call waits; used by run only

	ctx  context.Context // of all goroutines of the connection
	stop context.CancelCauseFunc
}

// More reasons that a mux ends.
var (
	errSessionEnded = errors.New("the session ended")
	errSilent       = errors.New("no initialize request came")
	errPanicked     = errors.New("a message was not handled to its end")
)

// newMux returns a mux in the session of the exchange that began the connection, nil if the session is on another node.
// key is the session's. returns says that the client can connect again.
func (fr *Front) newMux(x *exchange.Exchange, key stream.SessionKey, returns bool) *mux {
	r, s := x.HTTP, x.Session
	m := &mux{
		front: fr,
		home: home{key: key, sessions: fr.Sessions, client: &client{
			principal: x.Principal, values: context.WithoutCancel(r.Context()), header: r.Header, address: r.RemoteAddr, returns: returns, door: observe.DoorSocket,
		}},
		traffic: traffic{ready: make(chan struct{}, 1), open: make(map[*carried]struct{})},
	}
	m.times.opened = time.Now()
	m.times.pinged = m.times.opened
	if returns {
		m.client.rights = streaming.RightsOf(r.Context())
	} else {
		m.client.door = observe.DoorPipe
	}
	m.queue.ready = m.ready
	m.queue.room.L = &m.queue.mu
	m.standalone = standalone{m.newExchange(s, key, nil)}
	m.standalone.Ready = m.ready
	m.local.Store(s)
	if s == nil {
		m.remote = &remoteSession{serving: make(chan struct{})}
	}
	m.ctx, m.stop = context.WithCancelCause(m.client.values)
	return m
}

// serve carries messages until the client has left (then it returns the error of ctx or of the pipe),
// until the connection ends for another reason, or, if the client sends no more, until all its requests
// are answered (nil). The standalone stream must be attached already.
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
		m.stop(errPanicked) // if receive has panicked
		<-over
	}()
	defer m.client.watchRights(m.ready)()
	m.receive()
	<-over
	return err
}

// run answers light calls, copies the standalone stream, and calls [mux.due], until the connection is over.
func (m *mux) run(ctx context.Context) error {
	timer := time.AfterFunc(time.Hour, func() { reading.Wake(m.ready) })
	defer timer.Stop()
	for {
		more, err := m.answerLights()
		if err == nil {
			var moreStandalone bool
			moreStandalone, err = m.standalone.copy(ctx)
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
		a := streaming.Alarm{Now: time.Now()}
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

// close ends the calls' waiting and detaches from all streams, after the connection has ended with err.
func (m *mux) close(err error) {
	m.become(stateClosed)
	m.out.close()
	m.stop(streaming.ErrOver)
	for _, x := range append(m.lights, m.queue.close()...) {
		x.light.call.ConnectionLost()
		x.light.call.Answered()
	}
	m.lights = nil
	m.work.Wait()
	m.standalone.detach(false)
	for _, x := range m.left() {
		x.detach(err != nil && !x.IsDelivered())
	}
}

// hears returns the error of an exchange's context, or else that of mayHear, which ends the connection.
func (m *mux) hears(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := m.client.mayHear()
	if err != nil {
		m.stop(err)
	}
	return err
}

// say writes messages to the client. An error ends the connection.
func (m *mux) say(lines []byte) {
	if err := m.out.write(lines); err != nil {
		m.stop(err)
	}
}

// An output writes to the client, each text without others in between.
type output struct {
	mu   sync.Mutex
	pipe pipe
	err  error // of the pipe, or copying.ErrOver: nothing is written any more
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

// close waits for a write that is going on. After it nothing is written.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = streaming.ErrOver
	}
}

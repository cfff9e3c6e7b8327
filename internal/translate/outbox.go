package translate

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/panics"
	"holdfast/jsonrpc"
)

// errOver is the error of a message for a conversation that has ended.
var errOver = errors.New("the conversation has ended")

// overBecause returns errOver with a reason, which may be nil: the client has left.
func overBecause(why error) error {
	if why == nil {
		return errOver
	}
	return fmt.Errorf("%w: %w", errOver, why)
}

// An outbox hands messages to the server in their order. Only the response of a client waits for no message before it: the server has the request
// that it belongs to, and the client learns whether the server has taken the response. The methods of an outbox may be called concurrently.
type outbox struct {
	// failed is called with a message that was put off, and that the server then did not take. An answer is delivered again before.
	failed func(in backend.Inbound, err error)
	log    *slog.Logger

	mu      sync.Mutex
	conn    backend.Conn // nil until the conversation is open
	waiting []backend.Inbound
	sending bool // a goroutine sends the waiting messages
	closed  bool
	ended   chan struct{} // closed by stop; nil: no answer is delivered again
	wait    sync.WaitGroup
}

// open gives the outbox the conversation, and sends the messages that were put off before.
func (o *outbox) open(conn backend.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conn = conn
	o.startSending()
}

// Deliver implements [backend.Conn]. It returns nil if the message must wait.
func (o *outbox) Deliver(in backend.Inbound) error {
	o.mu.Lock()
	switch {
	case o.closed:
		o.mu.Unlock()
		return errOver
	case o.conn == nil, in.Kind != jsonrpc.Response && (o.sending || len(o.waiting) > 0):
		o.waiting = append(o.waiting, in)
		o.mu.Unlock()
		return nil
	}
	conn := o.conn
	o.mu.Unlock()
	return o.deliver(conn, in)
}

// later hands over messages from another goroutine: the caller may be handling a message of the server.
func (o *outbox) later(all ...backend.Inbound) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.waiting = append(o.waiting, all...)
	o.startSending()
}

// startSending starts the goroutine that sends. o.mu is held.
func (o *outbox) startSending() {
	if o.conn == nil || o.sending || len(o.waiting) == 0 {
		return
	}
	o.sending = true
	o.wait.Go(o.send)
}

func (o *outbox) send() {
	for {
		o.mu.Lock()
		if len(o.waiting) == 0 {
			o.waiting = nil
			o.sending = false
			o.mu.Unlock()
			return
		}
		in := o.waiting[0]
		o.waiting = o.waiting[1:]
		o.mu.Unlock()
		err := o.deliver(o.conn, in)
		var panicked *panics.Error
		switch {
		case err == nil:
		case in.Kind == jsonrpc.Response && !errors.As(err, &panicked):
			o.insist(in, err)
		default:
			o.failed(in, err)
		}
	}
}

// Pauses before an answer is delivered again, and how long it is.
const (
	answerAgain       = 10 * time.Millisecond
	latestAnswerAgain = time.Second
	answerTakenWithin = time.Minute
)

// insist begins to deliver an answer again, until the server takes it: its stdin may be full for a while, and the client takes the answer for delivered.
func (o *outbox) insist(in backend.Inbound, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	if o.ended == nil {
		o.ended = make(chan struct{})
	}
	ended, conn := o.ended, o.conn
	o.wait.Go(func() {
		over := time.After(answerTakenWithin)
		for wait := answerAgain; err != nil; wait = min(2*wait, latestAnswerAgain) {
			select {
			case <-time.After(wait):
				err = o.deliver(conn, in)
			case <-over:
				o.failed(in, err)
				return
			case <-ended:
				return
			}
		}
	})
}

// deliver hands over a message. A panic of the server's code becomes the error of that message:
// on the outbox's own goroutine it would end the process.
func (o *outbox) deliver(conn backend.Conn, in backend.Inbound) (err error) {
	defer panics.Catch(&err, cmp.Or(o.log, slog.Default()), "the server's handler of", in.Method)
	return conn.Deliver(in)
}

// stop drops the waiting messages.
func (o *outbox) stop() {
	o.mu.Lock()
	if o.ended != nil && !o.closed {
		close(o.ended)
	}
	o.closed = true
	o.waiting = nil
	o.mu.Unlock()
	o.wait.Wait()
}

// Close implements [backend.Conn]: it drops the waiting messages, and ends the conversation.
func (o *outbox) Close() error {
	o.stop()
	return o.conn.Close()
}

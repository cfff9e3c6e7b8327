package exchange

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// An Untaken counts the clients' answers that a server has not taken, and that are handed over in the background. Its methods may be
// called concurrently.
type Untaken struct {
	Sessions *session.Manager
	Flight   *budget.Flight // counts their bytes; nil: they are not counted
	waiting  atomic.Int64   // answers
}

// MostUntaken bounds the answers of an [Untaken]. Beyond it a client waits until its answer is taken.
const MostUntaken = 1000

// Hold counts a message until done is called. It returns false if there is no room.
func (u *Untaken) Hold(msg *jsonrpc.Message) (done func(), ok bool) {
	size := int64(len(msg.Raw))
	if u.waiting.Add(1) <= MostUntaken && u.Flight.Take(size) {
		return func() { u.waiting.Add(-1); u.Flight.Add(-size) }, true
	}
	u.waiting.Add(-1)
	return nil, false
}

// Send hands a message of an exchange to a session. If the server does not take a response now, Send tries again in the background and
// returns nil: not all clients send an answer again, and many send no other message until this one was accepted, not even a
// cancellation. If there is no room for that, Send waits. failed is called in the background with an error that the message has at last.
func (u *Untaken) Send(ctx context.Context, s *session.Session, msg jsonrpc.Message, x *Exchange, failed func(error)) error {
	header := x.HTTP.Header
	send := func() (again bool, err error) {
		err = s.Send(ctx, msg, header)
		return msg.Kind == jsonrpc.Response && errors.Is(err, session.ErrNotDelivered), err
	}
	again, err := send()
	if !again {
		return err
	}
	done, ok := u.Hold(&msg)
	if !ok {
		return UntilTaken(ctx, send)
	}
	ok = u.Sessions.InBackground(func(closing context.Context) {
		defer done()
		if err := UntilTaken(closing, send); err != nil {
			failed(err)
		}
	})
	if !ok {
		done()
		return err
	}
	return nil
}

// takenWithin bounds how long [UntilTaken] tries.
const takenWithin = time.Minute

// UntilTaken hands over an answer of a client that does not send it again: it calls try until again is false, ctx ends or the time is over.
// A server may not take an answer for a moment, as its stdin is full for example, and waits for it.
func UntilTaken(ctx context.Context, try func() (again bool, err error)) error {
	ctx, stop := context.WithTimeout(ctx, takenWithin)
	defer stop()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		again, err := try()
		if !again {
			return err
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
	}
}

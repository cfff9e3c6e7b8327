package again

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// begins notes that the request is another call made again.
func (a *attachment) begins() {
	a.st.undecided.Store(false)
	a.c.Begins(a.id)
}

// follow says the messages of the other call, to its end.
func (a *attachment) follow(ctx context.Context) {
	a.begins()
	defer a.t.stranded.leave(a.st)
	left := followed(a.call)
	defer left()
	if a.of.number == 0 {
		a.end(a.of.answer)
		return
	}
	over, err := a.t.follow(ctx, a.of, a.call, a.say)
	switch {
	case over:
	case err != nil:
		a.end(nil)
	case left(): // the request has ended before the call, which no other client waits for
		withdraw(a.call, a.c.In(), a.of.number)
	}
}

// followed notes that a request says the messages of a call, until left is called, which reports whether no other request says them. c is nil if
// the call has ended.
func followed(c Call) (left func() (last bool)) {
	if c == nil {
		return func() bool { return false }
	}
	n := &c.Standing().followers
	n.Add(1)
	c.Returned()
	return sync.OnceValue(func() bool { return n.Add(-1) == 0 })
}

// follow calls say for the entries of a stranded call, until say reports that the call is over, or ctx ends. call is nil if it had
// ended. On an error the end of the call is not known.
func (t *Calls) follow(ctx context.Context, of *stranded, call Call, say func(*stream.Entry) (over bool)) (over bool, err error) {
	ready := make(chan struct{}, 1)
	unwatch, err := t.o.Store.Watch(strandedAt{of.s, of.number}.id(), ready)
	if err != nil {
		return false, err
	}
	defer unwatch()
	var by reading.Call
	if call != nil {
		by = call.Writer()
	}
	r := of.s.Streams().Peek(ctx, of.number, by)
	buf := make([]stream.Entry, 0, 16)
	for ctx.Err() == nil {
		entries, err := r.Next(ctx, buf[:0])
		for i := range entries {
			if say(&entries[i]) {
				return true, nil
			}
		}
		switch {
		case len(entries) > 0:
			continue
		case err != nil && ctx.Err() == nil:
			if !errors.Is(err, io.EOF) {
				t.o.Logger.Warn("what an attached call has said cannot be read", "session", of.s.Name(), "error", err)
			}
			return false, err
		}
		select {
		case <-ready:
		case <-ctx.Done():
		}
	}
	return false, nil
}

// say says one entry, and reports whether it is the last.
func (a *attachment) say(e *stream.Entry) (over bool) {
	data := slices.Clone(e.Data)
	method, id := jsonrpc.Field(data, "method"), jsonrpc.Field(data, "id")
	switch {
	case len(data) == 0: // the call was cancelled
	case method == nil:
		a.end(data)
		return true
	case id != nil: // in another session the client could not answer
		if a.of.s == a.c.In() {
			a.c.Say(a.id, data, id)
		}
	case jsonrpc.String(method) == protocol.MethodResumePolicy: // of the other request
	case jsonrpc.String(method) != protocol.MethodProgress:
		a.c.Say(a.id, data, nil)
	case a.token != nil:
		data, _ = jsonrpc.Set(data, a.token, "params", "progressToken")
		a.c.Say(a.id, data, nil)
	}
	if e.Last {
		a.end(nil)
	}
	return e.Last
}

// end answers the request with the response of the other call; nil: it is not known.
func (a *attachment) end(response []byte) {
	data, ok := response, false
	if response != nil {
		data, ok = jsonrpc.Set(response, a.id, "id")
	}
	if !ok {
		data = jsonrpc.AppendError(nil, a.id, errNotKept)
	}
	a.c.Answer(a.id, data)
}

var errNotKept = jsonrpc.Errorf(protocol.CodeOutcomeUnknown, protocol.TextOutcomeUnknown+": this call was made again after its connection had broken, and what became of it is not kept")

// withdraw cancels a call, as the client that made its request again, in the session s, no longer wants an answer. It does nothing if the session has ended, or
// the stream of the call is read.
func withdraw(c Call, s Session, number uint64) {
	if !s.IsClosed() && !c.In().Streams().IsRead(number) {
		c.Withdraw("its client cancelled the request that was made again")
	}
}

package again

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast/internal/likeness"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file attaches a request to a stranded call that it makes again. The request begins a call of its own, which no
// backend gets: it says the messages of the first call, under its own progress token and id. So it has a stream, is resumed,
// cancelled, and passes to an heir, like any other call, over every transport.

// strandsWithin is how long a request waits if a call in flight is like it, and that call's client seems to be connected: the network
// may tell of the end of the connection after the client has made the request again.
const strandsWithin = 50 * time.Millisecond

// mostPause bounds how long a request waits before it looks again.
const mostPause = 10 * time.Millisecond

// settlesWithin is how long a request waits if the client of the call like it is known to have left.
const settlesWithin = 2 * time.Second

// An attachment is a call that says the messages of another call, or may do so.
type attachment struct {
	t     *Calls
	c     Call
	st    *Standing // of c
	id    []byte    // of the request
	came  time.Time // when it came
	safe  bool      // the tool may run twice: a model that asks again gets a new call
	token []byte    // the request's progress token, or nil
	// patience is how long the request waits, at the least, since a twin may be stranded soon.
	patience time.Duration
	beside
	of   *stranded
	call Call // the other call; nil if it has ended

	withdrawing sync.Mutex // held to set of and call once the request was cancelled
}

// newAttachment returns the attachment of a request; nil: no call that is known here is like it.
func (t *Calls) newAttachment(c Call, m *jsonrpc.Message) *attachment {
	st := c.Standing()
	if st.like.IsZero() {
		return nil
	}
	if st.beside == nil && st.flight == nil && t.stranded.n.Load() == 0 && (t.peers == nil || t.hints.Kept() == 0 && t.far.Kept() == 0) { // as a rule
		st.undecided.Store(false)
		return nil
	}
	a := &attachment{t: t, c: c, st: st, id: m.ID, came: time.Now(), safe: c.IsSafe(jsonrpc.String(jsonrpc.Field(m.Params, "name")))}
	if st.beside != nil {
		a.beside, st.beside = *st.beside, nil // else the call would keep it in memory
	}
	return a
}

// Attach answers a request with the messages of another call, if it is that call made again. It is false if the caller has to
// deliver the request. header and failed are for [Call].Deliver, if the request turns out later to be a new one.
func (t *Calls) Attach(ctx context.Context, c Call, m *jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error) bool {
	a := t.newAttachment(c, m)
	if a == nil {
		return false
	}
	st := a.st
	if a.isLate() {
		return true
	}
	t.takeOff(st, a.safe)
	alike := len(a.twins) > 0
	if !slices.ContainsFunc(a.twins, func(other twin) bool { return !a.isAside(other) }) {
		a.twins = nil
	}
	found := a.find() // also if its twin was settled, and stranded, just now
	far := !found && a.isFar()
	early := !found && !far && len(a.twins) == 0 && a.isEarly()
	if !found && !far && len(a.twins) == 0 && !early {
		ended := alike && a.ends() // the request that has taken the call may be this one made again
		st.undecided.Store(false)
		return ended
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	if !c.Attach(m.ID, stop) { // the request was cancelled, or all calls end now
		stop()
		a.cancelled(found, m)
		return true
	}
	msg := *m
	if found {
		st.undecided.Store(false)
	}
	go func() {
		defer t.o.Work.Done()
		defer stop()
		a.token = protocol.ProgressToken(msg.Params)
		if early {
			a.awaitFar(ctx)
		}
		alone := !found && (len(a.twins) == 0 || !a.await(ctx))
		if st.IsLate() {
			return
		}
		if alone && ctx.Err() == nil {
			a.twins = nil
			if (far || a.isFar()) && a.borrow(ctx, &msg) {
				return
			}
		}
		if alone {
			st.undecided.Store(false)
			if ctx.Err() != nil {
				a.cancelled(false, &msg)
				return
			}
			c.Deliver(context.WithoutCancel(ctx), msg, header, failed)
			return
		}
		a.twins = nil
		a.follow(ctx)
	}()
	return true
}

// isLate ends the request if its client has left and another call is like it, and reports whether it has. The client has made the request
// again, or will: if this one began, too, the tool would run twice.
func (a *attachment) isLate() bool {
	t := a.t
	if !a.st.undecided.Load() || len(a.twins) == 0 && t.stranded.n.Load() == 0 { // if it is decided, the request came from a node that was lost
		return false
	}
	if len(a.twins) == 0 {
		s := a.c.In()
		keys := keysIn(&a.st.like, s)
		if !t.stranded.has(&keys, s, a.c.Number()) {
			return false
		}
	}
	return a.ends()
}

// isEarly reports whether the client has left before the request begins, and may have made it again at another node that has not told of it yet.
func (a *attachment) isEarly() bool {
	conn := a.st.conn
	return a.st.flight != nil && !a.safe && a.c.In().Modern() != "" && conn != nil && !conn.IsFar() && !a.t.peers.Alone() && a.hasLeft(nil)
}

// awaitFar waits for another node to tell of a call like the request.
func (a *attachment) awaitFar(ctx context.Context) {
	began := time.Now()
	for ctx.Err() == nil && time.Since(began) < strandsWithin && !a.isFar() {
		pause(ctx, mostPause)
	}
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// whenLeft calls do, once, when the client of the request has left, unless stop was called before. stop reports whether do was called.
func (a *attachment) whenLeft(do func()) (stop func() (did bool)) {
	ctx, over := context.WithCancel(context.Background())
	left := make(chan bool, 1)
	go func() {
		defer close(left)
		for {
			switch pause(ctx, mostPause); {
			case ctx.Err() != nil:
				return
			case a.hasLeft(a.st.back.Load()):
				do()
				left <- true
				return
			}
		}
	}()
	return func() bool {
		over()
		return <-left
	}
}

// ends ends the request, which has not begun, if its client has left and has not come back since, and reports whether it has.
func (a *attachment) ends() bool {
	back := a.st.back.Load()
	if !a.hasLeft(back) || !a.st.back.CompareAndSwap(back, &gone) {
		return false
	}
	a.t.dropLate(a.c.In(), a.c.Number())
	a.c.Answer(a.id, jsonrpc.AppendError(nil, a.id, errLate))
	return true
}

// errLate ends a request that its client had left before it began. No client waits for it.
var errLate = jsonrpc.Errorf(jsonrpc.CodeServer, "not delivered: its client had left before it began, and there is a call like it; make the request again")

// hasLeft reports whether the client of the request has left, as far as is known. back is the connection on which the client has come back for it, or nil.
func (a *attachment) hasLeft(back *Connection) bool {
	switch conn := a.st.conn; {
	case a.c.MayLeave():
		return false
	case back != nil:
		return *back != nil && (*back).HasLeft()
	default:
		return conn != nil && conn.HasLeft() || a.t.stranded.knows(a.c.In(), a.c.Number())
	}
}

// isAside reports whether the request need not wait for a twin: the twin was answered, or is another client's in a carrier, and its
// connection is settled. So its answer was read, or it is stranded by now, or its client is connected as far as is known.
func (a *attachment) isAside(other twin) bool {
	return (other.call == nil || !other.like.IsNamed(&a.st.like)) && !a.mayStrand(other) && !a.t.isUnsettled(other)
}

// mayStrand reports whether a twin in flight may be stranded soon, though its client seems to be connected. In a carrier, which has many clients, that is so only if it is lent.
func (a *attachment) mayStrand(other twin) bool {
	return other.call != nil && (a.c.In().Modern() == "" || a.t.stranded.isLent(other.call.Standing()))
}

// find takes the stranded call that the request makes again, and reports whether there is one.
func (a *attachment) find() bool {
	if a.t.stranded.n.Load() == 0 { // as a rule
		return false
	}
	for _, other := range a.t.unwanted.before(a) {
		other.withdrawFound() // the client wants no answer of that call
	}
	reason, ok := a.take()
	if ok {
		a.c.Attached(reason, a.of.s.Name())
	}
	return ok
}

// take is find, except that the log and observers are not told.
func (a *attachment) take() (reason likeness.Reason, ok bool) {
	if a.t.stranded.n.Load() == 0 { // as a rule
		return 0, false
	}
	of, call, reason := a.t.take(keysIn(&a.st.like, a.c.In()), a.safe, a.came, a.c)
	if of == nil {
		return 0, false
	}
	a.of, a.call = of, call
	return reason, true
}

// await waits until a call like this one is stranded, and reports whether it has found it. A twin with the same id of the host's own need not be stranded: it is the same call.
// If ctx ends first it may be false too early: see [attachment.awaitUnwanted].
func (a *attachment) await(ctx context.Context) bool {
	if a.isTwin() {
		return true
	}
	if slices.ContainsFunc(a.twins, a.mayStrand) {
		a.patience = strandsWithin
	}
	for wait := time.Millisecond; a.mayWait(); wait = min(2*wait, mostPause) {
		pause(ctx, wait)
		switch {
		case ctx.Err() != nil, a.ends():
			return false
		case a.isTwin(), a.find():
			return true
		}
	}
	// The twin may have been settled, and stranded, since the last look.
	found := a.find()
	if !found {
		a.ends() // the request that has taken the call may be this one made again
	}
	return found
}

// isTwin makes the request one with its twin, if the twin is in flight and the host gives both the same id, and reports whether it has.
func (a *attachment) isTwin() bool {
	if len(a.twins) == 0 {
		return false
	}
	call := a.twins[0].call
	if call == nil || !a.twins[0].like.IsNamed(&a.st.like) {
		return false
	}
	number := call.Stored()
	if number == 0 || !a.t.stranded.follow(a.st, call.Standing()) {
		return false
	}
	s := a.c.In()
	a.of, a.call = &stranded{s: s, number: number}, call
	a.c.Attached(likeness.Named, s.Name())
	return true
}

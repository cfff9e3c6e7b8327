package exchange

import (
	"context"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/limit"
	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/watch"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A Starter has the calls of exchanges begin: at once, or when it is their turn.
type Starter struct {
	Sessions  *session.Manager
	Nodes     *placement.Nodes // nil where there is no other node
	Watched   *watch.Connections
	Draining  <-chan struct{}
	Observers observe.Observers
}

// Once says under what name requests run once, however often they come.
type Once struct {
	Key   string // the client's idempotency key, or ""
	Name  string // the name that the node gave that forwards the requests, or ""
	Again bool   // they may have come before, under that name or, before their session moved, without it

	Admitted bool        // limits have let them begin
	Pass     *limit.Pass // and this is what they take; nil: nothing
}

// Begun is the call that requests have begun.
type Begun struct {
	Session *session.Session
	Call    *session.Call // which is to be delivered; nil if the same requests began it before
	Number  uint64        // of its stream; 0 while it is light
	Again   bool          // the requests may have run before, on a node that was lost
}

// Begin begins the call of the requests among msgs, or finds the one that the same requests have begun before. from says where
// they come from. The errors are those of [session.Session.Begin] and [session.Session.BeginOnce].
func Begin(s *session.Session, msgs []jsonrpc.Message, light bool, once Once, from session.Origin) (Begun, error) {
	switch {
	case once.Key != "":
		call, known, err := s.BeginOnce(session.Once{Key: once.Key}, joined(msgs), msgs, from)
		return begunOf(s, call, known, err)
	case once.Name != "" && (!light || s.SingleStream()):
		call, known, err := s.BeginOnce(session.Once{Name: once.Name}, joined(msgs), msgs, from)
		if !once.Again || !errors.Is(err, session.ErrDuplicate) {
			b, err := begunOf(s, call, known, err)
			// It may have been light before, without the name: the node that was lost can have
			// known a tool to be safe that is not known here.
			b.Again = once.Again
			return b, err
		}
		if s.SingleStream() { // whose calls have no streams: its client reads the one that the session has
			return Begun{Session: s}, nil
		}
		fallthrough // who has taken the session over makes it again already
	case once.Name != "" && once.Again:
		if number := inFlight(s, from.Guest, msgs); number != 0 {
			return Begun{Session: s, Number: number}, nil
		}
	}
	call, err := s.Begin(msgs, light, from)
	if err != nil {
		return Begun{}, err
	}
	return Begun{Session: s, Call: call, Number: call.Number(), Again: once.Again}, nil
}

func begunOf(s *session.Session, call *session.Call, known *session.ExistingCall, err error) (Begun, error) {
	switch {
	case err != nil:
		return Begun{}, err
	case call == nil:
		return Begun{Session: known.Session, Number: known.Number}, nil
	}
	return Begun{Session: s, Call: call, Number: call.Number()}, nil
}

// inFlight returns the number of the stream of the call that the first of the requests
// is part of, which is stored from now on; 0 if none is in flight. guest is as in [session.Origin].
func inFlight(s *session.Session, guest stream.SessionKey, msgs []jsonrpc.Message) uint64 {
	for i := range msgs {
		if msgs[i].Kind != jsonrpc.Request {
			continue
		}
		if c := s.CallFrom(guest, msgs[i].ID); c != nil {
			c.Promote()
			return c.Number()
		}
		return 0
	}
	return 0
}

// Deliver hands the requests of a call that has begun just now to the backend.
func (b *Begun) Deliver(ctx context.Context, msgs []jsonrpc.Message, header http.Header) {
	switch {
	case b.Call == nil:
	case b.Again:
		b.Call.Redeliver(ctx, msgs, header)
	default:
		b.Call.Deliver(ctx, msgs, header)
	}
}

// joined returns what makes two bodies the same: their messages.
func joined(msgs []jsonrpc.Message) []byte {
	if len(msgs) == 1 {
		return msgs[0].Raw
	}
	var all []byte
	for i := range msgs {
		all = append(append(all, msgs[i].Raw...), '\n') // no message has a line break in it
	}
	return all
}

// brokenWithin is how long a request that comes again waits for the end of the connection that it first came on: the network may
// tell of that later than its client, which has made the request again.
const brokenWithin = time.Second

// Attach finds the call of a request that its client makes once more, under the same id, because the connection of the first one
// has broken: some HTTP clients do that by themselves, for a POST, too. The error is fail unless that is so. ended says that the call
// has ended since, so that the id may be used.
func (st *Starter) Attach(x *Exchange, guest stream.SessionKey, fail error) (b Begun, ended bool, err error) {
	if len(x.Msgs) != 1 || x.Muxed {
		return Begun{}, false, fail
	}
	c := x.Session.CallFrom(guest, x.Msgs[0].ID)
	if c == nil {
		return Begun{}, true, fail
	}
	conn := st.Origin(x).Conn
	for end := time.Now().Add(brokenWithin); ; time.Sleep(brokenWithin / 100) {
		same, lost := c.Again(&x.Msgs[0], conn)
		switch {
		case x.Session.CallFrom(guest, x.Msgs[0].ID) != c:
			return Begun{}, true, fail
		case same && lost:
			return Begun{Session: x.Session, Number: c.Number()}, false, nil
		case !same, time.Now().After(end), x.HTTP.Context().Err() != nil:
			return Begun{}, false, fail
		}
	}
}

// BeginModern begins the call of a modern request, or finds the one that was begun under the same idempotency key.
func (st *Starter) BeginModern(x *Exchange, from session.Origin) (Begun, error) {
	if x.Once.Key != "" {
		call, known, err := x.Session.BeginOnce(session.Once{Key: x.Once.Key, Client: x.Client(st.Sessions)}, []byte(modern.SumOf(&x.Msgs[0])), x.Msgs, from)
		return begunOf(x.Session, call, known, err)
	}
	// Who can come back for what is not safe to make again is told how before it runs.
	call, err := x.Session.Begin(x.Msgs, !x.Modern.Resumes || protocol.RetrySafe(x.Msgs[0].Method, nil), from)
	return begunOf(x.Session, call, nil, err)
}

// What follows is for calls that a limit does not let begin: they wait for their turn. docs/limits.md.

// Origin says where the requests of an exchange come from.
func (st *Starter) Origin(x *Exchange) session.Origin {
	from := session.Origin{Header: x.HTTP.Header, Address: x.HTTP.RemoteAddr, Pass: x.Once.Pass, Admitted: x.Once.Admitted}
	if x.Modern != nil {
		from.ID = x.Modern.ID
	}
	switch below := st.Watched.At(x.HTTP); {
	case x.Muxed:
	case below != nil:
		from.Conn = below
	case x.From != nil && x.From.Node != "" && !x.From.Stays:
		from.Conn = st.Nodes.ClientOf(x.From)
	}
	return from
}

// AdmitAlone has an exchange begin that stands alone, if limits let it, or when it is its turn.
func (st *Starter) AdmitAlone(x *Exchange) (err error) {
	x.Once.Pass, err = st.Sessions.Gate.Alone(x.Principal, x.HTTP.RemoteAddr, x.Msgs)
	if full, ok := Waits(err, x.Msgs); ok {
		ctx, over := st.Sessions.AwaitOnce(x.HTTP.Context(), x.Client(st.Sessions), x.Once.Key)
		defer over()
		x.Once.Pass, err = st.awaitExchange(ctx, x, full)
	}
	x.Once.Admitted = err == nil
	return err
}

// Start begins the call of an exchange, at once or in its turn.
func (st *Starter) Start(x *Exchange, msgs []jsonrpc.Message, light bool) (Begun, error) {
	b, err := Begin(x.Session, msgs, light, x.Once, st.Origin(x))
	if err != nil {
		return st.BeginInTurn(x, msgs, light, err)
	}
	return b, nil
}

// BeginInTurn begins the call of an exchange that err has refused, once it is its turn. The error is err if it does not wait.
//
//go:noinline
func (st *Starter) BeginInTurn(x *Exchange, msgs []jsonrpc.Message, light bool, err error) (b Begun, _ error) {
	full, ok := Waits(err, msgs)
	if !ok {
		return b, err
	}
	ctx, over := x.Session.AwaitTurn(x.HTTP.Context(), msgs[0].ID)
	defer over()
	from := st.Origin(x)
	if from.Pass, err = st.awaitExchange(ctx, x, full); err != nil {
		return b, err
	}
	defer from.Pass.Release() // what the call has not taken
	return Begin(x.Session, msgs, light, x.Once, from)
}

// BeginModernInTurn is beginInTurn for a modern request.
//
//go:noinline
func (st *Starter) BeginModernInTurn(x *Exchange, err error) (b Begun, _ error) {
	full, ok := Waits(err, x.Msgs)
	if !ok {
		return b, err
	}
	ctx, over := st.Sessions.AwaitOnce(x.HTTP.Context(), x.Client(st.Sessions), x.Once.Key)
	defer over()
	from := st.Origin(x)
	if from.Pass, err = st.awaitExchange(ctx, x, full); err != nil {
		return b, err
	}
	defer from.Pass.Release() // what the call has not taken
	if b, err = st.BeginModern(x, from); err == nil && b.Call != nil && errors.Is(context.Cause(ctx), session.ErrCancelled) {
		b.Call.Withdraw("the client cancelled the request") // just now
	}
	return b, err
}

// awaitExchange waits for the turn of an exchange that full has refused, until ctx ends, or its client leaves another node.
func (st *Starter) awaitExchange(ctx context.Context, x *Exchange, full *limit.Refusal) (*limit.Pass, error) {
	if x.From != nil && x.Once.Name != "" {
		watched, attended := st.Nodes.WatchRequest(ctx, x.Once.Name)
		defer attended()
		ctx = watched
	}
	return st.AwaitTurn(ctx, full.Queue())
}

// Waits returns the refusal that err is, if it is one of a call that may wait: not of a batch.
func Waits(err error, msgs []jsonrpc.Message) (*limit.Refusal, bool) {
	var full *limit.Refusal
	return full, len(msgs) == 1 && errors.As(err, &full) && full.Waits()
}

// AwaitTurn waits until a call may begin. The error is the cause of ctx's end, or a refusal.
func (st *Starter) AwaitTurn(ctx context.Context, turn limit.Turn) (*limit.Pass, error) {
	began := time.Now()
	pass, err := turn.Wait(ctx, st.Draining)
	if st.Observers != nil {
		st.Observers.Happened(observe.Waited{Took: time.Since(began), Began: err == nil})
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return pass, err
}

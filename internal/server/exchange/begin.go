package exchange

import (
	"context"
	"errors"
	"net/http"

	"holdfast/internal/limit"
	"holdfast/internal/observe"
	"holdfast/internal/placement"
	"holdfast/internal/protocol"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/watch"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// A Starter begins the calls of exchanges, at once or when it is their turn.
type Starter struct {
	Sessions  *session.Manager
	Nodes     *placement.Nodes // nil if this node is alone
	Watched   *watch.Connections
	Draining  <-chan struct{}
	Observers observe.Observers
}

// Once is the name under which requests run once, however often they come.
type Once struct {
	Key   string // the client's idempotency key, or ""
	Name  string // the name from the node that forwards the requests, or ""
	Again bool   // the requests may have come before, under that name or, before their session moved, without it

	Admitted bool        // limits have let them begin
	Pass     *limit.Pass // their share of the limits; nil: none
}

// Begun is a call that requests have begun.
type Begun struct {
	Session *session.Session
	Call    *session.Call // to deliver; nil if the same requests began the call before
	Number  uint64        // of its stream; 0 while it is light
	Again   bool          // the requests may have run before, on a node that was lost
}

// Begin begins a call for the requests among msgs, or finds the call that the same requests have begun before. from is their
// origin. The errors are those of [session.Session.Begin] and [session.Session.BeginOnce].
func Begin(s *session.Session, msgs []jsonrpc.Message, light bool, once Once, from session.Origin) (Begun, error) {
	switch {
	case once.Key != "":
		call, known, err := s.BeginOnce(session.Once{Key: once.Key}, joined(msgs), msgs, from)
		return begunOf(s, call, known, err)
	case once.Name != "" && (!light || s.SingleStream()):
		call, known, err := s.BeginOnce(session.Once{Name: once.Name}, joined(msgs), msgs, from)
		if !once.Again || !errors.Is(err, session.ErrDuplicate) {
			b, err := begunOf(s, call, known, err)
			// The call may have been light before, and so without the name: the lost node may
			// have known that the tool is safe, which this node does not know.
			b.Again = once.Again
			return b, err
		}
		if s.SingleStream() { // its calls have no streams of their own: the client reads the session's
			return Begun{Session: s}, nil
		}
		fallthrough // the takeover of the session makes the call again already
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

// Deliver hands the requests of a call that has just begun to the backend.
func (b *Begun) Deliver(ctx context.Context, msgs []jsonrpc.Message, header http.Header) {
	switch {
	case b.Call == nil:
	case b.Again:
		b.Call.Redeliver(ctx, msgs, header)
	default:
		b.Call.Deliver(ctx, msgs, header)
	}
}

// joined returns the messages as one text, by which two bodies are compared.
func joined(msgs []jsonrpc.Message) []byte {
	if len(msgs) == 1 {
		return msgs[0].Raw
	}
	var all []byte
	for i := range msgs {
		all = append(append(all, msgs[i].Raw...), '\n') // messages have no line breaks
	}
	return all
}

// BeginModern begins the call of a modern request, or finds the call that was begun under the same idempotency key.
func (st *Starter) BeginModern(x *Exchange, from session.Origin) (Begun, error) {
	if x.Once.Key != "" {
		call, known, err := x.Session.BeginOnce(session.Once{Key: x.Once.Key, Client: x.Client(st.Sessions)}, []byte(modern.SumOf(&x.Msgs[0])), x.Msgs, from)
		return begunOf(x.Session, call, known, err)
	}
	// A call that is not safe to repeat, of a client that resumes, is stored: the client gets its token before the call runs.
	call, err := x.Session.Begin(x.Msgs, !x.Modern.Resumes || protocol.RetrySafe(x.Msgs[0].Method, nil), from)
	return begunOf(x.Session, call, nil, err)
}

// The following is for calls that wait for their turn, as a limit does not let them begin. docs/limits.md.

// Origin returns the origin of an exchange's requests.
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

// AdmitAlone waits until limits admit an exchange that stands alone, and sets x.Once.Pass and x.Once.Admitted.
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

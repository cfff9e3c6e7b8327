// Package again is how a client that has nothing but an equal request comes back to a call. It knows which calls of a node are in flight, were
// answered last, or are stranded: those whose clients are known to have lost their connections before they had the answer, and have not
// come back. A request that is a stranded call made again is attached to it, also where another node knows that call. What makes two requests
// one is internal/likeness's, and what a call is, the session's: see [Call] and [Session].
// See docs/decisions/0053-calls-that-come-again.md.
package again

import (
	"context"
	"hash/maphash"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/departure"
	"holdfast/internal/likeness"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// Options are what the calls of a node need of it.
type Options struct {
	// AttachWithin is for how long after its connection has broken a call is attached to that its client's model asks for again; 0 or less: not at all.
	AttachWithin time.Duration
	Keep         time.Duration // for how long at the most a stranded call is known that has ended
	CallIDs      []string      // see [likeness.Of]
	Store        stream.Store
	Timeout      time.Duration // of a notice to another node that is waited for
	Logger       *slog.Logger
	Work         *departure.Work
}

// Peers are the other nodes. Their methods may be called concurrently.
type Peers interface {
	// Strand tells all nodes that this one knows a stranded call, by a name: for [Calls.Hint] there. It does not wait.
	Strand(keys []byte, name uint64)
	// Unstrand tells them that a node, this one if it is "", does not know it any more: for [Calls.Unhint] there. It does not wait.
	Unstrand(node string, keys []byte, name uint64)
	// Alone reports whether there are none.
	Alone() bool
	// Fly tells them of calls in flight: for [Calls.HintFlights] there. It does not wait.
	Fly(all []Flight)
	// Borrow asks a node for a stranded call: query is for [Calls.Lend] there. It returns what that writes; nil: nothing.
	Borrow(ctx context.Context, node string, query []byte) (io.ReadCloser, error)
}

// A Session is one of the node. Two of its values are equal if they are one session. The lock of [strandings] may be held when Call, IsClosed
// and Streams are called.
type Session interface {
	Name() string   // its key in the store
	Modern() string // the revision of the requests that it carries, or ""
	IsAnonymous() bool
	IsClosed() bool
	Streams() *reading.Streams
	// Call returns the call whose stream is still written, or nil.
	Call(number uint64) Call
	// Places returns where two calls of the session's client may be one: in the same conversation, and if they have one id of the host's.
	Places() (talk, client likeness.Digest)
}

// A Call is one of a session. Two of its values are equal if they are one call.
type Call interface {
	Standing() *Standing
	In() Session
	Number() uint64 // of its stream; 0: it has none
	// Stored gives a call in flight a stream, if it has none, and returns the number; 0: it has ended.
	Stored() uint64
	Writer() reading.Call
	Returned()                         // its client has returned to it
	Withdraw(reason string) (one bool) // its client wants no answer
	// AwaitReturn has it end, for a reason, unless its client returns within a time.
	AwaitReturn(within time.Duration, reason string)
	request
}

// A request is what a call is of which it is not known yet whether it begins. id is that of the request, as its client spells it.
type request interface {
	// IsSafe reports whether it may run twice, as it calls a tool that is safe to call again.
	IsSafe(tool string) bool
	// MayLeave reports whether its client need not stay for the answer, and makes no other request in its place.
	MayLeave() bool
	// Attached says in the log, and to observers, that it is taken for another call made again.
	Attached(reason likeness.Reason, to string)
	// Attach has stop called at its end. It is false if that has come; else work has begun, as with [Options].Begin.
	Attach(id []byte, stop func()) bool
	// Deliver hands it to the backend, and forgets that it was attached. header and failed are those of [Calls.Attach].
	Deliver(ctx context.Context, m jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error)
	// Begins notes that it is as good as delivered: it may pass to an heir, and the session's next owner does not make it again.
	Begins(id []byte)
	// Say takes a message of the call that it is made again of. asks is the id by which that call asks its client something, in the
	// same session; nil: it does not.
	Say(id, data, asks []byte)
	// Answer takes the response, if there is none yet.
	Answer(id, response []byte)
}

// A Connection is one that can be asked for its client.
type Connection interface {
	// Unsettled reports whether the client has left, as far as the network knows, and may turn out not to have read all that was written.
	// It may ask another node.
	Unsettled() bool
	// HasLeft reports whether the client has left, as far as the network knows. It may ask another node.
	HasLeft() bool
	// IsFar reports whether the client is connected to another node.
	IsFar() bool
	// Wrote has a source be told if the client turns out to have left with some of what was written unread.
	Wrote(source Source)
}

// A Source is where what was written to a connection came from.
type Source = interface {
	// Disconnected is called when the client at an address has left with bytes unread that were written after a time.
	Disconnected(from string, since time.Time)
}

// Calls are those of a node that may come again. Its methods may be called concurrently. The locks that it has are taken last.
type Calls struct {
	o        Options
	peers    Peers // nil: there are no other nodes
	answered answeredRing
	stranded strandings
	flying   flying
	hints    likeness.Hints // of stranded calls of other nodes
	far      likeness.Hints // of their calls in flight
	loans    sync.Map       // each a *loan, by its name
}

// New returns the calls of a node.
func New(o Options) *Calls { return &Calls{o: o} }

// On sets the other nodes. It is called once, before there are calls.
func (t *Calls) On(peers Peers) { t.peers = peers }

// Counts are how much is known of other nodes' calls, and known to them.
type Counts struct {
	Told, Kept int // keys of stranded calls: all that other nodes have told, and those that are kept
	Far, Near  int // keys of calls in flight that are kept: on other nodes, and that they know of this one
}

// Counts returns how much is known.
func (t *Calls) Counts() Counts {
	return Counts{Told: t.hints.Told(), Kept: t.hints.Kept(), Far: t.far.Kept(), Near: t.flying.kept()}
}

// sums is what sums are seeded with: nobody can find two requests with one sum.
var sums = maphash.MakeSeed()

// SumOf returns a number that tells a request from others with its id.
func SumOf(m *jsonrpc.Message) uint64 {
	return maphash.Bytes(sums, m.Params) ^ maphash.String(sums, m.Method)
}

// idSum stands for an id of a request, in a likeness.
func idSum(id []byte) uint64 { return maphash.Bytes(sums, jsonrpc.Key(id)) * 31 }

// keysIn returns what calls like one in a session are found by, where its client may find them.
func keysIn(l *likeness.Likeness, s Session) likeness.Keys { return l.KeysAt(s.Places()) }

// resetWithin is how long after a write a client resets its connection, because it has left with bytes unread. Later there are other
// reasons for that.
const resetWithin = time.Second

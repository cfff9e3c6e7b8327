// Package again lets a client come back to a call with nothing but an equal request. It knows which calls of a node are in flight, were
// answered last, or are stranded: their clients are known to have lost their connections before they had the answer, and have not come back. A
// request that is a stranded call made again is attached to that call, also if another node knows the call. Package internal/likeness tells
// whether two requests are one; calls are those of sessions: see [Call] and [Session]. See docs/decisions/0053-calls-that-come-again.md.
package again

import (
	"context"
	"hash/maphash"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"holdfast/internal/handover"
	"holdfast/internal/likeness"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// Options are the settings and the parts of a node that its calls need.
type Options struct {
	// AttachWithin is how long after its connection has broken a call is found by a request with which its client's model asks for it again; 0 or less: never.
	AttachWithin time.Duration
	Keep         time.Duration // how long, at the most, a stranded call that has ended is known
	CallIDs      []string      // see [likeness.Of]
	Store        stream.Store
	Timeout      time.Duration // of a notice to another node, if the caller waits for it
	Logger       *slog.Logger
	Work         *handover.Work
}

// Peers are the other nodes. Their methods may be called concurrently.
type Peers interface {
	// Strand tells all nodes that this one knows a stranded call, by a name: for [Calls.Hint] there. It does not wait.
	Strand(keys []byte, name uint64)
	// Unstrand tells all nodes that a node ("": this one) no longer knows the call: for [Calls.Unhint] there. It does not wait.
	Unstrand(node string, keys []byte, name uint64)
	// Alone reports whether there are no other nodes.
	Alone() bool
	// Fly tells all nodes of calls in flight: for [Calls.HintFlights] there. It does not wait.
	Fly(all []Flight)
	// Borrow asks a node for a stranded call: query is for [Calls.Lend] there. It returns the frames that Lend writes; nil: it writes none.
	Borrow(ctx context.Context, node string, query []byte) (io.ReadCloser, error)
}

// A Session is a session of the node. Two values are equal if they are the same session. The lock of [strandings] may be held when Call, IsClosed and Streams are called.
type Session interface {
	Name() string   // its key in the store
	Modern() string // the revision of the requests that it carries, or ""
	IsAnonymous() bool
	IsClosed() bool
	Streams() *reading.Streams
	// Call returns the call of a stream that is still written, or nil.
	Call(number uint64) Call
	// Places returns the places in which two calls of the session's client may be one: talk, its conversation, and client, for calls with one id of the host's.
	Places() (talk, client likeness.Digest)
}

// A Call is a call of a session. Two values are equal if they are the same call.
type Call interface {
	Standing() *Standing
	In() Session
	Number() uint64 // of the call's stream; 0: it has none
	// Stored gives a call in flight a stream, if it has none, and returns the number; 0: the call has ended.
	Stored() uint64
	Writer() reading.Call
	Returned()                         // the client has returned to the call
	Withdraw(reason string) (one bool) // ends the call, as its client wants no answer
	// AwaitReturn ends the call, for a reason, unless its client returns within a time.
	AwaitReturn(within time.Duration, reason string)
	request
}

// A request is a call before it is known whether it begins, or is attached to another. id is the id of the request, as its client spells it.
type request interface {
	// IsSafe reports whether the request may run twice, as it calls a tool that is safe to call again.
	IsSafe(tool string) bool
	// MayLeave reports whether the client need not stay for the answer, and does not make the request again if it leaves.
	MayLeave() bool
	// Attached says in the log, and to observers, that the request is taken for another call made again.
	Attached(reason likeness.Reason, to string)
	// Attach has stop called when the request ends. It is false if the request has ended; else it has started [Options].Work.
	Attach(id []byte, stop func()) bool
	// Deliver hands the request to the backend, and forgets that it was attached. header and failed are those of [Calls.Attach].
	Deliver(ctx context.Context, m jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error)
	// Begins notes that the request counts as delivered: it may pass to an heir, and the session's next owner does not make it again.
	Begins(id []byte)
	// Say takes a message of the call that the request is attached to. asks is the id of the message, if it asks the client
	// something, in the same session; else nil.
	Say(id, data, asks []byte)
	// Answer answers the request, if it has no response yet.
	Answer(id, response []byte)
}

// A Connection can be asked about its client.
type Connection interface {
	// Unsettled reports whether the client has left, as far as the network knows, and may turn out not to have read all bytes that were written. It may ask another node.
	Unsettled() bool
	// HasLeft reports whether the client has left, as far as the network knows. It may ask another node.
	HasLeft() bool
	// IsFar reports whether the client is connected to another node.
	IsFar() bool
	// Wrote has the source told if the client turns out to have left with some of the written bytes unread.
	Wrote(source Source)
}

// A Source is the origin of bytes that were written to a connection.
type Source = interface {
	// Disconnected is called when the client at an address has left with bytes unread that were written after a time.
	Disconnected(from string, since time.Time)
}

// Calls are the calls of a node that may come again. The methods may be called concurrently. The locks are taken after all others.
type Calls struct {
	o        Options
	peers    Peers // nil: there are no other nodes
	answered answeredRing
	stranded strandings
	unwanted unwanted
	flying   flying
	hints    likeness.Hints // of stranded calls of other nodes
	far      likeness.Hints // of their calls in flight
	loans    sync.Map       // each a *loan, by its name
}

// New returns the calls of a node.
func New(o Options) *Calls { return &Calls{o: o} }

// On sets the other nodes. It is called once, before there are calls.
func (t *Calls) On(peers Peers) { t.peers = peers }

// Counts are counts of keys: of other nodes' calls that are known here, and of calls here that other nodes know.
type Counts struct {
	Told, Kept int // keys of stranded calls: all that other nodes have told, and those that are kept
	Far, Near  int // keys of calls in flight that are kept: on other nodes, and that they know of this one
}

// Counts returns the counts of keys.
func (t *Calls) Counts() Counts {
	return Counts{Told: t.hints.Told(), Kept: t.hints.Kept(), Far: t.far.Kept(), Near: t.flying.kept()}
}

// sums is the seed of sums: no client can find two requests with one sum.
var sums = maphash.MakeSeed()

// SumOf returns a hash of a request's method and params, which tells it from other requests with its id.
func SumOf(m *jsonrpc.Message) uint64 {
	return maphash.Bytes(sums, m.Params) ^ maphash.String(sums, m.Method)
}

// idSum returns the part of a likeness's sum for the id of a request.
func idSum(id []byte) uint64 { return maphash.Bytes(sums, jsonrpc.Key(id)) * 31 }

// keysIn returns the keys of a likeness in the places where the session's client may find calls.
func keysIn(l *likeness.Likeness, s Session) likeness.Keys { return l.KeysAt(s.Places()) }

// resetWithin is how long after a write a client resets its connection, because it has left with bytes unread. Later resets have other reasons.
const resetWithin = time.Second

// Package shared is the contract of a store that several nodes use at the same time: of the
// engines that outlive a process.
//
// A [Store] is durable: it outlives the nodes that write to it, and one node takes
// over the sessions of another. It obeys the rules of package
// stream, and these. Package streamtest has a test for each.
//
//  12. A record may be a note: opaque bytes that are kept beside a stream and are no
//     entry of it. A newer note replaces an older one. Notes are appended together with
//     entries, as a whole or not at all, before the last entry of the stream.
//  13. [Store.Acquire] gives the session a newer epoch. Once it has returned, no
//     older lease can append, and every append that was accepted under one is there.
//     If several nodes acquire a session with the result of the same [Store.Lookup], one
//     succeeds, and the others get [stream.ErrConflict].
//  14. Acquire returns all that was appended: the note and the bounds of each stream, and
//     the data that the session was created with. An ended stream has no note after its
//     last entry has expired.
//  15. The store repeats an append of unknown outcome, until its
//     context is done; only then it returns [stream.ErrUnavailable]. After that, and after
//     [stream.ErrFenced], the lease is lost: nothing can be appended under it, and the session
//     can be acquired again.
//  16. A session that no node has created, acquired or touched for the store's time to
//     live is gone. Until then, streams that have not ended are kept as long as the
//     session has an owner, however old their entries are.
//  17. [Store.Claim] stores the first value that is given for an id, and returns that
//     value to all later callers.
//
// A store may acknowledge appends before they would survive a loss of power. Then it has a
// method Sync(ctx context.Context) error, which returns when everything that was
// acknowledged before survives one, or [stream.ErrUnavailable]. Holdfast calls it where a
// decision depends on a record: whether a call may run, for example.
package shared

import (
	"context"
	"time"

	"holdfast/stream"
)

// A Session has the data of a session that a node can read without owning it.
type Session struct {
	Key   stream.SessionKey
	Owner string // the node that owns it; "" if it was released
	Open  bool   // it was released while calls of it were in flight
	Epoch uint64
	About []byte // the argument of Create

	Seen any // for the store's own use in Acquire, to save a second look-up; may be nil
}

// A Taken is a session that was acquired, with its streams.
type Taken struct {
	stream.Lease
	About   []byte
	Streams []Stream // those that have entries or a note, in the order of their numbers
}

// A Stream is the state of a stream that [Store.Acquire] returns.
type Stream struct {
	Number       uint64
	Note         []byte
	Oldest, Next uint64 // as [stream.Store.Bounds] returns them; both are 1 if there is only a note
	Ended        bool
}

// A ClaimID identifies a claim, such as an idempotency key of a principal.
type ClaimID [32]byte

// A Store is a store that several nodes use at the same time; its sessions are taken
// over from node to node. The package documentation has its rules. Its methods may be
// called concurrently. They return [stream.ErrUnavailable] if the engine does not answer before
// ctx is done.
type Store interface {
	stream.Store
	// Node returns the name under which this process owns sessions. No other process
	// has it, nor ever had.
	Node() string
	// Lookup returns a session and its owner. The error is [stream.ErrNotFound] for a session
	// that does not exist or has expired.
	Lookup(ctx context.Context, key stream.SessionKey) (Session, error)
	// Acquire takes a session over from the owner that was, a result of Lookup or
	// Sessions, has, whether that node lives or not. After [stream.ErrUnavailable] the
	// session may have this node as its owner and no lease; it can be acquired again.
	Acquire(ctx context.Context, was Session) (Taken, error)
	// Release gives a session up: it has no owner until a node acquires it. open says
	// that calls of it are in flight. It drops the session from this node's memory and
	// notifies watchers.
	Release(ctx context.Context, lease stream.Lease, open bool) error
	// Forget drops a session from this node's memory after its lease was lost, and
	// notifies its watchers.
	Forget(lease stream.Lease)
	// Touch starts the session's time to live again. The error is [stream.ErrFenced] if
	// another node owns it.
	Touch(ctx context.Context, lease stream.Lease) error
	// Sessions calls yield with every session, in no order, until yield returns false. A
	// session that was changed or deleted just before may come in its older state; its
	// newer state comes after that.
	Sessions(ctx context.Context, yield func(Session) bool) error
	// Claim stores the value for id if it has none, and returns nil. Otherwise it
	// returns the value that id has, and its age. A claim is kept for a day; a
	// method DropClaim, in a store that has it, removes it earlier.
	Claim(ctx context.Context, id ClaimID, value []byte) (was []byte, age time.Duration, err error)
	// Unclaim removes the claim of id if it still has this value.
	Unclaim(ctx context.Context, id ClaimID, value []byte) error
}

// A Range is the sessions with keys after After, up to and including Until; "": no
// bound.
type Range struct{ After, Until stream.SessionKey }

// Has reports whether a session is in the range.
func (r Range) Has(key stream.SessionKey) bool {
	return key > r.After && (r.Until == "" || key <= r.Until)
}

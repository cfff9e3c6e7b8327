// Package stream is the log: what Holdfast keeps of a call, and the contract of
// those who keep it.
//
// A call is its log. Whatever a server says about a request is appended to that
// request's stream, and whoever is connected reads the stream from a cursor.
//
// # The contract of a store
//
// These are the rules that every [Store] obeys; package streamtest has a case
// for each.
//
//  1. A session is created before anything is appended to it, and owned under a
//     [Lease]. Creating one that exists is [ErrExists]; appending to one that
//     does not, or watching it, is [ErrNotFound]. It is read, watched and written
//     by its owner only.
//  2. An append is all or none. When it returns nil, its entries are kept as
//     durably as the store promises, and every read that starts later sees them.
//  3. Sequences are dense from 1 in each stream. An entry whose sequence was
//     appended before, with the same bytes, is accepted and changes nothing
//     (so that an append of unknown outcome can be repeated); any other
//     sequence than the next is [ErrConflict].
//  4. An append under a lease whose epoch is not the session's current one is
//     [ErrFenced], and nothing of it is kept.
//  5. After the entry marked Last nothing can be appended to the stream
//     ([ErrConflict]).
//  6. A read after a cursor returns entries in order, without a gap and without
//     a duplicate; at the end of a finished stream it is io.EOF. If entries
//     after the cursor are no longer kept it is [ErrTrimmed]: a gap is an error,
//     never silence. A cursor past the newest entry, or whose entry was written
//     under another epoch than the cursor says, is [ErrTrimmed] too. An entry
//     carries the epoch of the lease under which it was appended.
//  7. A stream that was never written, or is kept no longer, is [ErrNotFound].
//  8. A watcher is told after every append to its stream; one telling may stand
//     for several appends. An append never waits for a watcher.
//  9. What is kept is bounded, per stream, per session and in all. A stream over
//     its limit loses its oldest entries. A session over its limit, and a store
//     over its own, lose finished streams first that nobody watches; then the append is refused with
//     [ErrFull], unless its own streams can make room for it with their oldest
//     entries. No other unfinished stream loses anything, of this session or of
//     another. An append that ends its streams in entries no larger than
//     [Reserve] is accepted even then. A store over its limit drops first what
//     was acknowledged ([Store.Acknowledge]), and then what has finished of the
//     tenant that keeps most ([Store.Count]); one tenant may keep three quarters
//     of what all may.
//  10. Finished streams are kept for as long as the store was told, and then
//     dropped; those that were acknowledged for a shorter time. Unfinished ones
//     live as long as their session.
//  11. Deleting a session drops all that it keeps and tells its watchers. It is
//     no error to delete one that does not exist.
//
// All methods may be called concurrently, except appends of one session, which
// have one caller at a time.
//
// # The contract of a shared store
//
// A [Shared] store is durable: it outlives the node that writes to it, and other
// nodes take its sessions over.
//
//  12. A record may be a note: opaque bytes that are kept beside a stream and are
//     no entry of it. A newer note takes the place of the older. Notes are
//     appended with entries, all or none, before the stream's last entry.
//  13. [Shared.Acquire] gives the session a newer epoch. From when it returns no
//     older lease can append, and everything that an append under one was ever
//     accepted with is there. Of several who acquire what the same [Shared.Lookup]
//     said, one succeeds; for the others it is [ErrConflict].
//  14. What is acquired is what was appended: each stream's note and bounds, and
//     the data that the session was created with. A finished stream has no note
//     any more once its end has expired.
//  15. An append that can't be known to have succeeded or not is repeated by the
//     store, for as long as its context lasts; only then it is [ErrUnavailable].
//     After that, and after [ErrFenced], the lease is lost: nothing can be
//     appended under it, and what it was for can be acquired again.
//  16. A session that nobody has touched, created or acquired for the store's time
//     to live is gone. Streams of it that have not ended live as long as it and its
//     owner, however old their entries are.
//  17. [Shared.Claim] gives an id its first value; for all others it returns that.
package stream

import (
	"context"
	"errors"
	"time"
)

// Reserve is the size in bytes up to which the entries that end a stream are
// accepted by a store that is full, so that every call can be told how it ended.
const Reserve = 1 << 10

// A SessionKey names a session to the store. It is not the session's secret id.
type SessionKey string

// An ID names a stream within its session. Number 0 is the standalone stream;
// calls count from 1.
type ID struct {
	Session SessionKey
	Number  uint64
}

// A Cursor is a place in a stream: after the entry Seq, written under Epoch.
// Seq 0 is the stream's beginning, and no epoch is asked for there, nor where
// Epoch is 0.
type Cursor struct {
	Stream ID
	Epoch  uint64
	Seq    uint64
}

// An Entry is one message in a stream. Whoever holds one must not change its
// bytes.
type Entry struct {
	Seq   uint64
	Epoch uint64 // of the lease that it was appended under; the store sets it
	Data  []byte // one JSON-RPC message; may be empty in a last entry
	Last  bool   // nothing follows in this stream
}

// A Record is an entry on its way into its stream, or a note beside it.
type Record struct {
	Number uint64 // of the stream
	Note   bool   // Data is a note: Seq and Last mean nothing
	Entry
}

// A Lease is the right to write to a session.
type Lease struct {
	Session SessionKey
	Epoch   uint64
}

// Errors that a caller branches on.
var (
	ErrNotFound    = errors.New("stream not found")
	ErrExists      = errors.New("session exists")
	ErrConflict    = errors.New("entry does not follow the last one")
	ErrFenced      = errors.New("session is owned by another")
	ErrFull        = errors.New("store is full")
	ErrTooLarge    = errors.New("message is too large for the store")
	ErrTrimmed     = errors.New("messages after this cursor are no longer kept")
	ErrUnavailable = errors.New("store is unavailable, outcome unknown")
)

// A Store keeps streams. The rules are in the package documentation.
type Store interface {
	// Create makes a session known and leases it to the caller. about is for those
	// who take the session over; the caller must not change it any more.
	Create(ctx context.Context, key SessionKey, about []byte) (Lease, error)
	// Append adds records to streams of the lease's session.
	Append(ctx context.Context, lease Lease, records []Record) error
	// Read appends to buf the entries after the cursor, up to buf's capacity, and
	// returns it. A read that finds nothing new returns buf as it was.
	Read(ctx context.Context, after Cursor, buf []Entry) ([]Entry, error)
	// Bounds returns the sequences of the oldest entry that is kept of a stream,
	// and of the one that will follow the newest.
	Bounds(ctx context.Context, id ID) (oldest, next uint64, err error)
	// Watch sends to ready, without ever waiting, when the stream has grown or is
	// gone. The stream need not exist yet. The channel should have room for one.
	// stop ends the watch.
	Watch(id ID, ready chan<- struct{}) (stop func(), err error)
	// Acknowledge says that a finished stream was read to its end, and that nobody is
	// likely to ask for it again. A store may take no notice.
	Acknowledge(id ID)
	// Count has what is kept of a session counted against a tenant ("": nobody in
	// particular), to be called before the first append under a lease.
	Count(lease Lease, tenant string)
	// Delete drops a session and all its streams.
	Delete(ctx context.Context, key SessionKey) error
	// Close ends the store's own work. No other call may follow.
	Close() error
}

// A Session is what a shared store knows of a session without owning it.
type Session struct {
	Key   SessionKey
	Owner string // the node that owns it; "" if it was released
	Open  bool   // it was released while calls in it had not ended
	Epoch uint64
	About []byte // what it was created with

	Seen any // what the store found, which saves [Shared.Acquire] looking again; nil: nothing
}

// A Taken is a session as it was found when it was acquired.
type Taken struct {
	Lease
	About   []byte
	Streams []Stream // those of which something is kept, by their numbers
}

// A Stream is what is kept of a stream.
type Stream struct {
	Number       uint64
	Note         []byte
	Oldest, Next uint64 // as [Store.Bounds] gives them; both 1 if there is only a note
	Ended        bool
}

// A ClaimID names what is claimed.
type ClaimID [32]byte

// A Shared store is a store whose sessions other nodes take over. The rules are in
// the package documentation. Its methods may be called concurrently; they return
// [ErrUnavailable] when the engine does not answer before ctx is done.
type Shared interface {
	Store
	// Node is the name under which this process owns sessions. No two that ever ran
	// have the same.
	Node() string
	// Lookup says who owns a session. The error is [ErrNotFound], after expiry too.
	Lookup(ctx context.Context, key SessionKey) (Session, error)
	// Acquire takes a session over from the owner that was is about, dead or not. If
	// it ends in [ErrUnavailable] the session may name this node as its owner, which
	// has no lease; it can be acquired again.
	Acquire(ctx context.Context, was Session) (Taken, error)
	// Release gives a session up, for whoever wants it next: then nobody owns it.
	// open says that calls in it have not ended. What this node has of it in memory
	// is dropped, and watchers are told.
	Release(ctx context.Context, lease Lease, open bool) error
	// Forget drops what this node has in memory of a session whose lease is lost,
	// and tells its watchers.
	Forget(lease Lease)
	// Touch starts the session's idle time anew. [ErrFenced] says that another owns
	// it.
	Touch(ctx context.Context, lease Lease) error
	// Sessions calls yield with every session, in no order, until it returns false. One
	// that was changed or deleted just now may come as it was before; what it is now comes
	// after that.
	Sessions(ctx context.Context, yield func(Session) bool) error
	// Claim gives id the value, if it has none, and returns nil; else what it has,
	// and how long ago it was given. A claim is kept for a day.
	Claim(ctx context.Context, id ClaimID, value []byte) (was []byte, age time.Duration, err error)
	// Unclaim takes the value from id again, if it still has it.
	Unclaim(ctx context.Context, id ClaimID, value []byte) error
}

// A Syncer is a store that acknowledges some of what it keeps before it would survive
// its machine, and can be asked to wait until that is so. Few things need it: those by
// which it is decided whether something is done at all. With them lost it would be done
// again.
type Syncer interface {
	// Sync returns when all that was acknowledged before it was called survives the
	// machine. Its error is ErrUnavailable.
	Sync(ctx context.Context) error
}

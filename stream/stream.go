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
//     does not, or watching it, is [ErrNotFound].
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
//     under another epoch than the cursor says, is [ErrTrimmed] too.
//  7. A stream that was never written, or is kept no longer, is [ErrNotFound].
//  8. A watcher is told after every append to its stream; one telling may stand
//     for several appends. An append never waits for a watcher.
//  9. What is kept is bounded, per stream, per session and in all. A stream over
//     its limit loses its oldest entries. A session over its limit, and a store
//     over its own, lose finished streams first; then the append is refused with
//     [ErrFull], unless its own streams can make room for it with their oldest
//     entries. No other unfinished stream loses anything, of this session or of
//     another. An append that ends its streams in entries no larger than
//     [Reserve] is accepted even then.
//  10. Finished streams are kept for as long as the store was told, and then
//     dropped. Unfinished ones live as long as their session.
//  11. Deleting a session drops all that it keeps and tells its watchers. It is
//     no error to delete one that does not exist.
//
// All methods may be called concurrently, except appends of one session, which
// have one caller at a time.
package stream

import (
	"context"
	"errors"
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
// Seq 0 is the stream's beginning, and no epoch is asked for there.
type Cursor struct {
	Stream ID
	Epoch  uint64
	Seq    uint64
}

// An Entry is one message in a stream. Whoever holds one must not change its
// bytes.
type Entry struct {
	Seq  uint64
	Data []byte // one JSON-RPC message; may be empty in a last entry
	Last bool   // nothing follows in this stream
}

// A Record is an entry on its way into its stream.
type Record struct {
	Number uint64 // of the stream
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
	ErrTrimmed     = errors.New("messages after this cursor are no longer kept")
	ErrUnavailable = errors.New("store is unavailable, outcome unknown")
)

// A Store keeps streams. The rules are in the package documentation.
type Store interface {
	// Create makes a session known and leases it to the caller.
	Create(ctx context.Context, key SessionKey) (Lease, error)
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
	// Delete drops a session and all its streams.
	Delete(ctx context.Context, key SessionKey) error
	// Close ends the store's own work. No other call may follow.
	Close() error
}

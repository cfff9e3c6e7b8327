// Package stream is the contract of a store: the messages of calls that Holdfast keeps,
// and the rules for stores that keep them.
//
// Every message that a server sends about a call is appended to the call's stream, and
// every client reads that stream from a cursor. Live delivery and replay are the same read.
//
// # The contract of a store
//
// Every [Store] obeys these rules. Package streamtest has a test for each.
//
//  1. A session is created before anything is appended to it, and is owned under a
//     [Lease]. To create one that exists is [ErrExists]. To append to one that does
//     not exist, or to watch it, is [ErrNotFound]. Only its owner reads, watches and
//     writes it.
//  2. An append takes effect as a whole or not at all. When it returns nil, its entries
//     are kept as durably as the store promises, and every read that starts later sees
//     them.
//  3. In each stream the sequences count from 1 without a gap. An entry that was appended
//     before, with the same sequence and bytes, is accepted and changes nothing, so that
//     an append of unknown outcome can be repeated. Any other sequence than the next is
//     [ErrConflict].
//  4. An append under a lease with another epoch than the session's current one is
//     [ErrFenced], and nothing of it is kept.
//  5. Nothing can be appended to a stream after the entry marked Last ([ErrConflict]).
//  6. A read returns the entries after a cursor in their order, without a gap and without
//     a duplicate. At the end of an ended stream it is io.EOF. It is [ErrTrimmed] if
//     entries after the cursor are no longer kept: a gap is an error, never silence. It is
//     [ErrTrimmed] too if the cursor is past the newest entry, or if its entry was
//     written under another epoch than the cursor has. An entry carries the epoch of the
//     lease that it was appended under.
//  7. A stream that was never written, or is no longer kept, is [ErrNotFound].
//  8. A watcher is notified after every append to its stream. One notification may stand
//     for several appends. An append never waits for a watcher.
//  9. Kept bytes are bounded for each stream, for each session and in total. A stream
//     over its limit loses its oldest entries. A session over its limit, and a store
//     over its own, first lose ended streams without a watcher. If that is not enough
//     the append is refused with [ErrFull], unless the streams appended to can make
//     room with their oldest entries. No other stream loses anything before it has ended.
//     An append that ends its streams, in entries of at most [Reserve] bytes, is accepted
//     even then. A store over its limit drops acknowledged streams first
//     ([Store.Acknowledge]), and then ended streams of the tenant that keeps most
//     ([Store.Count]). By default one tenant may keep three quarters of the total.
//  10. An ended stream is kept for a configured time, and for a shorter time once it is
//     acknowledged. Other streams live as long as their session.
//  11. Deleting a session drops everything that is kept of it and notifies its watchers.
//     Deleting one that does not exist is no error.
//
// All methods may be called concurrently, except that appends to one session have one
// caller at a time.
package stream

import (
	"context"
	"errors"
)

// Reserve is the size in bytes up to which entries that end a stream are accepted by a
// store that is full, so that the end of every call can be kept.
const Reserve = 1 << 10

// A SessionKey identifies a session in the store. It is not the secret session id that the
// client has.
type SessionKey string

// An ID identifies a stream. Number 0 is the standalone stream of the session; the streams
// of calls count from 1.
type ID struct {
	Session SessionKey
	Number  uint64
}

// A Cursor is a position in a stream: after the entry Seq, which was written under Epoch.
// Seq 0 is the beginning of the stream. The epoch is not checked for Seq 0, nor if it is 0.
type Cursor struct {
	Stream ID
	Epoch  uint64
	Seq    uint64
}

// An Entry is one message of a stream. Its bytes must not be changed.
type Entry struct {
	Seq   uint64
	Epoch uint64 // of the lease that it was appended under; set by the store
	Data  []byte // one JSON-RPC message; may be empty in a last entry
	Last  bool   // the stream ends here
}

// A Record is an item of an append: an entry of a stream, or a note beside it.
type Record struct {
	Number uint64 // of the stream
	Note   bool   // Data is a note, and Seq and Last mean nothing; only shared stores get notes
	Entry
}

// A Lease is the right to write to a session. It is lost when another node acquires the
// session, which gives it a newer epoch.
type Lease struct {
	Session SessionKey
	Epoch   uint64
}

// Errors of stores. They may be wrapped.
var (
	// ErrNotFound: the session or stream does not exist, or is no longer kept.
	ErrNotFound = errors.New("stream not found")
	// ErrExists: the session was created before.
	ErrExists = errors.New("session exists")
	// ErrConflict: the entry does not follow the last one, the stream has ended, or
	// another node was first to acquire the session.
	ErrConflict = errors.New("entry does not follow the last one")
	// ErrFenced: the lease is lost; another node owns the session.
	ErrFenced = errors.New("session is owned by another")
	// ErrFull: a limit is reached, and nothing may be dropped for this append.
	ErrFull = errors.New("store is full")
	// ErrTooLarge: the engine cannot keep a message of this size.
	ErrTooLarge = errors.New("message is too large for the store")
	// ErrTrimmed: entries after the cursor are missing.
	ErrTrimmed = errors.New("messages after this cursor are no longer kept")
	// ErrUnavailable: the engine did not answer in time. An append may have taken
	// effect or not.
	ErrUnavailable = errors.New("store is unavailable, outcome unknown")
)

// A Store keeps streams. The package documentation has its rules.
type Store interface {
	// Create creates a session and leases it to the caller. about is for the node
	// that takes the session over; the caller must not change it afterwards.
	Create(ctx context.Context, key SessionKey, about []byte) (Lease, error)
	// Append appends records to streams of the lease's session.
	Append(ctx context.Context, lease Lease, records []Record) error
	// Read appends the entries after the cursor to buf, up to its capacity, and returns
	// it. It does not wait: if there is no entry it returns buf unchanged.
	Read(ctx context.Context, after Cursor, buf []Entry) ([]Entry, error)
	// Bounds returns the sequence of the oldest entry that is kept of a stream, and the
	// sequence of the entry that will follow the newest.
	Bounds(ctx context.Context, id ID) (oldest, next uint64, err error)
	// Watch sends to ready, without waiting, when the stream has grown or is gone. The
	// stream need not exist yet. The channel should have room for one value. stop ends
	// the watch.
	Watch(id ID, ready chan<- struct{}) (stop func(), err error)
	// Acknowledge says that a client has read an ended stream to its end and will
	// probably not read it again. A store may ignore it.
	Acknowledge(id ID)
	// Count counts the bytes of a session against a tenant; "" is no tenant in
	// particular. It is called before the first append under a lease.
	Count(lease Lease, tenant string)
	// Delete drops a session and all its streams.
	Delete(ctx context.Context, key SessionKey) error
	// Close ends the store's own work. No other method may be called afterwards.
	Close() error
}

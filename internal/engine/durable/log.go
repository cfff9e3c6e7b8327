// Package durable is the store over any engine that keeps bytes for longer than a
// process: [Store] is a shared.Store, and [Log] the contract of the engine.
package durable

import (
	"context"
	"time"

	"holdfast/internal/cluster"
)

// A Log is an engine: it keeps values by their keys, and for each of some keys a
// sequence of frames, as durably as it promises. All methods may be called
// concurrently. Their errors are those of package stream: ErrConflict where the
// method says so, ErrNotFound, ErrFull, ErrTooLarge, and ErrUnavailable for all
// others: the outcome is unknown. They wait for the engine no longer than ctx lasts.
//
// Keys are at most 200 bytes of A-Z a-z 0-9 - _ with single dots between.
type Log interface {
	// Put sets a key's value, for ttl from now on (at least a second), if its
	// version is still was; 0: the key has no value. Else the error is ErrConflict.
	Put(ctx context.Context, key string, was uint64, value []byte, ttl time.Duration) (version uint64, err error)
	// Get returns a key's value, its version and how long ago it was put, all by the
	// engine's clock: negative if that was set back since. It sees every Put that has
	// returned, on any node. ErrNotFound: the key has no value, or it was removed or
	// has expired.
	Get(ctx context.Context, key string) (value []byte, version uint64, age time.Duration, err error)
	// Remove removes a key's value if its version is still was; 0: whichever it
	// has. ErrConflict: it has another. It is no error if there is no value.
	Remove(ctx context.Context, key string, was uint64) error
	// List calls yield with all values under keys that begin with prefix (which ends with
	// a dot), in no order, until it returns false. A value that was put or removed just
	// now may come in its older state; its newer state, if there is one, comes after that.
	List(ctx context.Context, prefix string, yield func(key string, value []byte, version uint64) bool) error

	// Append adds a frame to a key's sequence if its last frame is the one at last;
	// 0: it has no frame. Else the error is ErrConflict, and at is the place of its
	// last frame (0: no frame is kept). ErrFull: there is no room, and nothing was
	// added. Places grow, and no place is used twice for a key, even if its frame
	// was trimmed or has expired. The Log does not use frame after the call, unless
	// it returns ErrUnavailable.
	Append(ctx context.Context, key string, last uint64, frame []byte) (at uint64, err error)
	// Frames calls yield with the frames that are kept after the place after, in
	// order, until it returns false; age is as in Get. It sees every Append that has
	// returned, on any node. yield may keep the frame.
	Frames(ctx context.Context, key string, after uint64, yield func(at uint64, age time.Duration, frame []byte) bool) error
	// Trim drops a key's frames before a place; 0: all of them. It need not happen
	// at once, or at all.
	Trim(ctx context.Context, key string, before uint64) error
	// Retention is how long a frame is kept at the least.
	Retention() time.Duration
	// MaxFrame is the size in bytes of the largest frame or value.
	MaxFrame() int

	cluster.Bus

	// Ping reports whether the engine answers, and takes writes.
	Ping(ctx context.Context) error
	// Close ends the connection, and an engine in this process. No other call may
	// follow.
	Close() error
}

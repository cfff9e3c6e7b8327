// Package reading has the readers of one session's streams: how far their clients were told, which clients are away, and which streams
// a client may have lost that comes back with nothing but its session.
//
// It knows nothing of MCP. A [Call] writes a stream. The session is an [Owner]: it is asked, and hears of readers.
//
// The lock of [Streams] comes after those of its owner. It is not held while the owner, a call or the store is called.
package reading

import (
	"context"
	"errors"
	"time"

	"holdfast/internal/journal"
	"holdfast/internal/likeness"
	"holdfast/internal/observe"
	"holdfast/stream"
)

// ErrMoved stands for a session that has left this node just now: it has to be located again.
var ErrMoved = errors.New("the session is moving to another node")

// An Owner is the session with the streams.
type Owner interface {
	// Life says whether the session is there to be read.
	Life() Life
	// Epochs returns the epoch of the session's lease, and the one with which it has begun again; 0: it has not.
	Epochs() (now, first uint64)
	// Server names the session's server.
	Server() string
	// Missed returns the error of a reader, or another error if another node may know more.
	Missed(ctx context.Context, err error) error
	// IsAlone reports whether only the client that reads a call may ask how it ended; c is nil if the call had ended when the reader came.
	IsAlone(c Call) bool
	// Arrived is called when the client of a call that has ended has all entries of it, and no other client follows the call.
	Arrived(number uint64)
	// Sent returns the [Sent] of an answer that a reader has written to its end; nil: no request is like its call. besides
	// says that it was written beside another stream, where the client may not hear of it.
	Sent(r *Reader, besides bool) Sent
	// Heard is called with each event of a reader.
	Heard(r *Reader, e Event)
	// Observed is called with events for observers, of readers of calls that have ended.
	Observed(e observe.Event)
}

// A Life says whether a session is there to be read.
type Life uint8

// Lives.
const (
	Lives   Life = iota
	Moved        // it has left this node
	Ended        // it is over
	Deleted      // it is over, and the store was told to drop its streams
)

// An Event is a step in the life of a reader.
type Event uint8

// Events, in their order.
const (
	Comes  Event = iota // it is about to be attached
	Came                // it is attached
	Back                // it is known that its client has come back, as its door is not the standalone stream
	Told                // the entries that it has read were written to its client
	Leaves              // it is about to be detached
	Lost                // its client may have lost the stream
	Left                // it is detached
)

// A Call writes a stream.
type Call interface {
	// Track has the end of the stream, if the store did not take it.
	Track() *journal.Track
	Progress() Progress
	// Came notes that a reader has come that begins after an entry. It returns the disconnect that was asked for before; nil: none was.
	Came(after uint64) *Disconnect
	// Likeness returns the likeness that other requests are compared with; zero: no request is like the call.
	Likeness() likeness.Likeness
	// Observe returns the call's watch; nil: there are no observers.
	Observe() *observe.Watch
	// Ping makes the call send a ping, if it has sent no message yet.
	Ping()
}

// A Progress is how far a call is.
type Progress struct {
	Said   uint64 // entries of its stream
	Told   uint64 // those that were written to a client
	Policy uint64 // those that tell the client how to resume the call, which come first
	Asks   bool   // it waits for the client to answer
}

// A Disconnect asks a reader to end its connection, once it has read as far as After: entries that the call
// has said by then are told first.
type Disconnect struct {
	Retry time.Duration
	After uint64
}

// A Sent stands for the answer of a call that was written to a client.
type Sent interface {
	source
	// Strand notes that the client has left with some of it unread.
	Strand()
}

// A source has written to a connection.
type source = interface {
	// Disconnected is called when the client at an address has left with bytes unread that were written after a time.
	Disconnected(from string, since time.Time)
}

// A Connection is the connection of a client.
type Connection interface {
	// Wrote notes that a source has written to the connection. The source is told if the client turns out to have left with some bytes unread.
	Wrote(what source)
}

// Options are those of the streams of all sessions.
type Options struct {
	Store    stream.Store
	Shared   bool                   // by several nodes
	Observed bool                   // there are observers
	IsOld    func(data []byte) bool // whether a message must not be written again to a client that it was written to
}

// Standalone is the number of the stream that carries the messages that belong to no call.
const Standalone = 0

// Wake tells the goroutine that waits on ready to look again. It never waits.
func Wake(ready chan<- struct{}) {
	select {
	case ready <- struct{}{}:
	default:
	}
}

// Package reading has who reads the streams of one session: how far their clients were told, which clients are away, and what those may
// have lost that come back with nothing but their session.
//
// It knows nothing of MCP. What writes a stream is a [Call]. The session is an [Owner]: it is asked, and hears of readers.
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

// ErrMoved stands for a session that has left this node just now: it is to be located again.
var ErrMoved = errors.New("the session is moving to another node")

// An Owner is the session whose streams are read.
type Owner interface {
	// Life says whether the session is there to be read.
	Life() Life
	// Epochs returns the epoch of the session's lease, and the one with which it has begun again; 0: it has not.
	Epochs() (now, first uint64)
	// Server names the session's server.
	Server() string
	// Missed returns the error of a reader, or another one where another node may know more.
	Missed(ctx context.Context, err error) error
	// IsAlone reports whether only the client that reads a call may ask how it ended; nil: the call had ended when the reader came.
	IsAlone(c Call) bool
	// Arrived is called when the client of a call has all that it said, if that has ended and no other client follows it.
	Arrived(number uint64)
	// Sent returns what stands for what a reader has written to its end; nil: nothing is like its call. If besides is true the
	// client may not hear of it.
	Sent(r *Reader, besides bool) Sent
	// Heard is called when something happens to a reader.
	Heard(r *Reader, e Event)
	// Observed is called with what observers are told of a reader whose call has ended.
	Observed(e observe.Event)
}

// A Life says whether a session is there to be read.
type Life uint8

// Lives.
const (
	Lives   Life = iota
	Moved        // it has left this node
	Ended        // it is over
	Deleted      // so it is, and the store was told to drop its streams
)

// An Event is what happens to a reader.
type Event uint8

// Events, in their order.
const (
	Comes  Event = iota // it is about to be attached
	Came                // it is attached
	Back                // it is known that its client has come back, as its door is not the standalone stream
	Told                // what it has read was written to its client
	Leaves              // it is about to be detached
	Lost                // its client may have lost the stream
	Left                // it is detached
)

// A Call is what writes a stream.
type Call interface {
	// Track has how the stream ends, where the store did not take it.
	Track() *journal.Track
	Progress() Progress
	// Came notes that a reader has come that begins after an entry. It returns the disconnect that was asked for before; nil: none was.
	Came(after uint64) *Disconnect
	// Likeness is what other requests are compared with; zero: nothing is like the call.
	Likeness() likeness.Likeness
	// Observe returns what observers know of the call; nil: there are none.
	Observe() *observe.Watch
	// Ping has the call say something, if it has not said anything yet.
	Ping()
}

// A Progress is how far a call is.
type Progress struct {
	Said   uint64 // entries of its stream
	Told   uint64 // those that were written to a client
	Policy uint64 // those that tell the client how to resume the call, which come first
	Asks   bool   // it waits for the client to answer
}

// A Disconnect asks a reader to end its connection, once it has read as far as After: what
// the call said before is told before.
type Disconnect struct {
	Retry time.Duration
	After uint64
}

// A Sent stands for what was written to a client, as the answer of a call.
type Sent interface {
	source
	// Strand notes that the client has left with some of it unread.
	Strand()
}

// A source is where what was written to a connection came from.
type source = interface {
	// Disconnected is called when the client at an address has left with bytes unread that were written after a time.
	Disconnected(from string, since time.Time)
}

// A Connection is that of a client.
type Connection interface {
	// Wrote has a source be told if the client turns out to have left with some of what was written unread.
	Wrote(what source)
}

// Options are what the streams of all sessions have in common.
type Options struct {
	Store    stream.Store
	Shared   bool                   // by several nodes
	Observed bool                   // there are observers
	IsOld    func(data []byte) bool // whether a message is not to be written again where it was written before
}

// Standalone is the number of the stream that carries what belongs to no call.
const Standalone = 0

// Wake tells the goroutine that waits on ready to look again. It never waits.
func Wake(ready chan<- struct{}) {
	select {
	case ready <- struct{}{}:
	default:
	}
}

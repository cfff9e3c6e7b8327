// Package cluster is how nodes reach each other: messages through the engine that
// keeps their calls, and connections made of those.
package cluster

import "errors"

// ErrNoNode says that nobody has the name of a node: it has ended, or has lost the
// engine.
var ErrNoNode = errors.New("no such node")

// A Bus carries messages between the nodes of one engine. A message arrives once
// or not at all, and none is kept for a node that is away. Messages of one sender
// to one node may overtake each other. The methods may be called concurrently.
type Bus interface {
	// Node is this process's name. No two that ever ran have the same.
	Node() string
	// Send hands a message to a node. It does not wait for it to arrive, and may
	// fail without a word. ErrNoNode, or [Receiver.Gone] later, says that nobody
	// has the name. The message is not kept by the bus.
	Send(node string, message []byte) error
	// Cast hands a message to all nodes, with this one maybe.
	Cast(message []byte) error
	// Receive has r told from now on, until stop returns. It is called once.
	Receive(r Receiver) (stop func(), err error)
	// MaxMessage is the size in bytes of the largest message.
	MaxMessage() int
}

// A Receiver is told what comes over a Bus. Its methods must not wait; they are
// called by several goroutines.
type Receiver interface {
	// Message takes a message to this node. It must not keep its bytes.
	Message(message []byte)
	// Gone says that a message to the node found nobody.
	Gone(node string)
}

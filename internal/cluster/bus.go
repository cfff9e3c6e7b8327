// Package cluster connects the nodes of one engine: it sends messages through the engine,
// knows which nodes live, and makes connections of messages.
package cluster

import "errors"

// ErrNoNode says that no node has a name: the node has ended, or has lost the engine.
var ErrNoNode = errors.New("no such node")

// A Bus carries messages between the nodes of one engine. A message arrives once or not at all, and
// is not kept for a node that is away. Messages of one sender to one node may overtake each other.
// The methods may be called concurrently.
type Bus interface {
	// Node is this process's name. Names are never used twice.
	Node() string
	// Send sends a message to a node. It does not wait until the message arrives, and a nil error
	// does not promise that it will. ErrNoNode, or [Receiver.Gone] later, says that no node has the
	// name. The bus does not keep the bytes.
	Send(node string, message []byte) error
	// Cast sends a message to all nodes; this one may be among them.
	Cast(message []byte) error
	// Receive passes the messages that arrive to r, from now on until stop returns. It is called once.
	Receive(r Receiver) (stop func(), err error)
	// MaxMessage is the size in bytes of the largest message.
	MaxMessage() int
}

// A Receiver handles the messages of a Bus. Its methods must not wait. Several goroutines call
// them.
type Receiver interface {
	// Message takes a message to this node. It must not keep its bytes.
	Message(message []byte)
	// Gone says that a message to the node reached no node.
	Gone(node string)
}

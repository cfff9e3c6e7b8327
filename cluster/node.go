package cluster

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// Options say how patient a node is with others. The zero value of each field
// stands for the default given with it.
type Options struct {
	Heartbeat time.Duration // how often a node says that it lives; 500 ms
	Silence   time.Duration // how long a peer may be silent before it is asked; 2 s
	Answer    time.Duration // how long it has to answer, the first and the second time; 500 ms
	Window    int           // bytes of a connection's direction that nobody has read yet; 256 KiB

	Logger *slog.Logger // slog.Default()
}

// A Node is this process among those of one engine. Its methods may be called
// concurrently.
type Node struct{}

// Join makes the process a node of those on the bus, which stays the caller's to
// close, after the node.
func Join(bus Bus, o Options) (*Node, error) { panic("to come") }

// Name is this node's name on the bus.
func (n *Node) Name() string { panic("to come") }

// Dial opens a connection to what a node's [Node.Listener] gives out. Its error is
// ErrNoNode at once if nobody has the name, and after a second and a half or so if
// nobody answers.
func (n *Node) Dial(ctx context.Context, node string) (net.Conn, error) { panic("to come") }

// Listener gives out the connections that others dial. It is the same each time.
// Its Accept ends with net.ErrClosed once it or the node is closed.
func (n *Node) Listener() net.Listener { panic("to come") }

// Gone says whether a node is gone: it has said so, nobody has its name, or it does
// not answer. It is asked if it has not been heard of just now, so the answer may
// take a second or so. What ctx ends is no sign: then a node is not gone.
func (n *Node) Gone(ctx context.Context, node string) bool { panic("to come") }

// Peers are the names of the other nodes that live and take new sessions, in order.
func (n *Node) Peers() []string { panic("to come") }

// Watch has f called with the name of each peer that is gone from now on, one at a
// time, from a goroutine of the Node. A peer that was only away for long may come
// back, and be gone again.
func (n *Node) Watch(f func(node string)) { panic("to come") }

// OnWake has f called, from a goroutine of the Node, when this node has been away:
// its process was stopped, or the bus, for so long that others may think it gone.
func (n *Node) OnWake(f func()) { panic("to come") }

// Notify sends a node a small message, which arrives once or not at all. ErrNoNode:
// nobody has the name, as far as is known at once.
func (n *Node) Notify(node string, data []byte) error { panic("to come") }

// Notices has f called with each message that another node has sent by Notify, from
// a goroutine of the Node, one at a time. f may keep the data.
func (n *Node) Notices(f func(data []byte)) { panic("to come") }

// Drain tells the others to send no new sessions here. Connections go on.
func (n *Node) Drain() { panic("to come") }

// Close ends all connections, tells the others that this node is gone, and waits
// for its goroutines.
func (n *Node) Close() error { panic("to come") }

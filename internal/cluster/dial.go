package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// errAway says that the bus carries no messages.
var errAway = errors.New("the bus carries no messages")

// Dial opens a connection, which the [Node.Listener] of the other node gives out. The error is
// ErrNoNode if no node has the name: at once, or after [Options.Grace] if a node had it just now.
// It is ErrNoNode too if the node does not answer for three times [Options.Answer].
func (n *Node) Dial(ctx context.Context, node string) (net.Conn, error) {
	c, err := n.dial(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("dialling node %s: %w", node, err)
	}
	return c, nil
}

func (n *Node) dial(ctx context.Context, node string) (*conn, error) {
	p := n.use(node)
	defer n.release(p)
	var random [8]byte
	rand.Read(random[:])
	c := n.newConn(p, connID{binary.BigEndian.Uint64(random[:]), true}, opening)
	up := make(chan struct{})
	c.up = up
	n.mu.Lock()
	if n.closing {
		n.mu.Unlock()
		return nil, net.ErrClosed
	}
	if p.lost() {
		n.mu.Unlock()
		return nil, ErrNoNode
	}
	n.list(c)
	n.mu.Unlock()
	err := n.handshake(ctx, c, up)
	if err == nil {
		err = c.opened()
	}
	if err != nil {
		n.drop(c, err, true)
		return nil, err
	}
	return c, nil
}

// opened returns the error of a connection that is not opening any more; nil: it can be used.
func (c *conn) opened() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state >= closing {
		return net.ErrClosed
	}
	return c.err
}

// handshake repeats open until the other end answers.
func (n *Node) handshake(ctx context.Context, c *conn, up <-chan struct{}) error {
	p, begun, now := c.peer, n.now(), n.now()
	timer := time.NewTimer(n.o.Answer)
	defer timer.Stop()
	for {
		if late := n.now() - now - n.o.Answer; late > n.o.jump() {
			begun += late // this process was stopped
		}
		now = n.now()
		asked := max(begun, time.Duration(p.seen.Load()))
		silent := now - asked
		switch {
		case p.lost():
			return ErrNoNode
		case now-begun > 5*n.o.Silence: // it lives, but is slow
			return errors.New("it does not answer")
		case silent < 3*n.o.Answer:
		case !n.busWorks(now, asked+n.o.Answer): // since the time at which an answer should have come
			return errAway
		default:
			n.lose(p, signNoAnswer, "does not answer")
			return ErrNoNode
		}
		news := n.next(p)
		err := n.send(p, n.compose(kindOpen).conn(c.id).number(uint64(n.o.Window)))
		if err != nil && !errors.Is(err, ErrNoNode) {
			return err
		}
		if p.lost() {
			return ErrNoNode
		}
		timer.Reset(n.o.Answer)
		if err := n.answer(ctx, c, up, news, timer.C); !errors.Is(err, errRetry) {
			return err
		}
	}
}

// errRetry says that it is time to send open again.
var errRetry = errors.New("again")

// answer waits for the answer to open.
func (n *Node) answer(ctx context.Context, c *conn, up, news <-chan struct{}, again <-chan time.Time) error {
	doubted := n.isNameless(c.peer)
	for {
		select {
		case <-up:
			return nil
		case <-news:
			news = n.next(c.peer)
			switch is := n.isNameless(c.peer); {
			case c.peer.lost():
				return ErrNoNode
			case doubted && !is:
				return errRetry // the peer is back, and did not get the message
			default:
				doubted = is
			}
		case <-again:
			return errRetry
		case <-ctx.Done():
			return ctx.Err()
		case <-n.closed:
			return net.ErrClosed
		}
	}
}

// isNameless reports whether the bus says that no node has the name of a peer.
func (n *Node) isNameless(p *peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return p.nameless != 0
}

// reset returns the failure of a connection that the other end does not know.
func (c *conn) reset() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == opening {
		return syscall.ECONNREFUSED
	}
	return fmt.Errorf("node %s: %w", c.peer.name, syscall.ECONNRESET)
}

// onOpen accepts a connection, once.
func (n *Node) onOpen(p *peer, id connID, window uint64) {
	c := n.newConn(p, id, open)
	c.out.limit = window
	n.mu.Lock()
	known := n.conns[id]
	taken := known == nil && !id.dialed && !n.closing
	if taken {
		n.list(c)
		if taken = n.listen.offer(c); !taken {
			n.unlist(c)
		}
	}
	n.mu.Unlock()
	if taken || known != nil && known.peer == p {
		n.enqueue(p.name, n.compose(kindAccept).conn(id).number(uint64(n.o.Window)))
	} else {
		n.enqueue(p.name, n.compose(kindReset).conn(id))
	}
}

// A listener gives out the connections that other nodes dial.
type listener struct {
	node   *Node
	queue  chan *conn
	closed chan struct{}
	once   sync.Once
}

// backlog is how many connections may wait to be accepted.
const backlog = 4096

// Listener returns the listener for connections that other nodes dial, the same each time. Its
// Accept returns net.ErrClosed once the listener or the node is closed; then dialling this node
// fails.
func (n *Node) Listener() net.Listener { return n.listen }

// offer queues a connection, and reports whether there was room. It does not wait.
func (l *listener) offer(c *conn) bool {
	select {
	case <-l.closed:
		return false
	default:
	}
	select {
	case l.queue <- c:
		return true
	default:
		return false
	}
}

// Accept returns the next connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends the connections that were not accepted.
func (l *listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		err = nil
		n := l.node
		n.mu.Lock() // from now on no connection is offered
		close(l.closed)
		n.mu.Unlock()
		for {
			select {
			case c := <-l.queue:
				n.drop(c, net.ErrClosed, true)
			default:
				return
			}
		}
	})
	return err
}

// Addr is the node's name.
func (l *listener) Addr() net.Addr { return Addr(l.node.name) }

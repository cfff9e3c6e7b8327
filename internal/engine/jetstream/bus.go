package jetstream

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"holdfast/internal/cluster"
)

// mostPeers is how many names of nodes are remembered. Few nodes run at a time, but each
// process has a name of its own.
const mostPeers = 1 << 10

// A peer is the subject of messages to a node. If no node has the name, the server says
// so to gone, which is a subject of this node.
type peer struct{ subject, gone string }

// Node is this process's name, which is random.
func (l *Log) Node() string { return l.node }

// MaxMessage is the size of the largest message that the servers take, but at most maxMessage.
func (l *Log) MaxMessage() int { return min(int(l.nc.MaxPayload()), maxMessage) }

// Send sends a message to the server that this node is connected to.
func (l *Log) Send(node string, message []byte) error {
	p, err := l.peer(node)
	if err == nil {
		err = l.nc.PublishRequest(p.subject, p.gone, message)
	}
	if err != nil {
		return fmt.Errorf("sending to node %q: %w", node, err)
	}
	return nil
}

func (l *Log) peer(node string) (peer, error) {
	if p, ok := l.peers.Load(node); ok {
		return p.(peer), nil
	}
	if node == "" || strings.ContainsAny(node, ".*> \t\r\n") {
		return peer{}, errors.New("this is no name of a node")
	}
	n := 0
	l.peers.Range(func(any, any) bool { n++; return true })
	if n >= mostPeers {
		l.peers.Clear()
	}
	p := peer{l.nodeSubject(node), l.goneSubject(node)}
	l.peers.Store(node, p)
	return p, nil
}

func (l *Log) nodeSubject(node string) string { return l.prefix + ".node." + node }
func (l *Log) goneSubject(node string) string { return l.prefix + ".gone." + l.node + "." + node }
func (l *Log) castSubject() string            { return l.prefix + ".nodes" }

// Cast sends a message to all nodes.
func (l *Log) Cast(message []byte) error {
	if err := l.nc.Publish(l.castSubject(), message); err != nil {
		return fmt.Errorf("sending to all nodes: %w", err)
	}
	return nil
}

// Receive subscribes, and waits until the server has the subscriptions.
func (l *Log) Receive(r cluster.Receiver) (stop func(), err error) {
	take := func(m *nats.Msg) { r.Message(m.Data) }
	prefix := l.goneSubject("")
	var ended []<-chan struct{}
	var subs []*nats.Subscription
	stop = func() {
		for i, sub := range subs {
			if sub.Unsubscribe() == nil {
				<-ended[i]
			}
		}
	}
	for subject, f := range map[string]nats.MsgHandler{
		l.nodeSubject(l.node): take,
		l.castSubject():       take,
		prefix + "*": func(m *nats.Msg) {
			if m.Header.Get("Status") == "503" {
				r.Gone(m.Subject[len(prefix):])
			}
		},
	} {
		sub, err := l.nc.Subscribe(subject, f)
		if err != nil {
			stop()
			return nil, fmt.Errorf("subscribing: %w", err)
		}
		done := make(chan struct{})
		sub.SetClosedHandler(func(string) { close(done) })
		subs, ended = append(subs, sub), append(ended, done)
		if err := sub.SetPendingLimits(-1, -1); err != nil {
			stop()
			return nil, fmt.Errorf("subscribing: %w", err)
		}
	}
	if err := l.nc.FlushTimeout(closing); err != nil {
		stop()
		return nil, fmt.Errorf("subscribing: %w", err)
	}
	return stop, nil
}

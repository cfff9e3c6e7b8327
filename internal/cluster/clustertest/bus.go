package clustertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"testing"
	"time"

	"holdfast/internal/cluster"
)

// patience is how long nodes may take to receive each other's messages again, or to learn that a
// node is gone.
const patience = 20 * time.Second

// RunBus makes nodes of an engine send messages to each other while one node is cut off and another
// is killed. Each message arrives once or not at all. Nodes receive messages of each other again
// when the network is healed. Nodes that send to the killed node learn that it is gone.
func RunBus(t *testing.T, o Options) {
	t.Helper()
	var nodes []*listener
	for range 3 {
		nodes = append(nodes, listen(t, o.Open(t)))
	}
	var sending sync.WaitGroup
	quit := make(chan struct{})
	for _, n := range nodes {
		sending.Go(func() { n.send(nodes, quit) })
	}
	all := func() {
		t.Helper()
		for _, n := range nodes {
			n.hearsAll(nodes)
		}
	}
	all()
	if cut := nodes[1].Cut; cut != nil {
		for _, how := range []Cut{Reset, Silent} {
			cut(how)
			time.Sleep(300 * time.Millisecond) // the length of the cut
			cut(Healed)
			all()
		}
	}
	for _, f := range o.Faults {
		f.Do()
		all()
	}
	victim := nodes[2]
	if victim.Cut != nil {
		victim.Cut(Reset)
	}
	victim.end()
	for _, n := range nodes[:2] {
		n.until("that a node is gone", func() bool { return n.gone[victim.name] })
	}
	close(quit)
	sending.Wait()
	for _, n := range nodes[:2] {
		n.end()
	}
}

// A listener is a node that sends and receives.
type listener struct {
	Node
	t    *testing.T
	name string
	stop func()

	mu     sync.Mutex
	sent   uint64
	heard  map[string]bool // messages
	recent map[string]int  // messages to this node, by their senders
	casts  map[string]int  // messages to all
	gone   map[string]bool
}

func listen(t *testing.T, n Node) *listener {
	l := &listener{Node: n, t: t, name: n.Store.Node(), heard: make(map[string]bool), gone: make(map[string]bool)}
	l.forget()
	var err error
	if l.stop, err = n.Store.Receive(l); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *listener) end() {
	l.stop()
	if err := l.Store.Close(); err != nil && l.Cut == nil {
		l.t.Errorf("close: %v", err)
	}
}

// forget clears the messages that were received recently.
func (l *listener) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent, l.casts = make(map[string]int), make(map[string]int)
}

// message returns a new message, unlike all others, to a node or to all ("").
func (l *listener) message(to string) []byte {
	l.mu.Lock()
	l.sent++
	n := l.sent
	l.mu.Unlock()
	m := append(fmt.Appendf(nil, "%s>%s:%d ", l.name, to, n), make([]byte, n%700)...)
	return binary.BigEndian.AppendUint32(m, crc32.ChecksumIEEE(m))
}

// send sends messages to all nodes, one by one and together, until quit is closed.
func (l *listener) send(nodes []*listener, quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case <-time.After(2 * time.Millisecond):
		}
		for _, to := range nodes {
			if errors.Is(l.Store.Send(to.name, l.message(to.name)), cluster.ErrNoNode) {
				l.Gone(to.name)
			}
		}
		_ = l.Store.Cast(l.message("")) // it may be lost
	}
}

// Message implements [cluster.Receiver].
func (l *listener) Message(m []byte) {
	n := len(m) - 4
	if n < 0 || binary.BigEndian.Uint32(m[n:]) != crc32.ChecksumIEEE(m[:n]) {
		l.t.Errorf("a message arrived that nobody sent: %.40q", m)
		return
	}
	var head, from, to string
	_, _ = fmt.Sscanf(string(m[:min(n, 200)]), "%s", &head)
	for i := range head {
		if head[i] == '>' {
			from, to = head[:i], head[i+1:]
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard[head] {
		l.t.Errorf("message %s arrived twice", head)
	}
	l.heard[head] = true
	switch {
	case to[0] == ':':
		l.casts[from]++
	case len(to) > len(l.name) && to[:len(l.name)+1] == l.name+":":
		l.recent[from]++
	default:
		l.t.Errorf("message %s arrived at %s", head, l.name)
	}
}

// Gone implements [cluster.Receiver].
func (l *listener) Gone(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[node] = true
}

// hearsAll waits until messages of all nodes arrive again.
func (l *listener) hearsAll(nodes []*listener) {
	l.t.Helper()
	l.forget()
	l.until("all", func() bool {
		for _, n := range nodes {
			if n != l && (l.recent[n.name] < 20 || l.casts[n.name] < 20) {
				return false
			}
		}
		return true
	})
}

// until waits until a message makes ok return true. It calls ok with l.mu held.
func (l *listener) until(what string, ok func() bool) {
	l.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		l.mu.Lock()
		heard := ok()
		l.mu.Unlock()
		if heard {
			return
		}
	}
	l.t.Fatalf("%s does not hear %s", l.name, what)
}

package cluster

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// deaf is a bus without other nodes that keeps each message sent over it.
type deaf struct{ sent chan []byte }

func (*deaf) Node() string { return "me" }

func (d *deaf) Send(_ string, m []byte) error {
	select {
	case d.sent <- append([]byte(nil), m...):
	default:
	}
	return nil
}
func (*deaf) Cast([]byte) error                   { return nil }
func (*deaf) Receive(Receiver) (func(), error)    { return func() {}, nil }
func (*deaf) MaxMessage() int                     { return 1 << 20 }
func (d *deaf) next(t *testing.T) (kind, *reader) { return parsed(t, <-d.sent) }
func (d *deaf) expect(t *testing.T, want kind) *reader {
	t.Helper()
	k, r := d.next(t)
	if k != want {
		t.Fatalf("a message of kind %d, want %d", k, want)
	}
	return r
}

func parsed(t *testing.T, m []byte) (kind, *reader) {
	t.Helper()
	k, from, body, ok := parseHead(m)
	if !ok || string(from) != "me" {
		t.Fatalf("the message %q", m)
	}
	return k, &reader{b: body}
}

// alone returns a node without heartbeats. The test plays its peers.
func alone(t testing.TB) (*Node, *deaf) {
	d := &deaf{make(chan []byte, 100)}
	n := mcptest.Must(Join(d, Options{Heartbeat: 100 * time.Hour, Silence: 2 * time.Second, Window: 1000, Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(func() { n.Close() })
	return n, d
}

// from makes a message of another node.
func from(name string, k kind) *packet {
	return (&Node{name: name}).compose(k)
}

func (n *Node) hears(p *packet) { (*receiver)(n).Message(p.b) }

// A message about a connection has no effect if it comes from another node than the
// peer. A message that comes twice or late does no harm.
func TestStrangers(t *testing.T) {
	t.Parallel()
	n, d := alone(t)
	far := connID{7, true} // as at the dialling end
	n.hears(from("a", kindOpen).conn(far).number(1000))
	d.expect(t, kindAccept)
	n.hears(from("a", kindOpen).conn(far).number(1000))
	d.expect(t, kindAccept)
	c := mcptest.Must(n.Listener().Accept())(t)
	n.hears(from("a", kindData).conn(far).number(0).number(0).bytes([]byte("one ")...))
	n.hears(from("b", kindData).conn(far).number(1).number(0).bytes([]byte("bad ")...))
	d.expect(t, kindReset)
	n.hears(from("b", kindReset).conn(far))
	n.hears(from("b", kindOpen).conn(far).number(1000))
	d.expect(t, kindReset)
	n.hears(from("a", kindData).conn(far).number(0).number(0).bytes([]byte("one ")...))
	n.hears(from("a", kindFin).conn(far).number(3))
	n.hears(from("a", kindData).conn(far).number(2).number(0).bytes([]byte("three")...))
	n.hears(from("a", kindData).conn(far).number(2).number(0).bytes([]byte("three")...))
	n.hears(from("a", kindData).conn(far).number(1).number(0).bytes([]byte("two ")...))
	d.expect(t, kindCredit) // the credit confirms fin
	n.hears(from("a", kindFin).conn(far).number(3))
	d.expect(t, kindCredit)
	said, err := io.ReadAll(c)
	if string(said) != "one two three" || err != nil {
		t.Errorf("read %q, %v", said, err)
	}
	c.Close()
	n.hears(from("a", kindCheck).conn(far).number(4))
	d.expect(t, kindReset)
	n.hears(from("a", kindFin).conn(far).number(3))
	d.expect(t, kindHave)
	d.expect(t, kindReset)
}

// A peer that sends more than the window is cut off.
func TestTooMuch(t *testing.T) {
	t.Parallel()
	n, d := alone(t)
	far := connID{7, true}
	n.hears(from("a", kindOpen).conn(far).number(1000))
	d.expect(t, kindAccept)
	n.hears(from("a", kindData).conn(far).number(0).number(0).bytes(make([]byte, 1001)...))
	d.expect(t, kindReset)
	if n.Conns() != 0 {
		t.Error("the connection is there")
	}
}

// A process that was stopped gives its peers more time, and reports the pause. One
// that was not stopped gives up a peer that does not answer.
func TestJump(t *testing.T) {
	t.Parallel()
	n, _ := alone(t)
	woke := make(chan struct{}, 10)
	n.OnWake(func() { woke <- struct{}{} })
	lost := make(chan string, 10)
	n.Watch(func(name string) { lost <- name })
	n.hears(from("a", kindBeat).bytes(0))
	p := n.use("a")
	defer n.release(p)
	p.seen.Store(int64(n.now() - time.Minute))
	c := clock{node: n, due: n.now() - 30*time.Second, wall: time.Now().Round(0), mono: n.now()}
	c.tick()
	<-woke
	if p.lost() {
		t.Error("a peer is gone when this process was stopped")
	}
	// The machine was stopped: the monotonic clock stood still.
	p.seen.Store(int64(n.now() - time.Minute))
	c = clock{node: n, due: n.now(), wall: time.Now().Round(0).Add(-time.Minute), mono: n.now()}
	c.tick()
	<-woke
	if p.lost() {
		t.Error("a peer is gone when the machine was stopped")
	}
	p.seen.Store(int64(n.now() - time.Minute))
	n.mu.Lock()
	p.take(signSilence)
	p.asked = n.now() - 2*n.o.Answer
	n.mu.Unlock()
	c = clock{node: n, due: n.now(), wall: time.Now().Round(0), mono: n.now()}
	c.tick()
	if name := <-lost; name != "a" || !p.lost() {
		t.Error("who does not answer is not gone")
	}
}

// No message over the bus, valid or not, makes a node panic.
func FuzzMessage(f *testing.F) {
	id := connID{7, true}
	for _, p := range []*packet{
		from("a", kindBeat).bytes(beatHello), from("a", kindBye), from("a", kindPing), from("a", kindNotice).bytes(1, 2),
		from("a", kindOpen).conn(id).number(1 << 20), from("a", kindAccept).conn(id).number(5),
		from("a", kindData).conn(id).number(0).number(0).bytes(1, 2, 3), from("a", kindFin).conn(id).number(1),
		from("a", kindReset).conn(id), from("a", kindCredit).conn(id).number(1 << 40).number(3),
		from("a", kindCheck).conn(id).number(3).conn(id).number(1), from("a", kindHave).conn(id).number(3).number(9),
	} {
		f.Add(p.b)
	}
	n, _ := alone(f)
	f.Fuzz(func(_ *testing.T, m []byte) {
		n.hears(from("a", kindOpen).conn(id).number(1000))
		n.hears(&packet{m})
		(*receiver)(n).Message(m[:len(m)/2])
	})
}

package logtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"holdfast/internal/cluster"
	"holdfast/internal/engine/durable"
)

// ear is a cluster.Receiver that keeps its messages.
type ear struct {
	mu       sync.Mutex
	messages [][]byte
	gone     map[string]int
}

func (r *ear) Message(m []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, bytes.Clone(m))
}

func (r *ear) Gone(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone == nil {
		r.gone = make(map[string]int)
	}
	r.gone[node]++
}

// heard returns how many messages with a prefix came.
func (r *ear) heard(prefix []byte) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.messages {
		if bytes.HasPrefix(m, prefix) {
			n++
		}
	}
	return n
}

func (r *ear) all() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

func (r *ear) missed(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone[node] > 0
}

// listen returns an ear that receives a log's messages until the case ends.
func (b *box) listen(log durable.Log) *ear {
	b.Helper()
	r := &ear{}
	stop, err := log.Receive(r)
	if err != nil {
		b.Fatalf("Receive: %v", err)
	}
	b.Cleanup(stop)
	return r
}

// reach waits until messages of one node reach another, which may take a while.
func (b *box) reach(from durable.Log, to durable.Log, heard *ear) {
	b.Helper()
	hello := []byte("hello from " + from.Node())
	b.until("a first message", func() bool {
		if err := from.Send(to.Node(), hello); err != nil && !errors.Is(err, cluster.ErrNoNode) {
			b.Fatalf("Send: %v", err)
		}
		time.Sleep(5 * time.Millisecond) // polling
		return heard.heard(hello) > 0
	})
}

// listenBoth has both nodes receive messages, and waits until each gets the other's.
func (b *box) listenBoth() (mine, theirs *ear) {
	b.Helper()
	mine = b.listen(b.log)
	theirs = mine
	if b.other != b.log {
		theirs = b.listen(b.other)
	}
	b.reach(b.log, b.other, theirs)
	b.reach(b.other, b.log, mine)
	return mine, theirs
}

func busArrives(b *box) {
	mine, theirs := b.listenBoth()
	b.reach(b.log, b.log, mine)
	message := []byte("to " + b.own)
	send := bytes.Clone(message)
	b.want("Send", b.log.Send(b.other.Node(), send), nil)
	clear(send) // Send must not use it after its return
	b.until("a message", func() bool { return theirs.heard(message) == 1 })
	if b.other != b.log && mine.heard(message) > 0 {
		b.Error("it is heard elsewhere, too")
	}
	all := []byte("all of " + b.own)
	b.want("Cast", b.log.Cast(all), nil)
	b.until("a message to all", func() bool { return theirs.heard(all) == 1 })
	all = append(all, " again"...)
	b.want("Cast", b.other.Cast(all), nil)
	b.until("a message to all", func() bool { return mine.heard(all) == 1 })
}

// busMany sends many messages both ways, with about window of them under way at a time.
func busMany(b *box) {
	const n, window = 5000, 200
	mine, theirs := b.listenBoth()
	flow := func(mark byte, from, to durable.Log, heard *ear) {
		message := append([]byte{mark}, pattern(256)...)
		for i := range n {
			binary.BigEndian.PutUint32(message[1:], uint32(i))
			if err := from.Send(to.Node(), message); err != nil {
				b.Errorf("Send: %v", err)
				return
			}
			if i%window == 0 {
				end := time.Now().Add(patience)
				for heard.heard([]byte{mark}) < i+1-window && time.Now().Before(end) {
					time.Sleep(time.Millisecond) // polling
				}
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { flow(1, b.log, b.other, theirs) })
	wg.Go(func() { flow(2, b.other, b.log, mine) })
	wg.Wait()
	for mark, r := range map[byte]*ear{1: theirs, 2: mine} {
		b.until("all messages", func() bool { return r.heard([]byte{mark}) >= n })
		seen := make(map[uint32]bool)
		for _, m := range r.all() {
			if m[0] != mark {
				continue
			}
			i := binary.BigEndian.Uint32(m[1:])
			if seen[i] || len(m) != 257 || !bytes.Equal(m[5:], pattern(256)[4:]) {
				b.Fatalf("message %d came twice, or was changed", i)
			}
			seen[i] = true
		}
	}
}

func busSizes(b *box) {
	theirs := b.listen(b.other)
	b.reach(b.log, b.other, theirs)
	most := b.log.MaxMessage()
	if most < 64<<10 {
		b.Fatalf("MaxMessage is %d", most)
	}
	for i, n := range []int{16, 4 << 10, 64 << 10, most} {
		message := pattern(n)
		copy(message, b.own[:15]+string(rune('0'+i)))
		if err := b.log.Send(b.other.Node(), message); err != nil {
			b.Fatalf("Send of %d bytes: %v", n, err)
		}
		b.until("a message", func() bool { return theirs.heard(message) == 1 })
	}
}

// busNobody sends to a name without a node, and to a node that has ended.
func busNobody(b *box) {
	mine := b.listen(b.log)
	b.reach(b.log, b.log, mine)
	nobody := func(node string) {
		b.Helper()
		b.until("that nobody is home", func() bool {
			err := b.log.Send(node, []byte("x"))
			if err != nil && !errors.Is(err, cluster.ErrNoNode) {
				b.Fatalf("Send: %v", err)
			}
			time.Sleep(5 * time.Millisecond) // polling
			return err != nil || mine.missed(node)
		})
	}
	nobody("nobody" + b.own)
	if b.o.OneNode {
		return
	}
	node := b.open()
	r := &ear{}
	stop, err := node.Receive(r)
	b.want("Receive", err, nil)
	b.reach(b.log, node, r)
	if mine.missed(node.Node()) {
		b.Log("it was not there at once")
	}
	stop()
	b.want("Close", node.Close(), nil)
	nobody(node.Node())
}

func busNames(b *box) {
	if b.log.Node() == "" {
		b.Error("no name")
	}
	if b.log != b.other && b.log.Node() == b.other.Node() {
		b.Errorf("two nodes are named %s", b.log.Node())
	}
}

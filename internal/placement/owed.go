package placement

import (
	"sync"
	"time"
)

// owed are notices for which clients wait: they are sent again until their node says that it has them. A client that has left
// a node with its answer unread, and waits on its standalone stream for what it lost, would wait for ever after a notice that
// was lost. The methods may be called concurrently.
type owed struct {
	mu     sync.Mutex
	last   uint64 // the last name given
	timers map[uint64]*time.Timer
	closed bool
}

const (
	// owedAgain is when a notice is sent again for the first time; then it takes twice as long each time.
	owedAgain = time.Second
	// mostOwedWait ends that: a minute after the client has left it is in doubt no more what it has read.
	mostOwedWait = 32 * time.Second
	// mostOwed bounds how many notices are sent again.
	mostOwed = 1 << 12
)

// owe sends a notice to a node, and again until that node has it.
func (n *Nodes) owe(node string, what *notice) {
	o, say := &n.owed, *what
	o.mu.Lock()
	if !o.closed && len(o.timers) < mostOwed {
		o.last++
		say.Name, say.Node = o.last, n.node.Name()
		if o.timers == nil {
			o.timers = make(map[uint64]*time.Timer)
		}
		wait := owedAgain
		o.timers[say.Name] = time.AfterFunc(wait, func() {
			n.notify(node, &say)
			if wait *= 2; wait <= mostOwedWait {
				o.again(say.Name, wait)
			} else {
				o.settle(say.Name)
			}
		})
	}
	o.mu.Unlock()
	n.notify(node, &say)
}

// again sets the timer of a notice, if that is still owed.
func (o *owed) again(name uint64, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.timers[name]; t != nil {
		t.Reset(wait)
	}
}

// settle notes that a node has a notice, or that it is not sent again.
func (o *owed) settle(name uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.timers[name]; t != nil {
		t.Stop()
		delete(o.timers, name)
	}
}

// close ends the sending.
func (o *owed) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, t := range o.timers {
		t.Stop()
	}
	o.timers = nil
}

package placement

import (
	"sync"
	"time"
)

// owed are notices for which clients wait: they are sent again until the receiver has confirmed them. A client that left a
// node with its answer unread, and waits on its standalone stream for the lost messages, would wait for ever if the notice
// were lost. The methods may be called concurrently.
type owed struct {
	mu     sync.Mutex
	last   uint64 // the last [notice].Name
	timers map[uint64]*time.Timer
	closed bool
}

const (
	// owedAgain is the time until a notice is sent again. It doubles each time.
	owedAgain = time.Second
	// mostOwedWait is the longest such time, after which the notice is given up: a minute after the client left, the
	// bytes that it has read are known.
	mostOwedWait = 32 * time.Second
	// mostOwed bounds how many notices are owed at a time.
	mostOwed = 1 << 12
)

// owe sends a notice to a node, and again until the node has confirmed it or mostOwedWait is over.
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

// again restarts the timer of a notice that is still owed.
func (o *owed) again(name uint64, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.timers[name]; t != nil {
		t.Reset(wait)
	}
}

// settle ends the sending of a notice: the node has it, or it is given up.
func (o *owed) settle(name uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.timers[name]; t != nil {
		t.Stop()
		delete(o.timers, name)
	}
}

// close gives all notices up.
func (o *owed) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, t := range o.timers {
		t.Stop()
	}
	o.timers = nil
}

package client

import "sync/atomic"

// workers are goroutines that calls run on, one at a time. A goroutine that is
// new has to grow its stack before it has sent anything, which costs more than all
// else that is done for a short call here: those that are there are used again.
type workers struct {
	calls   chan *call // taken by one that rests
	resting atomic.Int32
}

// mostResting is how many goroutines wait for calls.
const mostResting = 32

// start runs a call. It reports false if the Conn has ended.
func (c *Conn) start(k *call) bool {
	select {
	case c.workers.calls <- k:
		return true
	default:
		return c.spawn(func() { c.serve(k) })
	}
}

// serve runs a call, and those that come while the goroutine rests.
func (c *Conn) serve(k *call) {
	w := &c.workers
	for {
		k.run()
		if w.resting.Add(1) > mostResting {
			w.resting.Add(-1)
			return
		}
		select {
		case k = <-w.calls:
			w.resting.Add(-1)
		case <-c.ctx.Done():
			return
		}
	}
}

package client

import "sync/atomic"

// workers are goroutines that each run one call at a time. A new goroutine has to grow its stack
// first, which costs more than all other work for a short call here: so goroutines are reused.
type workers struct {
	calls chan *call   // taken by an idle goroutine
	idle  atomic.Int32 // how many goroutines are idle
}

// mostIdle is how many goroutines may wait for calls.
const mostIdle = 32

// start runs a call. It reports false if the Conn has ended.
func (c *Conn) start(k *call) bool {
	select {
	case c.workers.calls <- k:
		return true
	default:
		return c.spawn(func() { c.serve(k) })
	}
}

// serve runs a call, and then calls that come while the goroutine is idle.
func (c *Conn) serve(k *call) {
	w := &c.workers
	for {
		k.run()
		if w.idle.Add(1) > mostIdle {
			w.idle.Add(-1)
			return
		}
		select {
		case k = <-w.calls:
			w.idle.Add(-1)
		case <-c.ctx.Done():
			return
		}
	}
}

package main

import (
	"errors"
	"sync"
	"time"

	"holdfast/bench/load"
)

// besiders are clients that make light calls at the second and third node, half of them in sessions
// that the first node has.
type besiders struct {
	quit  chan struct{}
	calls sync.WaitGroup

	mu    sync.Mutex
	worst []time.Duration // the slowest call of each client in a session of the first node
	err   error
}

// besideEvery is how long each of the besiders rests after a call.
const besideEvery = 5 * time.Millisecond

// besideThem starts the besiders.
func besideThem(nodes []*member) (*besiders, error) {
	b := &besiders{quit: make(chan struct{})}
	for i := range callers {
		owner, at := nodes[i%2], nodes[1+i/2%2]
		c, err := load.Dial(owner.addr)
		if err != nil {
			return nil, err
		}
		session, err := c.Handshake("/")
		_ = c.Close()
		if err == nil {
			c, err = load.Dial(at.addr)
		}
		if err != nil {
			return nil, err
		}
		b.calls.Go(func() {
			defer c.Close()
			worst, err := b.run(c, load.Post(at.addr, "/", session, load.Echo(32)))
			b.mu.Lock()
			defer b.mu.Unlock()
			if owner == nodes[0] {
				b.worst = append(b.worst, worst)
			}
			b.err = errors.Join(b.err, err)
		})
	}
	return b, nil
}

func (b *besiders) run(c *load.Client, r *load.Request) (worst time.Duration, err error) {
	for {
		select {
		case <-b.quit:
			return worst, nil
		case <-time.After(besideEvery):
		}
		began := time.Now()
		res, err := c.Do(r.Next())
		if err == nil {
			err = res.Expect(200, `"result"`)
		}
		if err != nil {
			return worst, err
		}
		worst = max(worst, time.Since(began))
	}
}

// end ends the besiders, and returns worst.
func (b *besiders) end() ([]time.Duration, error) {
	close(b.quit)
	b.calls.Wait()
	return b.worst, b.err
}

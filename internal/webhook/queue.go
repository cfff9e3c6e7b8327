package webhook

import (
	"container/heap"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// delivery is an event on its way.
type delivery struct {
	to    target
	id    string // the same for all tries
	body  []byte
	end   time.Time // no try begins after that
	due   time.Time // the time of the next try
	tries int
	asked bool                        // the receiver asked to wait until due
	pause *backoff.ExponentialBackOff // nil until the first try has failed

	version uint64 // of the item in the outbox; 0: it has none
	kept    bool   // the outbox has the delivery
}

// queue is a heap of deliveries, the next due first.
type queue []*delivery

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements [heap.Interface].
func (q *queue) Push(d any) { *q = append(*q, d.(*delivery)) }

// Pop implements [heap.Interface].
func (q *queue) Pop() any {
	last := len(*q) - 1
	d := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return d
}

// host is a receiver, which may have Options.PerHost tries at a time.
type host struct {
	busy   int         // tries under way
	parked []*delivery // due deliveries, which wait for the end of a try
}

// dropped counts events that were dropped because the queue was full.
type dropped struct {
	n      int       // since the last line in the log
	logged time.Time // when that line was written
}

// errClosed is the error of an event that comes after Close.
var errClosed = errors.New("the server is shutting down")

// brief returns the beginning of an error, which may have text of the receiver.
func brief(err error) string {
	text := err.Error()
	return text[:min(len(text), 300)]
}

// add queues a delivery, or drops it if the queue is full. told is false if the delivery is queued only in memory, although there is
// an outbox.
func (s *Sender) add(d *delivery) (told bool, err error) {
	s.mu.Lock()
	if s.closed.Load() {
		s.mu.Unlock()
		return false, errClosed
	}
	if s.ids[d.id] {
		s.mu.Unlock()
		return true, nil
	}
	if s.held < s.opts.Queue {
		s.held++
		if s.outbox == nil {
			heap.Push(&s.queue, d)
			s.start()
			s.mu.Unlock()
			return true, nil
		}
		s.ids[d.id] = true
		s.mu.Unlock()
		told, mine := s.begin(d)
		if !mine || !s.push(d) {
			s.release(d.id)
		}
		return told, nil
	}
	// At most one line in ten seconds: a client that causes this must not fill the log.
	s.dropped.n++
	n := 0
	if now := time.Now(); now.Sub(s.dropped.logged) >= 10*time.Second {
		n, s.dropped = s.dropped.n, dropped{logged: now}
	}
	s.mu.Unlock()
	s.report("dropped")
	if n > 0 {
		s.logger.Warn("webhooks dropped: too many wait to be sent", "count", n, "most", s.opts.Queue)
	}
	return true, nil
}

// start starts a goroutine if a delivery is due and there may be one more goroutine. s.mu is held.
func (s *Sender) start() {
	if s.working >= s.opts.Concurrent || len(s.queue) == 0 || s.queue[0].due.After(time.Now()) {
		return
	}
	s.working++
	s.work.Add(1)
	go s.run()
}

// run tries deliveries until none is due. Then it sets the timer for the next one.
func (s *Sender) run() {
	defer s.work.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		d := s.next()
		if d == nil {
			break
		}
		s.start() // another goroutine, for other due deliveries
		s.mu.Unlock()
		r := s.try(d)
		again := s.settle(d, s.again(d, r), r.err == nil)
		s.mu.Lock()
		s.done(d, again)
	}
	s.working--
	s.arm()
}

// arm sets the timer for the next delivery. s.mu is held.
func (s *Sender) arm() {
	if len(s.queue) == 0 {
		return
	}
	wait := time.Until(s.queue[0].due)
	if s.timer != nil {
		s.timer.Reset(wait)
		return
	}
	s.timer = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.start()
	})
}

// next takes a due delivery off the queue, or returns nil. s.mu is held.
func (s *Sender) next() *delivery {
	for len(s.queue) > 0 && !s.queue[0].due.After(time.Now()) {
		d := heap.Pop(&s.queue).(*delivery)
		h := s.hosts[d.to.place]
		if h == nil {
			h = &host{}
			s.hosts[d.to.place] = h
		}
		if h.busy >= s.opts.PerHost {
			h.parked = append(h.parked, d)
			continue
		}
		h.busy++
		return d
	}
	return nil
}

// done takes a delivery back after a try. again says that there is to be another. s.mu is held.
func (s *Sender) done(d *delivery, again bool) {
	h := s.hosts[d.to.place]
	h.busy--
	switch {
	case len(h.parked) > 0:
		heap.Push(&s.queue, h.parked[0])
		h.parked[0] = nil
		h.parked = h.parked[1:]
	case h.busy == 0:
		delete(s.hosts, d.to.place)
	}
	if again && s.ctx.Err() != nil {
		s.leave(d)
		s.emptied()
		return
	}
	if again {
		heap.Push(&s.queue, d)
		if s.closed.Load() { // Close was called since the try
			s.last()
			s.emptied()
		}
		return
	}
	s.let(d.id)
	s.emptied()
}

// again reports whether a delivery gets another try after the result r, and sets its time.
func (s *Sender) again(d *delivery, r result) bool {
	d.tries++
	log := s.logger.With("url", d.to, "id", d.id, "try", d.tries)
	now := time.Now()
	switch {
	case r.err == nil:
		log.Debug("webhook sent")
		s.report("sent")
		return false
	case errors.Is(r.err, errRefused):
		log.Info("webhook refused", "error", brief(r.err))
		s.report("refused")
		return false
	case r.final || s.closed.Load() && !d.kept || d.tries >= s.opts.Tries:
		log.Warn("webhook given up", "error", brief(r.err))
		s.report("given_up")
		return false
	}
	if d.pause == nil {
		d.pause = &backoff.ExponentialBackOff{
			InitialInterval:     s.opts.Pause,
			RandomizationFactor: 0.5,
			Multiplier:          3,
			MaxInterval:         s.opts.Within,
		}
		for range d.tries - 1 { // the tries of another node count
			d.pause.NextBackOff()
		}
	}
	wait := d.pause.NextBackOff()
	d.asked = r.after > 0
	if d.asked {
		wait = r.after + min(wait, r.after/8) // spread, so that deliveries do not all come at once
	}
	if d.due = now.Add(wait); d.due.After(d.end) {
		log.Warn("webhook given up", "error", brief(r.err), "next", wait)
		s.report("given_up")
		return false
	}
	log.Debug("webhook to be tried again", "error", brief(r.err), "in", wait)
	s.report("failed")
	return true
}

// hasten closes the sender for new events, and makes the waiting deliveries due.
func (s *Sender) hasten() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Swap(true) {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.last()
	s.start()
	s.emptied()
}

// last makes the queued deliveries due. Those that are not due because their receiver asked to wait are given up, and those in the
// outbox are left to other nodes. s.mu is held.
func (s *Sender) last() {
	now := time.Now()
	kept := s.queue[:0]
	for _, d := range s.queue {
		if (d.asked || d.kept) && d.due.After(now) {
			s.leave(d)
			continue
		}
		d.due = now
		kept = append(kept, d)
	}
	clear(s.queue[len(kept):])
	s.queue = kept
	heap.Init(&s.queue)
}

// leave gives up a delivery, or leaves it to other nodes. s.mu is held.
func (s *Sender) leave(d *delivery) {
	s.let(d.id)
	if d.kept {
		s.left++
	} else {
		s.unsent++
	}
}

// abandon gives up, or leaves to other nodes, each delivery without a try under way. s.mu is held.
func (s *Sender) abandon() {
	for _, d := range s.queue {
		s.leave(d)
	}
	s.queue = nil
	for _, h := range s.hosts {
		for _, d := range h.parked {
			s.leave(d)
		}
		h.parked = nil
	}
	if s.outbox == nil {
		s.unsent += s.held // the tries under way are about to fail
	}
	s.emptied()
}

// emptied closes s.empty if the sender is closed and holds no delivery. s.mu is held.
func (s *Sender) emptied() {
	if s.closed.Load() && s.held == 0 {
		select {
		case <-s.empty:
		default:
			close(s.empty)
		}
	}
}

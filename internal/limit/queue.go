package limit

import (
	"slices"
	"time"
)

// A queue has the calls that wait for others to end. Each client has a line of its own, and the
// lines take turns. A call that there is room for passes earlier calls of its client that there is
// no room for.
type queue struct {
	lines []*line // that have calls
	next  int     // the line that has the next turn
	n     int     // calls
}

// A line has the calls of one client, in their order.
type line struct {
	client string
	calls  []*waiter
}

// A waiter is a call that waits.
type waiter struct {
	demand demand
	pass   *Pass         // set when the call may begin
	ready  chan struct{} // closed then
}

// join queues a call, or returns its pass if there is room by now.
func (l *Limiter) join(demands []demand) (*waiter, *Pass, *Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pass, full := l.take(demands)
	if full == nil {
		if no := l.charge(demands, time.Now()); no != nil {
			pass.release()
			return nil, nil, no
		}
		return nil, pass, nil
	}
	d := demands[0]
	i := slices.IndexFunc(l.queue.lines, func(one *line) bool { return one.client == d.client })
	switch {
	case l.queue.n >= l.p.Queue:
		return nil, nil, &Refusal{reason: "queue_full", text: full.text + "; so many wait already that it cannot"}
	case i >= 0 && d.client != "" && len(l.queue.lines[i].calls) >= l.mostOfOne():
		return nil, nil, &Refusal{reason: "queue_full", text: full.text + "; so many calls of this client wait already that it cannot"}
	}
	if no := l.charge(demands, time.Now()); no != nil {
		return nil, nil, no
	}
	w := &waiter{demand: d, ready: make(chan struct{})}
	if i < 0 {
		i = len(l.queue.lines)
		l.queue.lines = append(l.queue.lines, &line{client: d.client})
	}
	l.queue.lines[i].calls = append(l.queue.lines[i].calls, w)
	l.queue.n++
	return w, nil, nil
}

// mostOfOne returns how many calls of one client may wait.
func (l *Limiter) mostOfOne() int {
	if l.p.Share <= 0 || l.p.Share >= 1 {
		return l.p.Queue
	}
	return max(1, int(l.p.Share*float64(l.p.Queue)))
}

// leave takes a call out of the queue. If the call may begin already, leave returns its pass.
func (l *Limiter) leave(w *waiter) *Pass {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.pass != nil {
		return w.pass
	}
	for i, one := range l.queue.lines {
		if j := slices.Index(one.calls, w); j >= 0 {
			l.queue.remove(i, j)
			break
		}
	}
	return nil
}

// remove removes a call of a line.
func (q *queue) remove(i, j int) {
	one := q.lines[i]
	one.calls = slices.Delete(one.calls, j, j+1)
	q.n--
	if len(one.calls) > 0 {
		return
	}
	q.lines = slices.Delete(q.lines, i, i+1)
	if i < q.next {
		q.next--
	}
}

// dispatch lets calls begin that there is room for, one of each line in turn. l.mu is held.
func (l *Limiter) dispatch() {
	q := &l.queue
	if q.n == 0 {
		return
	}
	full := make(map[key]bool) // a full count stays full, as no call ends meanwhile
	for tried := 0; tried < len(q.lines); {
		if q.next >= len(q.lines) {
			q.next = 0
		}
		j := slices.IndexFunc(q.lines[q.next].calls, func(w *waiter) bool { return l.fits(&w.demand, full) })
		if j < 0 {
			tried++
			q.next++
			continue
		}
		w := q.lines[q.next].calls[j]
		w.pass = l.newPass(1)
		w.pass.add(&w.demand)
		close(w.ready)
		lines := len(q.lines)
		q.remove(q.next, j)
		if len(q.lines) == lines {
			q.next++
		}
		tried = 0
	}
}

// fits reports whether there is room for a call. It notes a full count in full. l.mu is held.
func (l *Limiter) fits(d *demand, full map[key]bool) bool {
	for _, c := range d.counts[:d.n] {
		if full[c.key] {
			return false
		}
	}
	i := l.full(d)
	if i >= 0 {
		full[d.counts[i].key] = true
	}
	return i < 0
}

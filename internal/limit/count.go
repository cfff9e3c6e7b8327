package limit

import "fmt"

// A count is how many calls of one key are in flight.
type count struct {
	here, elsewhere int // on this node, and on other nodes as far as is known
	shared          int // the number that was last sent to other nodes, see shared.go
}

// A Pass has the slots of requests that begin together. Its methods may be called concurrently;
// those of a nil Pass do nothing.
type Pass struct {
	l     *Limiter
	slots []Slot
	next  int // the first of slots that no request has; guarded by l.mu
}

// A Slot is one request's place among the calls in flight. The methods of a nil Slot do nothing.
type Slot struct {
	l    *Limiter
	keys [3]key
	n    int // of keys; guarded by l.mu. 0: the slot was released
}

func (l *Limiter) newPass(n int) *Pass { return &Pass{l: l, slots: make([]Slot, 0, n)} }

// add counts one more request. l.mu is held.
func (p *Pass) add(d *demand) {
	s := Slot{l: p.l, n: d.n}
	for i := range d.n {
		k := d.counts[i].key
		s.keys[i] = k
		c := p.l.counts[k]
		if c == nil {
			c = &count{}
			p.l.counts[k] = c
		}
		c.here++
	}
	p.slots = append(p.slots, s)
}

// take counts requests, if all of them fit. l.mu is held.
func (l *Limiter) take(demands []demand) (*Pass, *Refusal) {
	counts := 0
	for i := range demands {
		counts += demands[i].n
	}
	if counts == 0 {
		return nil, nil
	}
	p := l.newPass(len(demands))
	for i := range demands {
		if k := l.full(&demands[i]); k >= 0 {
			p.release()
			no := refusalOf(&demands[i], k)
			if at := demands[i].counts[k]; uses(demands, at.key) > at.most {
				no.never, no.text = true, fmt.Sprintf("a batch of %d calls, of which only %d may be in flight", len(demands), at.most)
			}
			return nil, no
		}
		p.add(&demands[i])
	}
	return p, nil
}

// uses returns how many of the requests a key counts.
func uses(demands []demand, k key) (n int) {
	for i := range demands {
		for _, c := range demands[i].counts[:demands[i].n] {
			if c.key == k {
				n++
			}
		}
	}
	return n
}

// full returns the index of the first count without room for another call, or -1. l.mu is held.
func (l *Limiter) full(d *demand) int {
	for i := range d.n {
		if c := l.counts[d.counts[i].key]; c != nil && c.here+c.elsewhere >= d.counts[i].most {
			return i
		}
	}
	return -1
}

// Next returns the slot of the next request, which must release it; nil if the request takes none.
func (p *Pass) Next() *Slot {
	if p == nil {
		return nil
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if p.next >= len(p.slots) {
		return nil
	}
	s := &p.slots[p.next]
	p.next++
	if s.n == 0 {
		return nil
	}
	return s
}

// Release frees the slots that no request has.
func (p *Pass) Release() {
	if p == nil {
		return
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.release()
	p.l.dispatch()
}

// release is Release. l.mu is held.
func (p *Pass) release() {
	if p == nil {
		return
	}
	for ; p.next < len(p.slots); p.next++ {
		p.slots[p.next].free()
	}
}

// Release frees the slot, as its request has ended. A second call does nothing.
func (s *Slot) Release() {
	if s == nil {
		return
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.n > 0 {
		s.free()
		s.l.dispatch()
	}
}

// free frees the slot. l.mu is held.
func (s *Slot) free() {
	for _, k := range s.keys[:s.n] {
		c := s.l.counts[k]
		c.here--
		s.l.settle(k, c)
	}
	s.n = 0
}

// settle forgets a count that is zero. l.mu is held.
func (l *Limiter) settle(k key, c *count) {
	if c.here == 0 && c.elsewhere == 0 && c.shared == 0 {
		delete(l.counts, k)
	}
}

package process

import "sync"

// A sweeper kills all processes that carry a tag, in batches: however many
// conversations end at once, no more than two scans of all processes are needed.
type sweeper struct {
	scan sync.Mutex // held during a scan: one scan is enough for the machine

	mu   sync.Mutex
	next *batch // the batch that can still be joined
}

// A batch has the tags that one scan looks for.
type batch struct {
	tags map[string]bool
	done chan struct{} // closed: err is set
	err  error
}

// sweep returns when no process carries the tag any more, by a scan that started
// after the call. It does nothing on systems other than Linux.
func (s *sweeper) sweep(tag string) error {
	s.mu.Lock()
	b, joined := s.next, true
	if b == nil {
		b, joined = &batch{tags: make(map[string]bool), done: make(chan struct{})}, false
		s.next = b
	}
	b.tags[tag] = true
	s.mu.Unlock()
	if joined {
		<-b.done
		return b.err
	}

	s.scan.Lock() // others join while the scan before this one goes on
	defer s.scan.Unlock()
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()
	b.err = killTagged(b.tags)
	close(b.done)
	return b.err
}

package merge

import (
	"context"
	"errors"
	"slices"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file has the requests that wait for their server to open. A request is in link.waiting until it is
// sent or answered: only the goroutine that takes it from there, under link.mu, does the one or the other.

// waiting is a message that waits until the server is open.
type waiting struct {
	in backend.Inbound
	p  *pending
}

var errNotOpen = errors.New("it did not start in time; the request was not sent, so it has not begun")

// isCall reports whether a request is for this server alone.
func (p *pending) isCall() bool {
	return p.method == protocol.MethodCallTool || p.method == protocol.MethodGetPrompt
}

// limit bounds how long a request waits for an opening: as long as a list that has waited from the beginning of the opening, but at least lateWait. A call of a
// server that has worked waits longer. The request that sets a level is not bounded, as the server must get the level in any case; its client waits no longer than
// setLevel says.
func (l *link) limit(p *pending, began time.Time) {
	if p == nil || p.method == protocol.MethodSetLevel {
		return
	}
	wait := l.c.b.waitFor(matter{member: l.name})
	if p.isCall() {
		wait = l.c.b.waitToCall(l.name)
	}
	if wait > lateWait {
		wait = max(wait-time.Since(began), lateWait)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.waiting, func(w waiting) bool { return w.p == p }) {
		p.timer = time.AfterFunc(wait, func() { l.giveUp(p) })
	}
}

// giveUp answers a request that has waited too long for an opening, unless it waits no more.
func (l *link) giveUp(p *pending) {
	l.mu.Lock()
	if !l.unqueue(p) {
		l.mu.Unlock()
		return
	}
	l.c.work.Add(1) // the request waited: the link is not closed, and closing it waits for this
	defer l.c.work.Done()
	l.mu.Unlock()
	if p.isCall() {
		l.c.b.setWorked(l.name, false)
	}
	l.isLate()
	why := l.c.b.inVain(matter{member: l.name}, errNotOpen)
	l.c.log.Debug("request not sent to one of the merged servers", "server", l.name, "method", p.method, "error", why)
	l.fail(p, why, false)
}

// isLate notes that an opening was waited for in vain. The client is told when the server works.
func (l *link) isLate() {
	l.c.b.setLate(matter{member: l.name}, true)
	l.mu.Lock()
	open := l.state == linkOpen // since a moment, and may have been noted so before
	l.unknown = l.unknown || !open
	l.mu.Unlock()
	if open {
		l.c.b.setLate(matter{member: l.name}, false)
		return
	}
	l.c.log.Log(context.Background(), l.c.b.fails(matter{member: l.name}, errNotOpen), "server of the merged ones is late: clients go on without it, and are told when it is there", "server", l.name)
}

// withdraw takes back a request if it still waits for an opening, and reports whether it did. The request is not answered.
func (l *link) withdraw(id []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pending[string(jsonrpc.Key(id))]
	return p != nil && l.unqueue(p)
}

// unqueue takes a request from those that wait, and reports whether it was there. l.mu is held.
func (l *link) unqueue(p *pending) bool {
	i := slices.IndexFunc(l.waiting, func(w waiting) bool { return w.p == p })
	if i < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	if key := string(jsonrpc.Key(p.id)); l.pending[key] == p {
		delete(l.pending, key)
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	return true
}

// unqueueAll removes all messages that wait, and returns them. l.mu is held.
func (l *link) unqueueAll() []waiting {
	all := l.waiting
	l.waiting = nil
	for _, w := range all {
		if w.p != nil && w.p.timer != nil {
			w.p.timer.Stop()
		}
	}
	return all
}

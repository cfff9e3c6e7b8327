package session

import (
	"context"
	"time"

	"holdfast/backend"
	"holdfast/internal/processes"
)

// placeWait is how long a new session waits for a place, as the process of a conversation that is being
// closed may take its time to end. placeAgainWait is how long a call that is made again after a take-over
// waits for one: there may be many such calls at a time, and no connection is held for them. Any other call
// in flight waits as long as its backend may take to open.
const (
	placeWait      = 5 * time.Second
	placeAgainWait = 5 * time.Minute
)

// A placed conversation has one of the places of processes, until it is closed.
type placed struct {
	backend.Conn
	place *processes.Place
}

// Close implements [backend.Conn].
func (p *placed) Close() error {
	defer p.place.Free()
	return p.Conn.Close()
}

// A processOwner is a session that may need a process.
type processOwner struct{ s *Session }

// NeedsProcess implements [processes.Owner].
func (o processOwner) NeedsProcess() bool {
	return o.s.m.many == nil || o.s.m.many.StartsProcess(o.s.Server())
}

// Tenant implements [processes.Owner]. A session that was taken over had its place at another node.
func (o processOwner) Tenant() (name string, shared bool) { return o.s.Tenant(), !o.s.taken }

// Gone implements [processes.Owner].
func (o processOwner) Gone() error {
	if o.s.isClosed() {
		return o.s.goneError()
	}
	return nil
}

// LastSeen implements [processes.Owner].
func (o processOwner) LastSeen() int64 { return o.s.use.lastSeen.Load() }

// CloseUnused implements [processes.Owner].
func (o processOwner) CloseUnused() bool { return o.s.isUnused() && o.s.closeUnused() }

// TakePlace takes a place for another process of the conversation, for a call that must be alone in one (package
// translate). It does not wait.
func (l *link) TakePlace() (free func(), ok bool) {
	p, err := l.s.m.processes.Take(context.Background(), processOwner{l.s}, 0, false)
	return p.Free, err == nil
}

// checkPlace reports whether a conversation could be opened for the session now or soon: the
// error wraps [ErrBusy] if not.
func checkPlace(s *Session) (full error) {
	b, o := &s.m.processes, processOwner{s}
	if b.Most <= 0 {
		return nil
	}
	locked(s, func() {
		if s.backend.link == nil && s.backend.opening == nil {
			full = b.Promise(o)
		}
	})
	if full != nil && b.MakeRoom(o) {
		return nil
	}
	return full
}

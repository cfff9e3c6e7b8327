package session

import (
	"fmt"
	"sync/atomic"

	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A tenant is a principal, or the address of an anonymous client, that use is counted
// against. All sessions of it on this node share one.
type tenant struct {
	name  string       // as [caller.TenantOf] makes it
	calls atomic.Int64 // requests in flight
	held  atomic.Int64 // bytes of those
	// looked is when its sessions were last looked through for some to end, by the manager's clock.
	looked atomic.Int64

	carriers map[*carrier]struct{} // on this node; guarded by carriers.mu

	sessions int // guarded by roster.mu
}

// checkMemory returns an error that wraps [ErrBusy] if there is no room to hold requests until they are
// answered: one tenant's requests in flight leave as much room to the others.
func (t *tenant) checkMemory(flight *budget.Flight, msgs []jsonrpc.Message) error {
	size := int64(0)
	for m := range protocol.Requests(msgs) {
		size += int64(len(m.Raw))
	}
	held := t.held.Load()
	if held > 0 && held+size > flight.Share() || flight.Used()+size > flight.Most() && size > largeBody {
		return fmt.Errorf("%w: a request of %d bytes beside those in flight is more than --memory has room for", ErrBusy, size)
	}
	return nil
}

// A load is the requests in flight. Its methods may be called concurrently.
type load struct {
	most, share, ofSession int // bounds: in all, of one tenant, and of one session of a client

	calls atomic.Int64
}

// admit counts n more requests in flight, if they are within the limits. Requests about calls that were begun before
// have as much room again: else clients could not cancel these calls, or get their outcomes, while they fill the limits.
func (l *load) admit(s *Session, n int32, aboutBegun bool) error {
	room := int64(1)
	if aboutBegun {
		room = 2
	}
	if got := s.use.calls.Add(n); int64(got) > room*int64(l.ofSession) && s.modern == "" {
		s.use.calls.Add(-n)
		return fmt.Errorf("%w: %d requests in this session", ErrBusy, l.ofSession)
	}
	switch all, own := l.count(s, n); {
	case all > room*int64(l.most):
		l.dismiss(s, n)
		return fmt.Errorf("%w: %d requests on this node (--max-calls or MaxCalls)", ErrBusy, l.most)
	case own > room*int64(l.share) && s.tenant.name != "":
		l.dismiss(s, n)
		return fmt.Errorf("%w: %d requests of this client (--max-share or MaxShare, of --max-calls)", ErrBusy, l.share)
	}
	return nil
}

// dismiss counts n requests less.
func (l *load) dismiss(s *Session, n int32) {
	l.count(s, -n)
	if s.use.calls.Add(-n) == 0 {
		s.use.touch() // idle from now on
	}
}

// count counts n more requests of a session, or less, in flight; it returns how many
// there are in all, and of the tenant.
func (l *load) count(s *Session, n int32) (all, own int64) {
	return l.calls.Add(int64(n)), s.tenant.calls.Add(int64(n))
}

// Calls returns how many requests are in flight.
func (l *load) Calls() int { return int(l.calls.Load()) }

// Load returns how many requests are in flight, and how many sessions are open.
func (m *Manager) Load() (calls, sessions int) { return m.Calls(), m.size() }

// shareOf is how much of a bound one tenant may have.
func (o *Options) shareOf(most int) int { return max(1, int(o.MaxShare*float64(most))) }

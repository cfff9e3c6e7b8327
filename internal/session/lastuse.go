package session

import (
	"sync/atomic"
	"time"
)

// times are by the manager's clock.
type times struct {
	zero        time.Time     // the clock counts from it
	resumedAt   atomic.Int64  // when the process was last found to have stood still
	unusedEnded atomic.Int64  // when sessions were last looked through for some to end
	keysTended  time.Duration // when tendKeys last did; only its goroutine uses it
}

// clock is the manager's clock, which is never set: a machine's wall clock may
// jump, and sessions must neither expire nor stay for that.
func (t *times) clock() time.Duration { return time.Since(t.zero) }

// noteStandstill notes at a look for idle sessions that the process has stood still, if the look was due long
// before: messages of their clients wait to be read. So the time until now does not count as idle.
func (t *times) noteStandstill(now, due, ttl time.Duration) {
	if now-due > max(ttl/2, time.Second) {
		t.resumedAt.Store(int64(now))
	}
}

// A usage says how much a session is used, and when it was. It needs no lock.
type usage struct {
	times     *times
	lastSeen  atomic.Int64 // when the client last sent something, by the manager's clock
	heldUntil atomic.Int64 // until when it does not expire, by the manager's clock
	reserved  atomic.Int32 // requests that wait for their turn, or have it as their carrier, and may not have begun
	calls     atomic.Int32 // requests in flight
	readers   atomic.Int32 // that are connected
	left      atomic.Bool  // its client has ended it, and heirs in it are kept
	lasts     atomic.Bool  // a message may have left state in its server that another conversation does not begin with
	expired   atomic.Bool  // it was idle for too long, and has ended
	lost      atomic.Bool  // its server has ended it, and the messages of its calls are kept; left is set, too
}

// isIdle reports whether nothing is in flight, and no reader is connected.
func (u *usage) isIdle() bool {
	return u.calls.Load() == 0 && u.readers.Load() == 0 && u.reserved.Load() == 0
}

// touch notes that the client has sent something, so that the session does not expire.
func (u *usage) touch() { u.lastSeen.Store(int64(u.times.clock())) }

// sinceSeen returns how long ago the client sent something, by the manager's clock.
func (u *usage) sinceSeen(now time.Duration) time.Duration {
	return now - time.Duration(max(u.lastSeen.Load(), u.times.resumedAt.Load()))
}

// expires reports whether the session has had nothing to do for too long. A call that runs with no client
// connected keeps its session for a day, not for ever. An initialize of revision 2024-11-05 that no client
// waits for does not: opens says that it is one.
func (u *usage) expires(now, ttl time.Duration, opens bool) bool {
	quiet := u.sinceSeen(now)
	switch calls := u.calls.Load() > 0; {
	case u.isHeld(now), u.reserved.Load() > 0, u.readers.Load() > 0:
		return false
	case u.isLeft() && !calls:
		return true
	case calls && !opens:
		return quiet > max(ttl, 24*time.Hour)
	}
	return quiet > ttl
}

// isLeft reports whether the session's client has ended it.
func (u *usage) isLeft() bool { return u.left.Load() }

// hold keeps the session from expiring for a time: a client may come back for its calls.
func (u *usage) hold(d time.Duration) {
	until := int64(u.times.clock() + d)
	for at := u.heldUntil.Load(); at < until && !u.heldUntil.CompareAndSwap(at, until); {
		at = u.heldUntil.Load()
	}
}

// isHeld reports whether a client may come back for the session's calls.
func (u *usage) isHeld(now time.Duration) bool { return now < time.Duration(u.heldUntil.Load()) }

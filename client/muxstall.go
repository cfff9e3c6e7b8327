package client

import (
	"errors"
	"time"

	"holdfast/jsonrpc"
)

// mostQuiet bounds how long a call over a [mux] may be quiet before the server is asked for
// its status.
const mostQuiet = 15 * time.Second

// A stall watches a call that was sent over a [mux]. If another client resumes the call, its
// messages go there, and this connection stays open without them. So after a while without a
// message the stall asks the server for the call's status. The call is resumed here only
// when it has ended: two clients that both resume it would take it from each other.
type stall struct {
	wait    time.Duration // how long the call may be quiet now
	last    time.Time     // when a message came last, at the last look
	ended   bool          // the call had ended then, with messages that no client had read
	unknown bool          // the server did not know the call then
	off     bool          // the server has no status requests
}

// look asks the server for the status of a call that has been quiet for too long. It
// returns when to look again, or errNext if the call must be resumed.
func (s *stall) look(k *call) (time.Duration, error) {
	if s.off {
		return forever, nil
	}
	at, token := k.cameLast()
	if !at.Equal(s.last) || s.wait == 0 {
		*s = stall{last: at, wait: firstPoll}
	}
	if since := time.Since(at); since < s.wait {
		return s.wait - since, nil
	}
	if s.wait = min(2*s.wait, mostQuiet); !token {
		return firstPoll, nil
	}
	status, err := k.c.Status(k.ctx, k.snapshot())
	var e *jsonrpc.Error
	switch known := errors.As(err, &e); {
	case known && e.Code == jsonrpc.CodeMethodNotFound:
		s.off = true
	case known && e.Code == jsonrpc.CodeInvalidParams && s.unknown:
		return 0, final("%w", errForgotten)
	case known && e.Code == jsonrpc.CodeInvalidParams:
		s.unknown, s.wait = true, firstPoll
	case err != nil:
	case status.Status != "completed" && status.Status != "failed":
		s.ended, s.unknown = false, false
	case status.HasPendingMessage && !s.ended:
		s.ended, s.wait = true, firstPoll // another client may still be reading these
	default:
		if at, _ := k.cameLast(); at.Equal(s.last) { // no message has come since
			return 0, errNext
		}
	}
	return s.wait, nil
}

// cameLast returns when a message of the call came last, and whether the call has a token
// for a status request. If no message has come, the time is that of the first look.
func (k *call) cameLast() (at time.Time, token bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.link.came.IsZero() {
		k.link.came = time.Now()
	}
	return k.link.came, k.ways.token != ""
}

package client

import (
	"errors"
	"time"

	"holdfast/jsonrpc"
)

// mostQuiet is the longest that a call which was sent over a [mux] may be quiet before
// the server is asked for its status.
const mostQuiet = 15 * time.Second

// A stall is how a call that was sent over a [mux] is looked after until it is over. Who
// resumes it elsewhere takes over what it says, and the connection lives on without. So
// the server is asked whether a call is over that has been quiet for a while. Only then
// it is resumed here, as two who resume a call take it from each other.
type stall struct {
	wait    time.Duration // how long the call may be quiet now
	last    time.Time     // when something had come, by the last look
	ended   bool          // it was over then, with something that nobody had read
	unknown bool          // the server did not know of it then
	off     bool          // the server can't be asked
}

// look asks the server for the status of a call that has been quiet for too long. It
// returns when to look again, or errNext where the call is to be resumed.
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
	status, err := k.c.StatusOf(k.ctx, k.snapshot())
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
		s.ended, s.wait = true, firstPoll // who reads it has time to come to its end
	default:
		if at, _ := k.cameLast(); at.Equal(s.last) { // nothing has come since
			return 0, errNext
		}
	}
	return s.wait, nil
}

// cameLast returns when anything of the call came last, or it was sent, and whether
// there is a token to ask for it by.
func (k *call) cameLast() (at time.Time, token bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.link.came.IsZero() {
		k.link.came = time.Now()
	}
	return k.link.came, k.ways.token != ""
}

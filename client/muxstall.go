package client

import (
	"errors"
	"time"

	"holdfast/jsonrpc"
)

// mostQuiet is the longest that a call which has gone over a line may be quiet before
// the server is asked how it does.
const mostQuiet = 15 * time.Second

// attend looks after a call that has gone over a line, until it is over. Whoever
// resumes it elsewhere takes over what it says, and the line lives on without: so of
// a call that has been quiet for a while the server is asked whether it is over. Only
// then it is resumed here, as two who resume a call take it from each other.
func (l *line) attend(k *call) {
	wait := firstPoll
	t := time.NewTimer(wait)
	defer t.Stop()
	var (
		last    time.Time // when something had come, by the last look
		ended   bool      // it was over then, with something that nobody had read
		unknown bool      // the server did not know of it then
	)
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-t.C:
		}
		at, token := k.cameLast()
		if !at.Equal(last) {
			last, wait, ended, unknown = at, firstPoll, false, false
		}
		if since := time.Since(at); since < wait {
			t.Reset(wait - since)
			continue
		}
		if wait = min(2*wait, mostQuiet); !token {
			t.Reset(firstPoll)
			continue
		}
		status, err := l.c.StatusOf(k.ctx, k.state())
		var e *jsonrpc.Error
		switch known := errors.As(err, &e); {
		case known && e.Code == jsonrpc.CodeMethodNotFound:
			return // then it is waited for
		case known && e.Code == jsonrpc.CodeInvalidParams && unknown:
			k.fail(&unknownOutcome{errForgotten})
			k.cancel(nil)
			return
		case known && e.Code == jsonrpc.CodeInvalidParams:
			unknown, wait = true, firstPoll
		case err != nil:
		case status.Status != "completed" && status.Status != "failed":
			ended, unknown = false, false
		case status.HasPendingMessage && !ended:
			ended, wait = true, firstPoll // whoever reads it has time to come to its end
		default:
			l.readOn(k, last)
		}
		t.Reset(wait)
	}
}

// cameLast returns when anything of the call came last, or it was sent, and whether
// there is a token to ask for it by.
func (k *call) cameLast() (at time.Time, token bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.came.IsZero() {
		k.came = time.Now()
	}
	return k.came, k.place.token != ""
}

// readOn resumes a call over the connection that there is, where it went before, unless
// that was done, or anything came of it, since a time.
func (l *line) readOn(k *call, since time.Time) {
	if at, _ := k.cameLast(); !at.Equal(since) {
		return
	}
	l.mu.Lock()
	up := l.up
	if up != 0 {
		l.on[k] = up
	}
	l.mu.Unlock()
	if up == 0 {
		return // it is resumed over the next one
	}
	if raw := k.lineAgain(true, true); raw != nil {
		_ = l.write(k.ctx, up, raw) // what fails is sent again over the next connection
	}
}

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"holdfast/internal/protocol"
)

// mostCuts is how many connections in a row may carry the request and end without bringing a message.
const mostCuts = 8

// failures counts the attempts of a call that have failed.
type failures struct {
	cuts     int           // connections in a row that have ended without bringing a message
	silences int           // attempts to which the server did not begin to answer
	wait     time.Duration // how long the last attempt to send the request could wait for the answer
	waited   time.Duration // how long such attempts have waited
	renewals int           // sessions that were begun for the call
	last     error         // how the only attempt of origin.once has failed
	paged    time.Time     // since when a web page has come at each attempt; zero: none has come at the last one
	listed   bool          // tools were listed for it: the server had refused its headers
}

// cut notes that a connection has ended; fresh says that it brought a message. It returns
// how many in a row brought none.
func (f *failures) cut(fresh bool) int {
	if f.cuts++; fresh {
		f.cuts = 0
	}
	return f.cuts
}

// silent notes that the server did not begin to answer an attempt that has sent the request.
func (f *failures) silent() {
	f.silences++
	f.waited += f.wait
}

// page notes whether a web page has come in the place of the server's answer.
func (f *failures) page(came bool) {
	switch {
	case !came:
		f.paged = time.Time{}
	case f.paged.IsZero():
		f.paged = time.Now()
	}
}

// retry decides what follows an attempt that ended with err. It returns nil for another attempt, after waiting
// as long as need be, or why there will be none. left says that the attempt may have reached the server.
func (k *call) retry(err error, left bool) error {
	var no *refusal
	if k.ctx.Err() == nil {
		if waited, ended := k.retrySubscription(err); waited {
			return ended
		}
	}
	k.failures.page(errors.As(err, &no) && no.page)
	switch {
	case k.ctx.Err() != nil:
		return context.Cause(k.ctx)
	case k.origin.once:
		if k.failures.last = err; err == nil {
			k.failures.last = errCut
		}
		return k.failures.last
	case errors.Is(err, errNext):
		return nil
	case panicked(err), isFinal(err):
		return err
	case errors.As(err, &no):
		return k.retryRefused(no)
	case err == nil || errors.Is(err, errCut):
		if k.sendsRequest() && k.failures.cut(k.backoff.fresh) >= mostCuts {
			return errCutOften
		}
		return k.backoff.wait(k.ctx, k.c, nil)
	case errors.Is(err, errSilent) && k.key == "" && k.sendsRequest() && (k.mayHaveRun() || k.early()):
		k.failures.silent()
		if k.safe() && !k.early() && (k.failures.silences == 1 || k.failures.waited < k.c.opts.AnswerTimeout) {
			return k.backoff.wait(k.ctx, k.c, err) // the connection may have been at fault
		}
		return fmt.Errorf(protocol.TextSilent+"%v", k.failures.waited)
	case errors.Is(err, errSilent) && k.key != "" && k.sendsRequest() && !k.early():
		k.failures.silent()
		return k.backoff.wait(k.ctx, k.c, err)
	case errors.Is(err, errSilent) && k.kind == attemptEvents && left:
		// Some servers hold the header back until the first event.
		k.backoff.slow++
		return k.backoff.wait(k.ctx, k.c, nil)
	case k.early():
		// It is not known yet whether there is a server at all.
		return k.backoff.waitBriefly(k.ctx, k.c, err)
	}
	return k.backoff.wait(k.ctx, k.c, err)
}

// errCutOften ends a call after [mostCuts] connections.
var errCutOften = errors.New("the server ends each connection without an answer")

// sendsRequest reports whether the last attempt was the request itself.
func (k *call) sendsRequest() bool { return k.kind == attemptRequest || k.kind == attemptAgain }

// early reports whether the call fails soon because it is not known yet whether there is a
// server: it is one of those that begin the first session.
func (k *call) early() bool {
	return k.origin.failFast || k.origin.response == nil && k.opens()
}

// retryRefused is retry for a refusal.
func (k *call) retryRefused(no *refusal) error {
	if k.doubts(no) {
		if decided, err := k.retryDoubtful(no); decided {
			return err
		}
	}
	switch {
	case no.answer:
		k.taken()
		k.c.response(k, no.response)
		return nil
	case no.page && !k.early() && (k.kind != attemptRequest || k.key != "" || k.safe() && k.c.served()):
		return k.retryPage(no)
	case no.instead != nil:
		return no.instead
	}
	if no.passes() {
		if k.kind == attemptRequest && k.mayHaveRun() && k.key == "" && !k.safe() {
			return no
		}
		k.backoff.atLeast = no.after
		switch {
		case k.method == protocol.MethodDiscover:
			return no // the server may not know the method
		case k.early():
			return k.backoff.waitBriefly(k.ctx, k.c, no)
		}
		return k.backoff.wait(k.ctx, k.c, no)
	}
	switch {
	case k.sendsRequest():
		return k.retryRequest(no)
	case no.status == http.StatusConflict, no.auth:
		// The server has not noticed the end of the last connection, or the Authorizer has no token now.
		return k.backoff.wait(k.ctx, k.c, no)
	case !no.shuts():
		return k.backoff.waitFor(k.ctx, no, min(k.c.opts.Silence, k.c.opts.GiveUp))
	case k.kind == attemptAnswers:
		k.c.requests.sendEach(k)
	}
	k.refuse()
	k.backoff.last = no
	return nil
}

// retryPage is retryRefused for a web page in the place of the server. A Holdfast is waited for until it is given up: it shows no
// pages. Another server may always answer just this call with a page, and its request all the more: the time counts from the first page.
func (k *call) retryPage(no *refusal) error {
	most := k.c.opts.GiveUp
	switch {
	case k.current().keys:
	case k.sendsRequest():
		most = min(k.c.opts.BeginWithin, most)
	default:
		most = min(k.c.opts.Silence, most)
	}
	why := cmp.Or(no.instead, error(no))
	if time.Since(k.failures.paged) >= most {
		return why
	}
	return k.backoff.wait(k.ctx, k.c, why)
}

// served reports whether a server has answered at the URL: a page there is not the server's own.
func (c *Conn) served() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.state != sessionNone || c.modern.revision != ""
}

// retryRequest is retryRefused for the request itself.
func (k *call) retryRequest(no *refusal) error {
	s := k.current()
	switch {
	case no.rpc != nil && no.rpc.Code == protocol.CodeHeaderMismatch && k.method == protocol.MethodCallTool && k.isModern() && !k.failures.listed:
		k.failures.listed = true
		if err := k.listAgain(); err != nil {
			k.c.logger.Warn("the server refuses the headers of a call, and its tools could not be listed", "error", err)
			return no
		}
		return nil
	case no.forgot() && s.id != "" && k.method != protocol.MethodInitialize:
		return k.lost(s)
	case no.status == http.StatusConflict && k.key != "":
		return k.backoff.wait(k.ctx, k.c, nil) // the first request with the key is at work (IETF draft, section 2.6)
	}
	return no
}

// refuse notes that the server has refused the last kind of attempt.
func (k *call) refuse() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ways.refuse(k.kind)
}

// lost decides what becomes of a call when its session has ended. A request that the server
// did not take, or that is retry-safe, is sent again in a new session.
func (k *call) lost(s session) error {
	ended := errors.New("the server has ended the session in which the call ran")
	if k.origin.otherSession {
		return ended // it is not the session of the other calls
	}
	fresh, err := k.c.renew(k.ctx, s)
	switch {
	case k.body == nil, k.mayHaveRun() && !k.safe():
		return ended
	case err != nil:
		return fmt.Errorf("the server has ended the session, and did not begin another: %w", err)
	}
	k.mu.Lock()
	k.session, k.ways = fresh, ways{}
	k.keyAnew(fresh) // the server may be of another version
	k.mu.Unlock()
	k.c.changed()
	k.failures.renewals++
	if k.failures.renewals > 3 {
		return errors.New("the server ends each session at once")
	}
	return nil
}

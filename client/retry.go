package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"holdfast/internal/protocol"
)

// heed decides what follows from how an exchange ended: nil to try the next one,
// after waiting as long as need be.
func (k *call) heed(err error) error {
	var no *refusal
	switch {
	case k.ctx.Err() != nil:
		return context.Cause(k.ctx)
	case errors.Is(err, errNext):
		return nil
	case panicked(err):
		return err
	case errors.As(err, &no):
		return k.heedRefusal(no)
	case err == nil || errors.Is(err, errCut):
		if (k.door == doorPost || k.door == doorAgain) && k.pace.cut() >= mostCuts {
			return errors.New("the server ends each connection without an answer")
		}
		return k.pace.wait(k.ctx, k.c, nil)
	case errors.Is(err, errHopeless):
		return err
	case errors.Is(err, errSilent) && k.key == "" && (k.door == doorPost || k.door == doorAgain) && (k.maybe || k.early()):
		k.pace.silences++
		if k.pace.silences == 1 && k.safe() && !k.early() {
			return k.pace.wait(k.ctx, k.c, err) // it may have been the connection
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		return fmt.Errorf("the server did not begin to answer within %v", k.patience())
	case errors.Is(err, errSilent) && k.door == doorLast && k.left:
		// Some servers hold the header back until there is something to say.
		k.pace.slow++
		return k.pace.wait(k.ctx, k.c, nil)
	case k.early():
		// Whoever waits for the first answer of all would rather know.
		return k.pace.waitBriefly(k.ctx, k.c, err)
	}
	return k.pace.wait(k.ctx, k.c, err)
}

// early says whether the call is one of those that begin the first session, for
// whose answer somebody waits who does not know yet whether there is a server.
func (k *call) early() bool {
	return k.brief || k.inner == nil && (k.method == protocol.MethodInitialize || k.method == protocol.MethodDiscover)
}

// heedRefusal is heed for an answer that says no.
func (k *call) heedRefusal(no *refusal) error {
	if no.passes() {
		if k.door == doorPost && k.maybe && k.key == "" && !k.safe() {
			return no
		}
		k.pace.atleast = no.after
		switch {
		case k.method == protocol.MethodDiscover:
			return no // it may be a word that the server does not know
		case k.early() && no.after > 0:
			return k.pace.waitFor(k.ctx, no, k.c.opts.ConnectTimeout)
		case k.early():
			return k.pace.waitBriefly(k.ctx, k.c, no)
		}
		return k.pace.wait(k.ctx, k.c, no)
	}
	switch {
	case k.door == doorPost, k.door == doorAgain:
		return k.heedPost(no)
	case no.status == http.StatusConflict, no.auth:
		// It has not noticed the end of the last connection, or nobody could be asked
		// for a token now.
		return k.pace.wait(k.ctx, k.c, no)
	case !no.shuts():
		return k.pace.waitFor(k.ctx, no, min(k.c.opts.Silence, k.c.opts.GiveUp))
	case k.door == doorAnswers:
		k.c.scatter(k)
	}
	k.shut()
	k.pace.last = no
	return nil
}

// heedPost is heedRefusal for the request itself.
func (k *call) heedPost(no *refusal) error {
	k.mu.Lock()
	s := k.session
	k.mu.Unlock()
	switch {
	case no.forgot() && s.id != "" && k.method != protocol.MethodInitialize:
		return k.lost(s)
	case no.status == http.StatusConflict && k.key != "":
		return k.pace.wait(k.ctx, k.c, nil) // the first of its key is at work (IETF draft, section 2.6)
	case k.method == protocol.MethodInitialize && k.c.fallsBack(no.status):
		return k.c.fallBack(k, no)
	}
	return no
}

// shut closes the door that was refused.
func (k *call) shut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shutLocked()
}

// shutLocked is shut while k.mu is held.
func (k *call) shutLocked() {
	switch k.door {
	case doorStream, doorAnswers:
		k.dead.stream = true
	case doorLast:
		k.dead.last = true
	case doorToken:
		k.dead.token = true
	default:
		k.dead.again = true
	}
}

// lost is what becomes of a call whose session the server does not have any more.
// One that the server did not take, or that changes nothing, is sent again in a new
// session.
func (k *call) lost(s session) error {
	ended := errors.New("the server has ended the session in which the call ran")
	if k.foreign {
		return ended // which is not the one of the others
	}
	fresh, err := k.c.renew(k.ctx, s)
	switch {
	case k.body == nil, k.maybe && !k.safe():
		return ended
	case err != nil:
		return fmt.Errorf("the server has ended the session, and did not begin another: %w", err)
	}
	k.mu.Lock()
	k.session, k.place, k.dead = fresh, place{}, doors{}
	k.keyAnew(fresh) // its server may be another version
	k.mu.Unlock()
	k.c.changed()
	k.pace.renewals++
	if k.pace.renewals > 3 {
		return errors.New("the server ends each session at once")
	}
	return nil
}

package again

import (
	"slices"
	"sync"
	"time"

	"holdfast/jsonrpc"
)

// This file is for a request that its client cancels while the request waits for a call like it to be stranded. Had the request been attached to
// the call by then, its cancellation would have ended the call. So it ends the call as soon as the call is stranded.

// mostUnwanted bounds how many cancelled requests of a node wait at a time. More wait for no call.
const mostUnwanted = 256

// unwanted are the cancelled requests that wait for calls. The zero value is ready to use. Its methods may be called concurrently.
type unwanted struct {
	mu  sync.Mutex
	all []*attachment
}

// add adds a request. It is false if too many wait.
func (u *unwanted) add(a *attachment) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.all) >= mostUnwanted {
		return false
	}
	u.all = append(u.all, a)
	return true
}

// remove removes a request.
func (u *unwanted) remove(a *attachment) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = slices.DeleteFunc(u.all, func(other *attachment) bool { return other == a })
}

// before returns the requests that are like another, and came before it.
func (u *unwanted) before(a *attachment) (found []*attachment) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, other := range u.all {
		if like := &other.st.like; (like.Asked == a.st.like.Asked || like.IsNamed(&a.st.like)) && other.came.Before(a.came) {
			found = append(found, other)
		}
	}
	return found
}

// mayWait reports whether a twin of the request may yet be found to be stranded.
func (a *attachment) mayWait() bool {
	waited := time.Since(a.came)
	return waited < a.patience || waited < settlesWithin && slices.ContainsFunc(a.twins, a.t.isUnsettled)
}

// NotAttached notes that a request has ended before [Calls.Attach] could be called. If its client cancelled it, a call that it makes again ends, too.
func (t *Calls) NotAttached(c Call, m *jsonrpc.Message) {
	if a := t.newAttachment(c, m); a != nil && t.stranded.isCancelled(a.st) {
		a.cancelled(a.find(), m)
	}
}

// cancelled has the call end that the request makes again, which was cancelled before it was attached. found says that the call was found.
func (a *attachment) cancelled(found bool, m *jsonrpc.Message) {
	far := !found && a.isFar()
	if !found && !far && len(a.twins) == 0 { // as a rule
		return
	}
	var q *loanQuery
	if far { // else no message is kept meanwhile
		q = a.newQuery(m)
	}
	a.t.o.Work.Go(func() {
		switch {
		case found:
			a.withdraw()
		case len(a.twins) == 0 || !a.awaitUnwanted():
			a.withdrawFar(q)
		}
	})
}

// awaitUnwanted waits for a call that the request, which was cancelled, would have been attached to, and withdraws the call. It reports whether there was one.
func (a *attachment) awaitUnwanted() bool {
	if !a.t.unwanted.add(a) {
		return false
	}
	defer a.t.unwanted.remove(a)
	for wait := time.Millisecond; !a.c.In().IsClosed(); wait = min(2*wait, mostPause) {
		may := a.mayWait() // asked first: the twin may be settled, and stranded, meanwhile
		if found := a.withdrawFound(); found || !may {
			return found
		}
		pause(a.t.o.Work.Context(), wait)
	}
	return false
}

// withdrawFound withdraws the stranded call that the request, which was cancelled, makes again, unless it has before, and reports whether there is or was one.
func (a *attachment) withdrawFound() bool {
	a.withdrawing.Lock()
	before := a.of != nil
	if !before {
		a.take()
	}
	found := a.of != nil
	a.withdrawing.Unlock()
	if before || !found {
		return found
	}
	a.withdraw()
	return true
}

// withdraw withdraws the call that was found for the request, which was cancelled.
func (a *attachment) withdraw() {
	defer a.t.stranded.leave(a.st)
	if a.call != nil && !a.call.Standing().IsFollowed() {
		withdraw(a.call, a.c.In(), a.of.number)
	}
}

package auth

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Rights are the rights of a request's client for as long as its connection stays open: they change with the file of keys, with the
// policy of the endpoint, and with time. The methods may be called concurrently.
type Rights struct {
	policy func(*http.Request) *Policy
	r      *http.Request // the request that was authenticated
	who    atomic.Pointer[verified]
	lost   atomic.Pointer[loss]
}

// A loss is the reason why a client may not go on, as an HTTP response has it.
type loss struct {
	status          int
	challenge, text string
}

// RightsOf returns the rights of the client of a request that has passed [Require], or nil.
func RightsOf(ctx context.Context) *Rights {
	rights, _ := ctx.Value(identityKey{}).(*Rights)
	return rights
}

// Check returns the reason why the client may not go on: with status 401 its token or key is not valid any more, and with 403 it
// lacks a scope. With status 0 the client may go on. Check does not block.
func (a *Rights) Check() (status int, challenge, text string) {
	if l := a.lost.Load(); l != nil {
		return l.status, l.challenge, l.text
	}
	return 0, "", ""
}

// Watch checks the rights now, and again whenever they may have changed, until stop is called. It calls changed after each check,
// but not after stop has returned.
func (a *Rights) Watch(changed func()) (stop func()) {
	p := a.policy(a.r)
	w := &watcher{rights: a, changed: changed}
	p.Open.add(w)
	w.review(false) // the policy may have changed since the request was authenticated
	return func() {
		p.Open.remove(w)
		w.stop()
	}
}

// An Open has the connections that stay open. Its methods may be called concurrently. add and remove do nothing on nil.
type Open struct {
	mu  sync.Mutex
	all map[*watcher]struct{}
}

func (o *Open) add(w *watcher) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = make(map[*watcher]struct{})
	}
	o.all[w] = struct{}{}
}

func (o *Open) remove(w *watcher) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, w)
}

// Review checks the rights of all connections again, after the keys or the policies of endpoints have changed.
func (o *Open) Review() {
	o.mu.Lock()
	all := slices.Collect(maps.Keys(o.all))
	o.mu.Unlock()
	for _, w := range all {
		w.review(false)
	}
}

// A watcher is a connection that stays open.
type watcher struct {
	rights  *Rights
	changed func()

	mu    sync.Mutex // held while the rights are checked
	timer *time.Timer
	over  bool
}

// The times after which the token of an open connection is checked again, though nothing has changed on this node.
const (
	reviewToken  = keysFresh   // the issuer may have withdrawn the key that signed the token
	reviewOpaque = time.Minute // the issuer is asked: it may have withdrawn the token
)

// review checks the rights. whole says that the token is checked like that of a new request; otherwise only changes on this node
// count.
func (w *watcher) review(whole bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	next := w.rights.review(whole)
	switch {
	case next == 0:
		if w.timer != nil {
			w.timer.Stop()
		}
	case w.timer == nil:
		w.timer = time.AfterFunc(next, func() { w.review(true) })
	default:
		w.timer.Reset(next)
	}
	w.changed()
}

// stop ends the watcher. A check that runs has ended when stop returns.
func (w *watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// review checks the rights, and returns the time until the next check; 0: only a change needs another check. While the issuer cannot
// be asked, nothing changes until the token expires. After that the issuer is not asked any more.
func (a *Rights) review(whole bool) (next time.Duration) {
	p, was := a.policy(a.r), a.who.Load()
	shown, _ := tokenOf(a.r)
	token := shown.token
	static := p.Keys != nil && strings.HasPrefix(token, keyPrefix)
	who := was
	var err error
	past := time.Duration(-1)
	if !was.expires.IsZero() {
		past = time.Since(was.expires)
	}
	switch {
	case past >= 0 && past >= p.Grace:
		err = errInvalid
	case past >= 0:
		err = p.lacks(was)
	case whole || static:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.r.Context()), fetchWithin)
		who, err = p.authenticate(a.r.WithContext(ctx), true)
		cancel()
		ended := !was.expires.IsZero() && !time.Now().Before(was.expires) // just now
		if errors.Is(err, errUnavailable) || ended && errors.Is(err, errInvalid) {
			who, err = was, p.lacks(was)
		}
	default:
		err = p.lacks(was)
	}
	if who != nil && who.principal != was.principal {
		who, err = nil, errInvalid
	}
	if who != nil {
		a.who.Store(who)
	}
	a.lost.Store(p.lossOf(a.r, err))
	switch {
	case who == nil || errors.Is(err, errInvalid) || static || p.Issuer == nil && who.expires.IsZero():
		return 0
	case p.Issuer != nil && p.Issuer.introspection != nil && opaque(token):
		next = reviewOpaque
	default:
		next = reviewToken
	}
	if !who.expires.IsZero() {
		next = min(next, max(time.Until(who.expires.Add(p.Grace)), time.Millisecond))
	}
	return next
}

// lossOf returns the loss that an error of [Policy.authenticate] means for a connection that stays open, or nil.
func (p *Policy) lossOf(r *http.Request, err error) *loss {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errScope):
		return &loss{http.StatusForbidden, p.challenge(r, schemeOf(r), errScope, p.Scopes),
			"insufficient scope: connect again with a token that has " + strings.Join(p.Scopes, " ")}
	}
	return &loss{http.StatusUnauthorized, p.challenge(r, schemeOf(r), errInvalid, p.Scopes),
		"the token or certificate is not valid any more: connect again with a valid one"}
}

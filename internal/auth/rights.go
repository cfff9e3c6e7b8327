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

// Rights are those of the client of a request, for as long as its connection stays open: they change with the file of keys,
// with what the endpoint needs, and with time. Its methods may be called concurrently.
type Rights struct {
	policy func(*http.Request) *Policy
	r      *http.Request // that was authenticated
	who    atomic.Pointer[verified]
	lost   atomic.Pointer[loss]
}

// A loss is why a client may not go on, as it is told over HTTP.
type loss struct {
	status          int
	challenge, text string
}

// RightsOf returns the rights of the client of a request that has passed [Require], or nil.
func RightsOf(ctx context.Context) *Rights {
	rights, _ := ctx.Value(identityKey{}).(*Rights)
	return rights
}

// Check returns why the client may not go on: with status 401 its token or key is not valid any more, and with 403 it lacks a scope.
// Status 0: it may go on. It does not wait.
func (a *Rights) Check() (status int, challenge, text string) {
	if l := a.lost.Load(); l != nil {
		return l.status, l.challenge, l.text
	}
	return 0, "", ""
}

// Watch has the rights checked again whenever they may have changed, as long as a connection is open, and calls changed
// after that. It does not call it after stop has returned.
func (a *Rights) Watch(changed func()) (stop func()) {
	p := a.policy(a.r)
	w := &watcher{rights: a, changed: changed}
	p.Open.add(w)
	w.review(false) // what has changed since the request was authenticated
	return func() {
		p.Open.remove(w)
		w.stop()
	}
}

// An Open knows the connections that stay open. Its methods may be called concurrently; nil knows none.
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

// Review checks the rights of all connections again, after the keys or what endpoints need has changed.
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

// The times after which the token of a connection that is open is checked again, though nothing here has changed.
const (
	reviewToken  = keysFresh   // its issuer may have withdrawn the key that it is signed with
	reviewOpaque = time.Minute // its issuer may have withdrawn it, and is asked
)

// review checks the rights. whole says that the token is checked as that of a new request is; else only what may have
// changed here.
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

// stop ends it. A check that runs has ended then.
func (w *watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// review checks the rights, and returns after which time they are to be checked again; 0: once something has changed. An issuer that
// cannot be asked changes nothing before the token's end, and it is not asked after that.
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

// lossOf returns what an error of [Policy.authenticate] means for a connection that stays open.
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

package login

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// lookAgain is how often a login that waits looks whether another process has logged in.
const lookAgain = 500 * time.Millisecond

// code logs in with an authorization code and PKCE (OAuth 2.1, section 4.1).
func (l *attempt) code(ctx context.Context) (record, error) {
	s := l.s
	ctx, cancel := context.WithTimeoutCause(ctx, loginWithin, errors.New("nobody has logged in"))
	defer cancel()
	listener, p, again, err := l.begin(ctx)
	if err != nil {
		return record{}, err
	}
	back := make(chan returned)
	if listener != nil {
		server := &http.Server{Handler: callback(ctx, p, back), ReadHeaderTimeout: askWithin}
		if !s.start(func() { _ = server.Serve(listener) }) { // ends with this function
			_ = listener.Close()
		}
		defer func() {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if server.Shutdown(last) != nil { // the browser reads the page
				_ = server.Close()
			}
		}()
	}
	l.invite(p, again)
	if s.opts.Pasted != nil {
		go l.pasted(ctx, p, back)
	}
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		select {
		case r := <-back:
			got, err := l.exchange(ctx, p, r.query)
			if err != nil {
				l.forget(isOfClient(err)) // the page of this login was answered
			}
			r.done <- err
			return got, err
		case <-look.C:
			if !l.f.need.anew && s.has(l.f.need) {
				return record{}, errElsewhere
			}
		case <-ctx.Done():
			l.forget(true)
			return record{}, fmt.Errorf("no login at %s: %w", s.server.Host, context.Cause(ctx))
		}
	}
}

// begin prepares a login, and keeps it for a process that goes on with it. Or it goes on with a login that another process has
// left, if that asks for the scopes that are needed now, and returns true.
func (l *attempt) begin(ctx context.Context) (net.Listener, pending, bool, error) {
	s := l.s
	if p := l.r.Pending; !l.f.need.anew && p.State != "" && time.Now().Before(p.Until) && l.r.Client.ID != "" && covered(l.scopes, p.scopes()) {
		var config net.ListenConfig
		if u, err := url.Parse(p.Redirect); err == nil {
			if listener, err := config.Listen(ctx, "tcp", u.Host); err == nil {
				l.scopes = p.scopes()
				return listener, p, true, nil
			}
		}
	}
	listener, redirect, err := s.listen(ctx, l.r.Client.Redirect)
	if err != nil {
		return nil, pending{}, false, err
	}
	if l.r.Client.ID == "" || l.r.Client.Redirect != redirect {
		if l.r.Client, err = s.client(ctx, l.at, redirect); err != nil {
			_ = listener.Close()
			return nil, pending{}, false, err
		}
	}
	p := pending{
		Issuer: l.r.Issuer, Client: l.r.Client, Key: l.r.Key,
		State: rand.Text(), Verifier: rand.Text() + rand.Text(), Redirect: redirect, Until: time.Now().Add(loginWithin).Round(0),
	}
	to, err := url.Parse(l.at.AuthorizationEndpoint)
	if err != nil || !safe(l.at.AuthorizationEndpoint) {
		_ = listener.Close()
		return nil, pending{}, false, fmt.Errorf("the authorization server %s names no page to log in at", l.at.Issuer)
	}
	sum := sha256.Sum256([]byte(p.Verifier))
	q := to.Query()
	for name, value := range map[string]string{
		"response_type": "code", "client_id": l.r.Client.ID, "redirect_uri": redirect, "state": p.State,
		"code_challenge": base64.RawURLEncoding.EncodeToString(sum[:]), "code_challenge_method": "S256",
		"resource": l.r.Resource, "scope": strings.Join(l.scopes, " "),
		"dpop_jkt": l.bound.thumbprint(),
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if covered([]string{offline}, l.scopes) {
		q.Set("prompt", "consent") // OpenID Connect Core, section 11
	}
	to.RawQuery = q.Encode()
	p.URL = to.String()
	unlock, err := s.lock(ctx, lockRecord)
	if err != nil {
		_ = listener.Close()
		return nil, pending{}, false, err
	}
	defer unlock()
	kept := s.reload()
	if !kept.isLive() {
		kept = l.r
	}
	kept.Pending = p
	s.keep(kept)
	return listener, p, false, nil
}

// forget forgets a login that was not completed: the next one begins anew. client says that the next one also registers another client, as the
// authorization server may not know the client any more, or not allow it this way to log in. A token and its client stay, as does the client at another one.
func (l *attempt) forget(client bool) {
	if l.s.ctx.Err() != nil {
		return // another process goes on with it
	}
	unlock, err := l.s.lock(l.s.ctx, lockRecord)
	if err != nil {
		return
	}
	defer unlock()
	r := l.s.reload()
	r.Pending = pending{Issuer: l.r.Issuer, Client: l.r.Client, Key: l.r.Key}
	if client {
		r.Pending.Client = identity{}
		if !r.isLive() && r.Issuer == l.r.Issuer {
			r.Client = identity{}
		}
	}
	l.s.keep(r)
}

// isOfClient reports whether an authorization server refuses the client, and not the login.
func isOfClient(err error) bool { return says(err, "invalid_client", "unauthorized_client") }

// invite asks the user to log in. again says that another process has opened the browser.
func (l *attempt) invite(p pending, again bool) {
	s := l.s
	text := fmt.Sprintf("%s needs a login: open %s", s.server.Host, p.URL)
	switch {
	case s.opts.Way == Paste || s.opts.Open == nil && s.opts.Pasted != nil:
		text += "\nand paste here the URL at which the browser ends up, even if it shows an error:"
	case s.opts.Open == nil:
		if s.opts.Command != "" {
			text += fmt.Sprintf(" on this machine, or run '%s' in a terminal", s.opts.Command)
		}
	case again && s.opts.Once:
		text += " (unless a browser shows it already)"
	default:
		if err := s.opts.Open(p.URL); err != nil {
			s.opts.Logger.Debug("no browser was opened", "error", err)
			break
		}
		text = fmt.Sprintf("%s needs a login: a browser was opened. If you do not see it, open %s", s.server.Host, p.URL)
	}
	s.tell(l.f, text)
}

// returned is an answer of the authorization server. done takes the error of the login, or nil.
type returned struct {
	query url.Values
	done  chan error
}

// callback returns the handler that the browser comes back to.
func callback(ctx context.Context, p pending, back chan<- returned) http.Handler {
	path := "/"
	if u, err := url.Parse(p.Redirect); err == nil && u.Path != "" {
		path = u.Path
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != path || r.Method != http.MethodGet:
			http.NotFound(w, r)
			return
		case !hasState(r.URL.Query(), p):
			page(w, http.StatusBadRequest, "This is no answer to a login that holdfast waits for.")
			return
		}
		one := returned{r.URL.Query(), make(chan error, 1)}
		select {
		case back <- one:
		case <-ctx.Done():
			page(w, http.StatusGone, "Holdfast does not wait for this login any more.")
			return
		}
		if err := <-one.done; err != nil {
			page(w, http.StatusBadRequest, "The login has failed: "+err.Error())
			return
		}
		page(w, http.StatusOK, "You are logged in. You can close this window.")
	})
}

func hasState(q url.Values, p pending) bool {
	return subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(p.State)) == 1
}

// page writes a page for the user.
func page(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<!doctype html><title>Holdfast</title><p>%s</p>\n", html.EscapeString(text))
}

// pasted reads URLs that the user pastes, until one is the answer. The goroutine may wait for input that never comes.
func (l *attempt) pasted(ctx context.Context, p pending, back chan<- returned) {
	lines := bufio.NewReader(l.s.opts.Pasted)
	for ctx.Err() == nil {
		line, err := lines.ReadString('\n')
		if line = strings.TrimSpace(line); line != "" {
			u, wrong := url.Parse(line)
			if wrong != nil || !hasState(u.Query(), p) {
				l.s.say("That is not the URL at which this login ends: it begins with " + p.Redirect)
			} else {
				one := returned{u.Query(), make(chan error, 1)}
				select {
				case back <- one:
				case <-ctx.Done():
				}
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				l.s.opts.Logger.Debug("nothing can be pasted", "error", err)
			}
			return
		}
	}
}

// exchange gets a token for the answer of the authorization server, q, which has the right state.
func (l *attempt) exchange(ctx context.Context, p pending, q url.Values) (record, error) {
	iss, want := q.Get("iss"), l.at.Issuer
	switch { // RFC 9207
	case iss == "" && l.at.AuthorizationResponseIssParameterSupported:
		return record{}, fmt.Errorf("the answer to the login does not say that it is of %s, which the metadata promises: none was received, and nothing was sent there", want)
	case iss != "" && iss != want:
		return record{}, fmt.Errorf("the answer to the login is of %.200q, which does not match expected issuer %q: nothing was sent there", oneLine(iss), want)
	case q.Get("error") != "":
		return record{}, fmt.Errorf("no login at %s: the authorization server says %s", l.s.server.Host, oneLine(q.Get("error")+" "+q.Get("error_description")))
	case q.Get("code") == "":
		return record{}, errors.New("the answer to the login has no code")
	}
	form := url.Values{
		"grant_type": {"authorization_code"}, "code": {q.Get("code")}, "redirect_uri": {p.Redirect}, "code_verifier": {p.Verifier},
	}
	lasting, end := finishing(ctx)
	defer end()
	t, granted, err := l.s.ask(lasting, l.r.Client, l.r.Places, l.r.Issuer, l.r.Resource, form, l.bound)
	if err != nil {
		return record{}, fmt.Errorf("no login at %s: %w", l.s.server.Host, err)
	}
	return l.done(l.r, t, granted), nil
}

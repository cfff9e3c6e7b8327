package login_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/login"
	"holdfast/internal/mcptest"
)

// A host without a token gets a result: the first request goes to the server without a token, and then a browser is opened.
func TestLogin(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), filepath.Join(t.TempDir(), "logins")
	s := w.source(dir, nil)
	if got := w.host(s).call("read"); got != "read" {
		t.Fatalf("%q", got)
	}
	w.counted(map[string]int{"refused": 1, "registered": 1, "authorized": 1, "authorization_code": 1, "call": 1})
	// The next process needs no browser.
	if got := w.host(w.source(dir, nil)).call("again"); got != "again" {
		t.Fatalf("%q", got)
	}
	w.counted(map[string]int{"refused": 1, "authorized": 1, "call": 2})
	w.noSecrets()
	for name, want := range map[string]os.FileMode{dir: 0o700, s.File(): 0o600} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, want mode %o: %v", name, info.Mode(), want, err)
		}
	}
}

// Without a directory nothing is kept on disk. A directory that cannot be written does not prevent a login.
func TestNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "file")
	mcptest.Check(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{"", filepath.Join(file, "logins")} {
		h := w.host(w.source(dir, nil))
		if got := h.call("one"); got != "one" {
			t.Fatalf("%q: %q", dir, got)
		}
		w.do(func() { clear(w.access) })
		if got := h.call("two"); got != "two" {
			t.Fatalf("%q: %q", dir, got)
		}
	}
	w.counted(map[string]int{"authorized": 2, "refresh_token": 2})
	if !strings.Contains(w.said(), "cannot be kept") {
		t.Error(w.said())
	}
}

// Hosts that begin at the same time share one login, and one renewal. Each has opened the files itself, as processes do.
func TestTogether(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	var hosts []*host
	for range 4 {
		hosts = append(hosts, w.host(w.source(dir, nil)))
	}
	all := func() {
		var work sync.WaitGroup
		for _, h := range hosts {
			work.Go(func() {
				if got := h.call("x"); got != "x" {
					t.Errorf("%q", got)
				}
			})
		}
		work.Wait()
	}
	all()
	w.counted(map[string]int{"authorized": 1, "registered": 1, "call": 4})
	w.do(func() { clear(w.access) }) // as if they had expired
	all()
	w.counted(map[string]int{"authorized": 1, "refresh_token": 1, "call": 8})
}

// A token is renewed before it expires, so that no request is refused.
func TestRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.life = 2 * time.Second
	h := w.host(w.source(t.TempDir(), nil))
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if got := h.call("x"); got != "x" {
			t.Fatalf("%q", got)
		}
	}
	w.counted(map[string]int{"authorized": 1, "refresh_token": 1, "refused": 1})
}

// If an authorization server is away for a while, the login does not end.
func TestRenewalAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.host(w.source(t.TempDir(), nil))
	h.call("x")
	tries := 0
	w.do(func() {
		clear(w.access)
		w.token = func(rw http.ResponseWriter) bool {
			tries++
			if tries < 3 {
				http.Error(rw, "<html>not now", http.StatusBadGateway)
			}
			return tries < 3
		}
	})
	if got := h.call("y"); got != "y" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"authorized": 1, "refresh_token": 1})
}

// When the tokens are revoked, the user gets a message, and logs in again.
func TestRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.host(w.source(t.TempDir(), nil))
	h.call("x")
	w.do(func() {
		clear(w.access)
		clear(w.refresh)
	})
	if got := h.call("y"); got != "y" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"authorized": 2, "registered": 1, "call": 2})
	if !strings.Contains(w.said(), "has ended") {
		t.Error(w.said())
	}
}

// If a tool needs more scopes, the user logs in once for these as well. If the token then still lacks a scope, the call is refused.
func TestStepUp(t *testing.T) {
	t.Parallel()
	for name, quiet := range map[string]bool{"scopes are said": false, "scopes are not said": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stepUp(t, quiet)
		})
	}
}

func stepUp(t *testing.T, quiet bool) {
	w, dir := newWorld(t), t.TempDir()
	w.quiet = quiet
	w.need["write"] = "write"
	h := w.host(w.source(dir, nil))
	for _, name := range []string{"read", "write", "read", "write"} {
		if got := h.call(name); got != name {
			t.Fatalf("%s: %q", name, got)
		}
	}
	w.counted(map[string]int{"authorized": 2, "registered": 1, "forbidden": 1})
	w.do(func() {
		if last := w.opened[1]; !strings.Contains(last, "scope=read+write") {
			t.Errorf("it asks for other scopes: %s", last)
		}
		w.need["write"] = "admin" // a scope that the authorization server never grants
		w.token = func(http.ResponseWriter) bool {
			for code, g := range w.codes {
				g.scope = "read write"
				w.codes[code] = g
			}
			return false
		}
	})
	for range 2 {
		if got := h.call("write"); !strings.Contains(got, "403") {
			t.Errorf("%q", got)
		}
	}
	w.counted(map[string]int{"authorized": 3})
}

// A process takes the token of a login for more scope that another process has completed, although the authorization server states the granted
// scopes in a form of its own. If the server refuses that token too, no further login begins.
func TestScopesOfOwnForm(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.need["write"], w.commas = "write", true
	one, two := w.host(w.source(dir, nil)), w.host(w.source(dir, nil))
	for _, h := range []*host{one, two} {
		if got := h.call("read"); got != "read" {
			t.Fatalf("%q", got)
		}
	}
	for _, h := range []*host{one, two} { // the token of two is the one of before
		if got := h.call("write"); got != "write" {
			t.Errorf("%q", got)
		}
	}
	w.counted(map[string]int{"authorized": 2, "forbidden": 2})
	w.do(func() {
		for token, g := range w.access {
			g.scope = "read"
			w.access[token] = g
		}
	})
	if got := two.call("write"); !strings.Contains(got, "does not give them") {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"authorized": 2, "forbidden": 3})
}

// A request that needs more scope waits for a login for other scope, here or in another process. Then it begins a login of its own, which
// keeps that scope.
func TestTwoStepUps(t *testing.T) {
	t.Parallel()
	for name, processes := range map[string]int{"in one process": 1, "in two processes": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorld(t), t.TempDir()
			w.need["write"], w.need["admin"] = "write", "admin"
			sources := []*login.Source{w.source(dir, nil), w.source(dir, nil)}
			one, two := w.host(sources[0]), w.host(sources[processes-1])
			for _, h := range []*host{one, two} {
				if got := h.call("read"); got != "read" {
					t.Fatalf("%q", got)
				}
			}
			w.do(func() { w.agrees = make(chan struct{}) })
			write := one.waits("write")
			admin := two.waits("admin")
			w.counted(map[string]int{"forbidden": 2, "authorization_code": 1})
			close(w.agrees)
			if got := <-write; got != "write" {
				t.Errorf("%q", got)
			}
			if got := <-admin; got != "admin" {
				t.Errorf("%q", got)
			}
			w.counted(map[string]int{"authorized": 3, "authorization_code": 3})
			if got := one.call("write"); got != "write" {
				t.Errorf("%q", got)
			}
			w.counted(map[string]int{"authorized": 3})
		})
	}
}

// A process that waits for another process's login tells its host so, with the URL of the login. It opens no second window.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.agrees = make(chan struct{})
	first := make(chan string, 1)
	go func() { first <- w.host(w.source(dir, nil)).call("x") }()
	mcptest.Eventually(t, "what the browser does", 20*time.Second, func() bool { return w.windows() == 1 })
	var told []string
	source := w.source(dir, func(o *login.Options) {
		o.Tell = func(text string) { w.do(func() { told = append(told, text) }) }
	})
	second := make(chan string, 1)
	go func() { second <- w.host(source).call("y") }()
	text := ""
	mcptest.Eventually(t, "what the browser does", 20*time.Second, func() bool {
		w.do(func() { text = strings.Join(told, "\n") })
		return text != ""
	})
	if want := "needs a login, for which another process has asked: log in there, or open " + w.opened[0]; !strings.HasSuffix(text, want) {
		t.Errorf("%q, want %q", text, want)
	}
	close(w.agrees)
	if one, other := <-first, <-second; one != "x" || other != "y" {
		t.Errorf("%q, %q", one, other)
	}
	w.counted(map[string]int{"authorized": 1})
}

// A token that was asked for when its process ends is kept: the authorization server may take the refresh token, or the code of a login,
// only once.
func TestTokenAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, renews := range []bool{true, false} {
		t.Run(fmt.Sprintf("renewed %v", renews), func(t *testing.T) {
			t.Parallel()
			tokenAtTheEnd(t, renews)
		})
	}
}

func tokenAtTheEnd(t *testing.T, renews bool) {
	t.Helper()
	w, dir := newWorld(t), t.TempDir()
	s := w.source(dir, nil)
	h := w.host(s)
	if renews {
		if got := h.call("x"); got != "x" {
			t.Fatalf("%q", got)
		}
	}
	asked, let := make(chan struct{}), make(chan struct{})
	w.do(func() {
		clear(w.access)
		w.token = func(http.ResponseWriter) bool {
			w.token = nil
			w.mu.Unlock()
			close(asked)
			<-let
			w.mu.Lock()
			return false
		}
	})
	go h.call("x")
	<-asked
	closed := make(chan struct{})
	go func() {
		s.Close()
		close(closed)
	}()
	select {
	case <-closed:
		t.Error("the answer is not waited for")
	case <-time.After(100 * time.Millisecond):
	}
	close(let)
	<-closed
	if got := w.host(w.source(dir, nil)).call("x"); got != "x" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"authorized": 1})
}

// A login for more scope that the authorization server refuses to the client leaves the login before: its token is still renewed. The next
// one registers another client. A request that needs a login of any scope begins one at once.
func TestStepUpRefused(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.need["write"] = "write"
	if got := w.host(w.source(dir, nil)).call("read"); got != "read" {
		t.Fatalf("%q", got)
	}
	w.do(func() { w.meta = map[string]any{"device_authorization_endpoint": w.Issuer + "/device"} }) // the client was registered before
	source := func() *host {
		return w.host(w.source(dir, func(o *login.Options) { o.Open, o.Tell = nil, w.enters }))
	}
	refused := source()
	for range 2 { // soon after it was refused the authorization server is not asked again
		if got := refused.call("write"); !strings.Contains(got, "unauthorized_client") {
			t.Errorf("%q", got)
		}
	}
	w.counted(map[string]int{"device": 1})
	w.do(func() { clear(w.access) })
	if got := source().call("read"); got != "read" {
		t.Errorf("after the token has ended: %q", got)
	}
	w.counted(map[string]int{"authorized": 1, "registered": 1, "refresh_token": 1})
	if got := source().call("write"); got != "write" {
		t.Errorf("%q", got)
	}
	w.do(func() { clear(w.access) })
	if got := source().call("write"); got != "write" {
		t.Errorf("after the second token has ended: %q", got)
	}
	w.counted(map[string]int{"authorized": 1, "registered": 2, "refresh_token": 2})

	w.do(func() { w.need["admin"], w.deny = "admin", "access_denied" })
	last := source()
	if got := last.call("admin"); !strings.Contains(got, "access_denied") {
		t.Errorf("%q", got)
	}
	w.do(func() {
		w.deny = ""
		clear(w.access)
		clear(w.refresh)
	})
	if got := last.call("read"); got != "read" {
		t.Errorf("a login that another request needs: %q", got)
	}
}

// A request waits for a login only as long as it may, and so does one that finds a login for another need under way. The login goes on.
func TestWithin(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.need["write"], w.need["admin"] = "write", "admin"
	if got := w.host(w.source(dir, nil)).call("read"); got != "read" {
		t.Fatalf("%q", got)
	}
	w.agrees = make(chan struct{})
	s := w.source(dir, func(o *login.Options) { o.Within = time.Second })
	write, admin := w.host(s).goes("write"), w.host(s).goes("admin")
	for _, done := range []<-chan string{write, admin} {
		if got := <-done; !strings.Contains(got, "which goes on") || !strings.Contains(got, w.Issuer+"/authorize") {
			t.Errorf("%q", got)
		}
	}
	close(w.agrees)
	mcptest.Eventually(t, "the login", 20*time.Second, func() bool { return len(s.Scopes()) == 2 })
}

// A user who has declined more scope in the browser is not asked for it again by a login that any other request needs. That login uses the client
// of the declined one.
func TestStepUpDeclined(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"in one process": false, "in the next process": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorld(t), t.TempDir()
			w.need["write"] = "write"
			w.back = func(q url.Values) {
				if strings.Contains(w.opened[len(w.opened)-1], "write") {
					q.Del("code")
					q.Set("error", "access_denied")
				}
			}
			h := w.host(w.source(dir, nil))
			if got := h.call("read"); got != "read" {
				t.Fatalf("%q", got)
			}
			if got := h.call("write"); !strings.Contains(got, "access_denied") {
				t.Fatalf("%q", got)
			}
			w.do(func() {
				clear(w.access)
				clear(w.refresh)
			})
			if again {
				h = w.host(w.source(dir, nil))
			}
			if got := h.call("read"); got != "read" {
				t.Errorf("%q", got)
			}
			w.counted(map[string]int{"authorized": 3, "registered": 1})
		})
	}
}

// A login for more scope that has failed is not repeated for half a minute. A request that needs other scope begins a login at once.
func TestStepUpsFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.need["write"], w.need["admin"] = "write", "admin"
	h := w.host(w.source(t.TempDir(), nil))
	if got := h.call("read"); got != "read" {
		t.Fatalf("%q", got)
	}
	w.back = func(q url.Values) {
		q.Del("code")
		q.Set("error", "access_denied")
	}
	for range 2 {
		for _, name := range []string{"admin", "write"} {
			if got := h.call(name); !strings.Contains(got, "access_denied") {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
	w.counted(map[string]int{"authorized": 3})
	w.do(func() {
		w.back, w.need["other"] = nil, "other"
	})
	if got := h.call("other"); got != "other" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"authorized": 4})
}

// A request that needs any login, and waits for one for more scope, begins its own when the user has declined that one.
func TestWaitsForDeclined(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.need["write"] = "write"
	s := w.source(t.TempDir(), nil)
	one, two := w.host(s), w.host(s)
	for _, h := range []*host{one, two} {
		if got := h.call("read"); got != "read" {
			t.Fatalf("%q", got)
		}
	}
	w.do(func() {
		w.agrees = make(chan struct{})
		w.back = func(q url.Values) {
			w.back = nil
			q.Del("code")
			q.Set("error", "access_denied")
		}
	})
	write := one.waits("write")
	w.do(func() {
		clear(w.access)
		clear(w.refresh)
	})
	read := two.waits("read")
	close(w.agrees)
	if got := <-write; !strings.Contains(got, "access_denied") {
		t.Errorf("%q", got)
	}
	if got := <-read; got != "read" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"authorized": 3})
}

// A token that is renewed while the user logs in for more scope does not end that login: it has no more scope.
func TestStepUpDuringRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.meta = map[string]any{"device_authorization_endpoint": w.Issuer + "/device"}
	w.need["write"] = "write"
	said := make(chan string, 10)
	s := w.source(t.TempDir(), func(o *login.Options) {
		o.Open, o.Tell = nil, func(text string) { said <- text }
	})
	h := w.host(s)
	done := make(chan string, 1)
	ask := func(name string) { done <- h.call(name) }
	go ask("read")
	w.enters(<-said)
	if got := <-done; got != "read" {
		t.Fatalf("%q", got)
	}
	go ask("write")
	text := <-said
	w.do(func() { clear(w.access) })
	if got := w.host(s).call("read"); got != "read" {
		t.Errorf("%q", got)
	}
	polls := func() (n int) {
		w.do(func() { n = w.counts["token"] })
		return n
	}
	before := polls()
	mcptest.Eventually(t, "what the device asks", 20*time.Second, func() bool { return polls() > before+1 || len(done) > 0 })
	w.enters(text)
	if got := <-done; got != "write" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"device": 2, "refresh_token": 1})
}

// While a login at another authorization server waits for its user, the token of the login before is renewed where that was: the refresh
// token goes nowhere else.
func TestOtherIssuer(t *testing.T) {
	t.Parallel()
	w, other, dir := newWorld(t), newWorld(t), t.TempDir()
	w.need["write"] = "write"
	s := w.source(dir, nil)
	h := w.host(s)
	if got := h.call("read"); got != "read" {
		t.Fatalf("%q", got)
	}
	w.do(func() { w.prm = map[string]any{"authorization_servers": []string{other.Issuer}} })
	asked, open := make(chan string, 1), func(o *login.Options) {
		o.Open = func(string) error { return nil } // the user does nothing
	}
	stepping := w.source(dir, func(o *login.Options) {
		open(o)
		o.Tell = func(text string) { asked <- text }
	})
	go w.host(stepping).call("write")
	if text := <-asked; !strings.Contains(text, other.Issuer) {
		t.Fatal(text)
	}
	w.do(func() { clear(w.access) })
	if got := w.host(w.source(dir, open)).call("read"); got != "read" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"refresh_token": 1})
	other.counted(map[string]int{"registered": 1, "token": 0})
}

// A login at another authorization server, which refuses the client, leaves the client of the login before, although its token has ended.
func TestRefusedByOtherIssuer(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t), newWorld(t)
	s := w.source(t.TempDir(), func(o *login.Options) { o.Way, o.Tell = login.Device, w.enters })
	w.meta = map[string]any{"device_authorization_endpoint": w.Issuer + "/device"}
	if got := w.host(s).call("x"); got != "x" {
		t.Fatalf("%q", got)
	}
	other.meta, other.deny = map[string]any{"device_authorization_endpoint": other.Issuer + "/device"}, "unauthorized_client"
	w.do(func() {
		w.prm = map[string]any{"authorization_servers": []string{other.Issuer}}
		clear(w.access)
		clear(w.refresh)
	})
	if got := w.host(s).call("x"); !strings.Contains(got, other.deny) {
		t.Errorf("%q", got)
	}
	w.do(func() { w.prm = nil })
	again := w.source(filepath.Dir(s.File()), func(o *login.Options) { o.Way, o.Tell = login.Device, w.enters })
	if got := w.host(again).call("x"); got != "x" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"registered": 1, "device": 2})
	other.counted(map[string]int{"registered": 1, "device": 1})
}

// When a process ends during a login, the next process finishes it, in the same browser window.
func TestPending(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.agrees = make(chan struct{})
	once := func(o *login.Options) { o.Once = true }
	first := w.source(dir, once)
	go w.host(first).call("lost")
	mcptest.Eventually(t, "what the browser does", 20*time.Second, func() bool { return w.windows() == 1 })
	first.Close() // as when its host kills it
	next := w.source(dir, once)
	done := make(chan string, 1)
	go func() { done <- w.host(next).call("x") }()
	mcptest.Eventually(t, "what the browser does", 20*time.Second, func() bool { return strings.Contains(w.said(), "unless a browser shows it already") })
	close(w.agrees)
	if got := <-done; got != "x" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"authorized": 1, "registered": 1})
}

// A process that needs other scopes than a login that another process has left begins a login of its own. It goes on with one that asks for more
// than it needs: that scope is kept when the user logs in for still more.
func TestPendingScopes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"admin": {"read", "read write", "read admin"},
		"write": {"read", "read write", "read write", "read write admin"},
		"read":  {"read", "read write", "read write", "read write admin"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorld(t), t.TempDir()
			w.need["write"], w.need["admin"], w.quiet = "write", "admin", true
			if got := w.host(w.source(dir, nil)).call("read"); got != "read" {
				t.Fatalf("%q", got)
			}
			leaving := w.source(dir, func(o *login.Options) {
				o.Open = func(to string) error { // the user does nothing yet
					w.do(func() { w.opened = append(w.opened, to) })
					return nil
				}
			})
			w.host(leaving).waits("write")
			leaving.Close()
			if name == "read" { // it needs a login, too
				w.do(func() {
					clear(w.access)
					clear(w.refresh)
				})
			}
			h := w.host(w.source(dir, nil))
			for _, name := range []string{name, "admin"} {
				if got := h.call(name); got != name {
					t.Errorf("%q, want %q", got, name)
				}
			}
			var scopes []string
			for _, to := range w.opened {
				scopes = append(scopes, mcptest.Must(url.Parse(to))(t).Query().Get("scope"))
			}
			if !slices.Equal(scopes, want) {
				t.Errorf("the browser shows logins for %q, want %q", scopes, want)
			}
		})
	}
}

// Requests that do not need a login go on during one. The request that needs it is answered afterwards.
func TestOthers(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	w.need["write"] = "write"
	s := w.source(dir, nil)
	h := w.host(s)
	h.call("read")
	other := w.host(w.source(dir, nil))
	w.do(func() { w.agrees = make(chan struct{}) })
	done := make(chan string, 1)
	go func() { done <- h.call("write") }()
	mcptest.Eventually(t, "what the browser does", 20*time.Second, func() bool { return w.windows() == 2 })
	if got := w.host(s).call("read"); got != "read" {
		t.Errorf("%q", got)
	}
	if got := other.call("read"); got != "read" {
		t.Errorf("%q", got)
	}
	close(w.agrees)
	if got := <-done; got != "write" {
		t.Errorf("%q", got)
	}
}

// If there is no browser, the user pastes the URL at which a login on another device has ended.
func TestPasted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in, out := io.Pipe()
	defer out.Close()
	s := w.source(t.TempDir(), func(o *login.Options) {
		o.Open, o.Pasted = nil, in
		o.Tell = func(text string) {
			_, rest, found := strings.Cut(text, "open ")
			if !found {
				return
			}
			to, _, _ := strings.Cut(rest, "\n")
			browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			resp, err := browser.Get(to) //nolint:noctx,bodyclose // as browsers do; it is closed
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
			go func() { _, _ = io.WriteString(out, "https://example.com/?code=x\n\n"+resp.Header.Get("Location")+"\n") }()
		}
	})
	if got := w.host(s).call("x"); got != "x" {
		t.Errorf("%q", got)
	}
}

// If there is no browser, the user gets a code for a login on another device.
func TestDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.meta = map[string]any{"device_authorization_endpoint": w.Issuer + "/device"}
	s := w.source(t.TempDir(), func(o *login.Options) {
		o.Open, o.Tell = nil, w.enters
	})
	if got := w.host(s).call("x"); got != "x" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"device": 1, "authorized": 0})
}

// An authorization server that has forgotten a client of devices gets another one at the next login.
func TestDeviceForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.meta = map[string]any{"device_authorization_endpoint": w.Issuer + "/device"}
	dir := t.TempDir()
	for _, want := range []string{"x", "", "x"} {
		s := w.source(dir, func(o *login.Options) {
			o.Open, o.Tell = nil, w.enters
		})
		if got := w.host(s).call("x"); got != want && (want != "" || !strings.Contains(got, "invalid_client")) {
			t.Errorf("%q", got)
		}
		s.Close()
		if want == "" {
			continue
		}
		w.do(func() {
			clear(w.clients)
			clear(w.access)
			clear(w.refresh)
			clear(w.pending)
		})
	}
}

// A machine logs in with its secret or its key, and again when its token has expired.
func TestCredentials(t *testing.T) {
	t.Parallel()
	key := mcptest.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	for name, change := range map[string]func(*login.Options){
		"secret": func(o *login.Options) { o.ClientSecret = "secret-ci" },
		"key":    func(o *login.Options) { o.ClientKey = key },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.life = time.Second
			if name == "key" {
				w.keys["ci"] = key.Public()
			} else {
				w.clients["ci"] = registration{Method: "client_secret_basic", Secret: "secret-ci"}
			}
			h := w.host(w.source(t.TempDir(), func(o *login.Options) {
				o.Way, o.ClientID, o.Open = login.Credentials, "ci", nil
				change(o)
			}))
			for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				if got := h.call("x"); got != "x" {
					t.Fatalf("%q", got)
				}
			}
			w.counted(map[string]int{"client_credentials": 2, "refused": 1, "authorized": 0, "registered": 0})
			w.noSecrets()
		})
	}
}

// The client id is the client's metadata document if the authorization server supports it. If not, the authorization server registers a client.
func TestClients(t *testing.T) {
	t.Parallel()
	const document = "https://example.com/client.json"
	for name, tc := range map[string]struct {
		meta   map[string]any
		client string // "": registered
	}{
		"document":     {map[string]any{"client_id_metadata_document_supported": true}, document},
		"no document":  {nil, ""},
		"with secrets": {map[string]any{"token_endpoint_auth_methods_supported": []string{"client_secret_basic"}}, ""},
		"by post":      {map[string]any{"token_endpoint_auth_methods_supported": []string{"client_secret_post"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.meta = tc.meta
			s := w.source(t.TempDir(), func(o *login.Options) { o.ClientMetadata = document })
			if got := w.host(s).call("x"); got != "x" {
				t.Fatalf("%q", got)
			}
			w.do(func() {
				if clear := strings.Contains(w.opened[0], url.QueryEscape(document)); clear != (tc.client != "") || clear == (w.counts["registered"] > 0) {
					t.Errorf("%s: %v", w.opened[0], w.counts)
				}
			})
			w.noSecrets()
		})
	}
}

// An unsafe login is refused, and the error says why.
func TestUnsafe(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*world)
		want   string
	}{
		"another resource": {func(w *world) { w.prm = map[string]any{"resource": "https://example.com/mcp"} }, "not of this server"},
		"no PKCE":          {func(w *world) { w.meta = map[string]any{"code_challenge_methods_supported": nil} }, "PKCE"},
		"weak PKCE":        {func(w *world) { w.meta = map[string]any{"code_challenge_methods_supported": []string{"plain"}} }, "S256"},
		"another issuer":   {func(w *world) { w.meta = map[string]any{"issuer": "https://example.com"} }, "does not match issuer"},
		"a script":         {func(w *world) { w.meta = map[string]any{"authorization_endpoint": "javascript:alert(1)"} }, "cannot be used"},
		"in the clear":     {func(w *world) { w.meta = map[string]any{"token_endpoint": "http://example.com/token"} }, "cannot be used"},
		"wrong iss":        {func(w *world) { w.back = func(q url.Values) { q.Set("iss", "https://evil.example") } }, "does not match expected issuer"},
		"missing iss":      {func(w *world) { w.meta = map[string]any{"authorization_response_iss_parameter_supported": true} }, "does not say that it is of"},
		"denied":           {func(w *world) { w.back = func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") } }, "access_denied"},
		"no registration":  {func(w *world) { w.meta = map[string]any{"registration_endpoint": nil} }, "--client-id"},
		"no token": {func(w *world) {
			w.token = func(rw http.ResponseWriter) bool { answer(rw, 200, map[string]any{}); return true }
		}, "without a token"},
		"another token type": {func(w *world) {
			w.token = func(rw http.ResponseWriter) bool {
				answer(rw, 200, map[string]any{"access_token": "x", "token_type": "DPoP"})
				return true
			}
		}, "DPoP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tc.change(w)
			h := w.host(w.source(t.TempDir(), nil))
			if got := h.call("x"); !strings.Contains(got, tc.want) {
				t.Errorf("%q", got)
			}
			before := w.windows()
			h.call("x") // no other window may open at once
			if n := w.windows(); n != before {
				t.Errorf("%d more windows", n-before)
			}
		})
	}
}

// An answer with a wrong state is refused, and the login goes on waiting.
func TestState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.source(t.TempDir(), func(o *login.Options) {
		o.Open = func(to string) error {
			u, _ := url.Parse(to)
			resp, err := http.Get(u.Query().Get("redirect_uri") + "?code=stolen&state=guess") //nolint:noctx // as browsers do
			if err != nil || resp.StatusCode != http.StatusBadRequest {
				t.Errorf("%v %v", resp, err)
			}
			if err == nil {
				_ = resp.Body.Close()
			}
			return w.browse(to)
		}
	})
	done := make(chan string, 1)
	go func() { done <- w.host(s).call("x") }()
	if got := <-done; got != "x" {
		t.Errorf("%q", got)
	}
	w.counted(map[string]int{"authorization_code": 1})
}

// If the server refuses a fresh token at once, no further login begins.
func TestRefusedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.token = func(rw http.ResponseWriter) bool {
		answer(rw, 200, map[string]any{"access_token": "of-another-audience", "token_type": "Bearer"})
		return true
	}
	h := w.host(w.source(t.TempDir(), nil))
	for range 3 {
		if got := h.call("x"); !strings.Contains(got, "401") {
			t.Errorf("%q", got)
		}
	}
	w.counted(map[string]int{"authorized": 1})
}

// If a server offers no login, its own refusal is returned, and no browser is opened.
func TestNoLogin(t *testing.T) {
	t.Parallel()
	for name, rest := range map[string]int{"nothing": http.StatusNotFound, "a page for each path": http.StatusOK, "keys everywhere": http.StatusUnauthorized} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/mcp" {
					rw.Header().Set("Content-Type", "text/html")
					rw.WriteHeader(rest)
					return
				}
				http.Error(rw, "give a key", http.StatusUnauthorized)
			}))
			defer server.Close()
			w.URL = server.URL + "/mcp"
			s := w.source(t.TempDir(), nil)
			if got := w.host(s).call("x"); !strings.HasPrefix(got, "give a key (HTTP 401)") {
				t.Errorf("%q", got)
			}
			if err := s.Login(t.Context(), nil); !errors.Is(err, login.ErrNone) {
				t.Error(err)
			}
			if len(w.opened) > 0 {
				t.Error(w.opened)
			}
		})
	}
}

// A logout revokes the tokens and removes them from the disk.
func TestLogout(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	s := w.source(dir, nil)
	w.host(s).call("x")
	for _, want := range []int{1, 0} {
		if n, err := login.Logout(t.Context(), w.URL, &login.Options{Dir: dir}); n != want || err != nil {
			t.Errorf("%d logins ended, want %d: %v", n, want, err)
		}
	}
	w.counted(map[string]int{"revoked": 2})
	if _, err := os.Stat(s.File()); !os.IsNotExist(err) {
		t.Error(err)
	}
}

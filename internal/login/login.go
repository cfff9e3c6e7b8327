package login

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Ways to log in.
const (
	// Auto opens a browser if there is one. Else the user gets the URL, or a code if the authorization server has codes for
	// devices.
	Auto = "auto"
	// Browser opens a browser.
	Browser = "browser"
	// Paste asks the user to open a URL anywhere, and to paste the URL where the browser ends up.
	Paste = "paste"
	// Device asks the user to enter a code on another device (RFC 8628).
	Device = "device"
	// Credentials is the login of a machine, without a user (RFC 6749, section 4.4).
	Credentials = "credentials"
)

// Options say how a Source logs in. The zero value is useful.
type Options struct {
	// Way is one of the ways to log in. Default: Auto.
	Way string
	// ClientID is the client's id at the authorization server; "": the client registers itself. Its secret or its key may be
	// missing.
	ClientID, ClientSecret string
	ClientKey              crypto.Signer
	// ClientMetadata is the URL of a client ID metadata document, which is the client's id where the authorization
	// server takes such documents.
	ClientMetadata string
	// Scopes are asked for in the place of those that the server names.
	Scopes []string
	// Callback is the URL of this machine that the browser comes back to. Default: a free port of 127.0.0.1.
	Callback string
	// Dir is the directory for tokens; "": they are kept in memory.
	Dir string
	// Open opens a URL in a browser. Nil: there is none.
	Open func(url string) error
	// Once says that a login that another process has left is not shown to the user again.
	Once bool
	// Within is how long a request may wait for a login, if its [Waiter] does not say; 0: as long as that takes.
	Within time.Duration
	// Pasted is where the user pastes the URL at which the browser has ended; nil: nowhere.
	Pasted io.Reader
	// Tell takes a text that the user has to know. Default: it is logged.
	Tell func(text string)
	// Command is the command by which users log in, if a login here cannot reach them; "": there is no such command.
	Command string
	// Transport sends requests to authorization servers. Default: http.DefaultTransport.
	Transport http.RoundTripper
	// Logger takes other messages for a person. Default: slog.Default().
	Logger *slog.Logger
}

// How long things of a login take.
const (
	loginWithin = 10 * time.Minute // until the user has logged in
	loginAgain  = 30 * time.Second // after one that has failed
	refusedSoon = time.Minute      // a new token that is refused in that time will not get better by another login
	mostRefused = 3                // tokens that are renewed because the server refuses them
	othersAfter = time.Second      // then the user is told of a login of another process
	tellAgain   = 15 * time.Second // how often a request that waits tells so
)

// A Source gets the tokens of one server. It implements [holdfast/client.Authorizer], and may be used concurrently. The caller ends
// it with Close.
type Source struct {
	server *url.URL // canonical
	opts   Options
	store  *store
	http   *http.Client
	ctx    context.Context // of logins
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	loaded bool
	record record    // the newest that is known here
	flight *flight   // the login that is under way; nil: none
	failed []*flight // not long ago
	over   string    // why the login before has ended, until the user is told
	closed bool
	unkept bool // tokens cannot be kept, and that was said
	proofs proofs
}

// A flight is a login for all requests that wait for it.
type flight struct {
	done  chan struct{}
	ended time.Time
	err   error
	need  need

	mu    sync.Mutex
	text  string // the text that the user has to know now
	heard chan struct{}
}

// need is the reason for a login.
type need struct {
	challenge challenge
	used      string    // the token that the server has refused; "": none was sent
	stepUp    bool      // more scope is needed
	login     time.Time // with stepUp: the time of the login that has too little
	anew      bool      // the user wants a new login
}

// isLike reports whether a login for a need fails as one for another need has failed: both are for the same scope, or both for no more scope.
func (n need) isLike(other need) bool {
	ours, theirs := n.challenge.scopes, other.challenge.scopes
	return n.stepUp == other.stepUp && (!n.stepUp || covered(ours, theirs) && covered(theirs, ours))
}

// New returns a Source for the server at a URL. opts may be nil.
func New(server string, opts *Options) (*Source, error) {
	u, err := canonical(server)
	if err != nil {
		return nil, err
	}
	s := &Source{server: u}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Way == "" {
		s.opts.Way = Auto
	}
	if s.opts.Logger == nil {
		s.opts.Logger = slog.Default()
	}
	if s.opts.Tell == nil {
		s.opts.Tell = func(text string) { s.opts.Logger.Info(text) }
	}
	base := s.opts.Transport
	if base == nil {
		base = http.DefaultTransport
	}
	s.http = &http.Client{Transport: fence{base, loopback(u)}}
	s.store = newStore(s.opts.Dir, u.String(), s.clientKey())
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// clientKey names the client among those that the user has at this server.
func (s *Source) clientKey() string {
	key := s.opts.ClientID + "\n" + s.opts.ClientMetadata
	if s.opts.Way == Credentials {
		key += "\nmachine"
	}
	return key
}

// Close ends a login that is under way. Another process goes on with it. Close waits for a token that was asked for already, for
// at most five seconds.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
}

// start runs a function in a goroutine that Close waits for. It reports false when the Source is closed.
func (s *Source) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startLocked(f)
}

func (s *Source) startLocked(f func()) bool {
	if s.closed {
		return false
	}
	s.work.Go(f)
	return true
}

var errClosed = errors.New("the connection has ended")

// Host returns the host of the server.
func (s *Source) Host() string { return s.server.Host }

// File returns the file in which the tokens are; "": they are kept in memory.
func (s *Source) File() string { return s.store.file }

// LoggedIn returns the time of the login that the tokens come from, or zero: it tells one user from another.
func (s *Source) LoggedIn() time.Time { return s.current().Token.Login }

// current returns the newest record that is known here.
func (s *Source) current() record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		s.loaded = true
		r, err := s.store.load()
		if err != nil {
			s.opts.Logger.Warn("the tokens that were kept cannot be read", "error", err)
		}
		s.record = r
	}
	return s.record
}

// reload returns the record as it is kept.
func (s *Source) reload() record {
	r, err := s.store.load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && !s.unkept {
		s.record, s.loaded = r, true
	}
	return s.record
}

// keep keeps a record. The caller has lockRecord.
func (s *Source) keep(r record) {
	r.Server = s.server.Scheme + "://" + s.server.Host + s.server.Path
	err := s.store.save(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record, s.loaded = r, true
	if err != nil && !s.unkept {
		s.unkept = true
		s.opts.Logger.Warn("the login cannot be kept: it ends with this process", "error", err)
	}
}

// lock locks a part of the store. Where that cannot be done with a file, this process goes on alone.
func (s *Source) lock(ctx context.Context, what int) (func(), error) {
	unlock, err := s.store.lock(ctx, what)
	if err != nil && ctx.Err() == nil {
		s.mu.Lock()
		if !s.unkept {
			s.unkept = true
			s.opts.Logger.Warn("the login cannot be kept: it ends with this process", "error", err)
		}
		s.mu.Unlock()
		return func() {}, nil
	}
	return unlock, err
}

// Authorization returns the value of the Authorization header, "" for none. A token that is about to expire is renewed.
func (s *Source) Authorization(ctx context.Context) (string, error) {
	r := s.current()
	t := r.Token
	now := time.Now()
	switch {
	case t.Access == "":
		return "", nil
	case t.usable(now, t.early()):
		return t.authorization(), nil
	case !s.renewable(r):
		if t.usable(now, 0) {
			return t.authorization(), nil
		}
		if r = s.reload(); r.Token.usable(now, 0) { // of another process
			return r.Token.authorization(), nil
		}
		return "", nil // the server says where to log in
	}
	r, err := s.refresh(ctx, t.Access, false)
	switch {
	case err == nil && r.Token.Access != "":
		return r.Token.authorization(), nil
	case err == nil:
		return "", nil
	case t.usable(time.Now(), 0):
		s.opts.Logger.Debug("the token could not be renewed yet", "error", err)
		return t.authorization(), nil
	}
	return "", fmt.Errorf("the token for %s has expired, and cannot be renewed: %w", s.server.Host, err)
}

// refresh returns a record with another token than the one that was used, which it renews unless another process has done that. refused says
// that the server has refused it. A record without a token means that a new login is needed. The renewal goes on when ctx
// ends: the new token must not be lost.
func (s *Source) refresh(ctx context.Context, used string, refused bool) (record, error) {
	type result struct {
		r   record
		err error
	}
	done := make(chan result, 1)
	if !s.start(func() {
		r, err := s.refreshNow(used, refused)
		done <- result{r, err}
	}) {
		return record{}, errClosed
	}
	select {
	case got := <-done:
		return got.r, got.err
	case <-ctx.Done():
		return record{}, context.Cause(ctx)
	}
}

func (s *Source) refreshNow(used string, refused bool) (record, error) {
	unlock, err := s.lock(s.ctx, lockRecord)
	if err != nil {
		return record{}, err
	}
	defer unlock()
	r := s.reload()
	if r.Token.Access != used || !s.renewable(r) {
		return r, nil
	}
	lasting, end := finishing(s.ctx)
	defer end()
	within, cancel := context.WithTimeout(lasting, tryFor)
	defer cancel()
	for wait := tryAgainIn; ; wait *= 2 {
		next, err := s.renew(within, r)
		switch {
		case err == nil:
			if refused {
				next.Token.Refused = 1
				if time.Since(r.Token.Obtained) < refusedSoon {
					next.Token.Refused += r.Token.Refused
				}
			}
			s.keep(next)
			return next, nil
		case !passes(err):
			s.opts.Logger.Debug("the token could not be renewed", "error", err)
			s.mu.Lock()
			s.over = fmt.Sprintf("the login at %s has ended (%v). ", s.server.Host, err)
			s.mu.Unlock()
			r.Token = token{}
			if isOfClient(err) {
				r.Client = identity{}
			}
			s.keep(r)
			return r, nil
		}
		select {
		case <-time.After(wait):
		case <-within.Done():
			return r, err
		case <-s.ctx.Done():
			return r, err
		}
	}
}

// Authorize gets a token after the server has refused a request. It implements [holdfast/client.Authorizer].
func (s *Source) Authorize(ctx context.Context, req *http.Request, resp *http.Response) error {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
	n := need{challenge: challengeOf(resp.Header)}
	n.used, _ = tokenIn(req.Header.Get("Authorization"))
	if n.challenge.isOfProof() {
		return fmt.Errorf("%s refuses the proof for the token (%s): is the clock of this machine right?", s.server.Host, oneLine(n.challenge.code+" "+n.challenge.text))
	}
	n.stepUp = n.challenge.code == "insufficient_scope" && n.used != ""
	if resp.StatusCode == http.StatusForbidden && !n.stepUp {
		return nil // the answer to the same request says why
	}
	err := s.obtain(ctx, n)
	if errors.Is(err, ErrNone) {
		return nil // the answer to the same request says more
	}
	return err
}

// Taken notes that the server has taken a token: if the server refuses the token later, a new login helps.
func (s *Source) Taken(authorization string) {
	used, _ := tokenIn(authorization)
	s.mu.Lock()
	first := used != "" && used == s.record.Token.Access && !s.record.Token.Taken
	if first {
		s.record.Token.Taken = true
	}
	s.mu.Unlock()
	if !first {
		return
	}
	s.start(func() {
		unlock, err := s.lock(s.ctx, lockRecord)
		if err != nil {
			return
		}
		defer unlock()
		if r := s.reload(); r.Token.Access == used {
			r.Token.Taken = true
			s.keep(r)
		}
	})
}

// obtain gets a token that a need asks for. It looks again after a login for another need, which was under way already: that may have been for
// less, or was refused for more.
func (s *Source) obtain(ctx context.Context, n need) error {
	if done, err := s.find(ctx, &n); done || err != nil {
		return err
	}
	waiting, stop := s.patience(ctx)
	defer stop()
	for {
		f, own := s.fly(n)
		if err := s.wait(waiting, f); own || n.anew || waiting.Err() != nil || err != nil && f.need.isLike(n) {
			return err
		}
		if done, err := s.find(ctx, &n); done || err != nil {
			return err
		}
	}
}

// find reports whether there is a token that a need asks for, which it renews if that helps. If not, a login is needed.
func (s *Source) find(ctx context.Context, n *need) (bool, error) {
	r := s.reload()
	switch {
	case n.anew:
	case r.Token.Access != n.used && r.Token.usable(time.Now(), 0) && (!n.stepUp || r.hasAskedFor(n.challenge.scopes)):
		return true, nil // another request, or another process, has got it
	case n.stepUp:
		n.login = r.Token.Login
		if len(n.challenge.scopes) == 0 || covered(n.challenge.scopes, r.Asked) {
			return false, fmt.Errorf("%s wants more rights than the login has (%s), and does not give them: log in as another user with 'holdfast login', or ask its operator",
				s.server.Host, oneLine(strings.Join(n.challenge.scopes, " ")))
		}
	case n.used != "" && n.used == r.Token.Access && s.renewable(r) && r.Token.Refused < mostRefused:
		renewed, err := s.refresh(ctx, n.used, true)
		return err == nil && renewed.Token.Access != "", err
	case n.used != "" && n.used == r.Token.Access && !r.Token.Taken && time.Since(r.Token.Login) < refusedSoon:
		return false, fmt.Errorf("%s refuses the token that the login has just brought: its log may say why; 'holdfast logout' and another login begin again", s.server.Host)
	}
	return false, nil
}

// covered reports whether all scopes of a list are in another.
func covered(some, all []string) bool {
	for _, one := range some {
		if !strings.Contains(" "+strings.Join(all, " ")+" ", " "+one+" ") {
			return false
		}
	}
	return true
}

// fly returns the login that is under way, or one like the needed one that has failed lately, or begins one: then own is true.
func (s *Source) fly(n need) (f *flight, own bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flight != nil {
		return s.flight, false
	}
	s.failed = slices.DeleteFunc(s.failed, func(f *flight) bool { return time.Since(f.ended) >= loginAgain })
	if i := slices.IndexFunc(s.failed, func(f *flight) bool { return f.need.isLike(n) }); i >= 0 && !n.anew {
		return s.failed[i], false
	}
	f = &flight{done: make(chan struct{}), need: n, heard: make(chan struct{})}
	if !s.startLocked(func() {
		err := s.login(s.ctx, f)
		s.mu.Lock()
		s.landLocked(f, err)
		s.mu.Unlock()
	}) {
		s.landLocked(f, errClosed)
		return f, true
	}
	s.flight = f
	return f, true
}

// landLocked ends a login.
func (s *Source) landLocked(f *flight, err error) {
	s.flight = nil
	if f.err, f.ended = err, time.Now(); err != nil {
		s.failed = append(s.failed, f)
	}
	close(f.done)
}

// A Waiter is a request that may wait for a login. It is in the context of the request.
type Waiter struct {
	// Tell takes the text that the user has to know. It is called again and again as long as the request waits. May be nil.
	Tell func(text string)
	// Within is how long the request may wait; 0: as long as the login takes.
	Within time.Duration
}

type waiterKey struct{}

// With returns a context for a request that may wait for a login.
func With(ctx context.Context, w Waiter) context.Context {
	return context.WithValue(ctx, waiterKey{}, w)
}

// errLate is the cause of a context that has ended because its request may not wait for a login any longer.
var errLate = errors.New("the login goes on")

// patience returns a context for the time that a request may wait for logins.
func (s *Source) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	w, _ := ctx.Value(waiterKey{}).(Waiter)
	if within := cmp.Or(w.Within, s.opts.Within); within > 0 {
		return context.WithTimeoutCause(ctx, within, errLate)
	}
	return context.WithCancel(ctx)
}

// wait waits for a login.
func (s *Source) wait(ctx context.Context, f *flight) error {
	w, _ := ctx.Value(waiterKey{}).(Waiter)
	again := time.NewTicker(tellAgain)
	defer again.Stop()
	for {
		text, heard := f.now()
		if text != "" && w.Tell != nil {
			w.Tell(text)
		}
		select {
		case <-f.done:
			return f.err
		case <-heard:
		case <-again.C:
		case <-ctx.Done():
			err := context.Cause(ctx)
			if errors.Is(err, errLate) {
				err = fmt.Errorf("%s needs a login, which goes on: %s When you have logged in, connect to the server again", s.server.Host, f.last())
			}
			return err
		}
	}
}

// now returns the text that the user has to know, and a channel that is closed when there is another.
func (f *flight) now() (string, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text, f.heard
}

func (f *flight) last() string {
	text, _ := f.now()
	return text
}

// tell tells the user what a login needs.
func (s *Source) tell(f *flight, text string) {
	s.mu.Lock()
	text = s.over + text
	s.over = ""
	s.mu.Unlock()
	f.mu.Lock()
	f.text = text
	close(f.heard)
	f.heard = make(chan struct{})
	f.mu.Unlock()
	s.say(text)
}

func (s *Source) say(text string) { s.opts.Tell(text) }

// login logs in, unless another process does it meanwhile.
func (s *Source) login(ctx context.Context, f *flight) error {
	n := f.need
	if !n.anew {
		unlock, err := s.turn(ctx, f)
		if err != nil || unlock == nil {
			return err
		}
		defer unlock()
	}
	at, err := s.discover(ctx, n.challenge)
	if err != nil {
		return err
	}
	r := s.reload().at(at.Issuer)
	r.Resource = at.resource
	r.Places = places{Token: at.TokenEndpoint, Methods: at.TokenEndpointAuthMethodsSupported, Algorithms: at.TokenEndpointAuthSigningAlgValuesSupported}
	if safe(at.RevocationEndpoint) {
		r.Places.Revocation = at.RevocationEndpoint
	}
	if n.anew && s.opts.ClientID == "" {
		r.Client, r.Scopes = identity{}, nil // the authorization server may have forgotten the client
	}
	scopes := s.scopes(at, n, r.Scopes)
	l := &attempt{s: s, f: f, at: at, r: r, scopes: scopes}
	if err := l.bind(n.challenge); err != nil {
		return err
	}
	way, err := s.way(at)
	if err != nil {
		return err
	}
	got, err := way(l, ctx)
	switch {
	case errors.Is(err, errElsewhere):
		return nil
	case err != nil:
		return err
	}
	lasting, end := finishing(ctx)
	defer end()
	unlock, err := s.lock(lasting, lockRecord)
	if err != nil {
		return err
	}
	defer unlock()
	got.Pending = pending{}
	s.keep(got)
	return nil
}

// errElsewhere says that another process has logged in.
var errElsewhere = errors.New("another process has logged in")

// turn waits until this process may ask the user. It returns nil if another process has got a token meanwhile.
func (s *Source) turn(ctx context.Context, f *flight) (func(), error) {
	waiting, stop := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-waiting.Done():
		case <-time.After(othersAfter):
			s.tell(f, s.elsewhere())
		}
	}()
	unlock, err := s.lock(ctx, lockLogin)
	stop()
	<-told // the texts of this process come later
	if err != nil {
		return nil, err
	}
	if s.has(f.need) {
		unlock()
		return nil, nil
	}
	return unlock, nil
}

// elsewhere returns the text about a login that another process has begun.
func (s *Source) elsewhere() string {
	text := s.server.Host + " needs a login, for which another process has asked: log in there"
	if p := s.reload().Pending; p.URL != "" && time.Now().Before(p.Until) {
		text += ", or open " + p.URL
	}
	return text
}

// has reports whether there is another token than the one that the server has refused. For more scope it is one of another login, which has
// asked for that scope.
func (s *Source) has(n need) bool {
	r := s.reload()
	return r.Token.Access != n.used && r.Token.usable(time.Now(), 0) && (!n.stepUp || !r.Token.Login.Equal(n.login) && r.hasAskedFor(n.challenge.scopes))
}

// scopes returns the scopes to ask for. granted are those of the login before.
func (s *Source) scopes(at *issuer, n need, granted []string) []string {
	wanted := s.opts.Scopes
	if len(wanted) == 0 {
		wanted = n.challenge.scopes
	}
	if len(wanted) == 0 {
		wanted = at.scopes
	}
	all := append([]string(nil), granted...)
	add := func(list []string) {
		for _, one := range list {
			if !covered([]string{one}, all) {
				all = append(all, one)
			}
		}
	}
	add(wanted)
	if n.stepUp {
		add(n.challenge.scopes)
	}
	if s.opts.Way != Credentials && covered([]string{offline}, at.ScopesSupported) {
		add([]string{offline}) // without it some give no refresh token
	}
	return all
}

const offline = "offline_access"

// An attempt is one login.
type attempt struct {
	s      *Source
	f      *flight
	at     *issuer
	r      record
	scopes []string
	bound  binding // of the token that is asked for
}

// way returns the function that logs in at an authorization server.
func (s *Source) way(at *issuer) (func(*attempt, context.Context) (record, error), error) {
	switch s.opts.Way {
	case Credentials:
		return (*attempt).credentials, nil
	case Device:
		if at.device == "" {
			return nil, fmt.Errorf("the authorization server %s has no codes for devices: use another --login", at.Issuer)
		}
		return (*attempt).device, nil
	case Auto:
		if s.opts.Open == nil && at.device != "" {
			return (*attempt).device, nil
		}
	}
	return (*attempt).code, nil
}

// done returns the record with the token and the scopes of a login.
func (l *attempt) done(r record, t token, granted []string) record {
	t.Login = t.Obtained
	r.Token, r.Scopes, r.Asked = t, l.scopes, l.scopes
	if granted != nil {
		r.Scopes = granted
	}
	return r
}

// Login logs in anew, even if there are tokens.
func (s *Source) Login(ctx context.Context, header http.Header) error {
	if err := s.obtain(ctx, need{challenge: challengeOf(header), anew: true}); err != nil {
		return fmt.Errorf("%s: %w", s.server.Host, err)
	}
	return nil
}

// Scopes returns the scopes of the login, as far as they are known.
func (s *Source) Scopes() []string { return s.current().Scopes }

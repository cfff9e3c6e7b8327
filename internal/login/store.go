package login

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"holdfast/internal/dpop"
	"holdfast/internal/statefile"
)

// A record is a login as it is kept.
type record struct {
	Version  int      `json:"version"`
	Server   string   `json:"server"` // its origin and path, for people
	Issuer   string   `json:"issuer,omitempty"`
	Resource string   `json:"resource,omitempty"`
	Token    token    `json:"token,omitzero"`
	Scopes   []string `json:"scopes,omitempty"` // that were granted, or else asked for
	Asked    []string `json:"asked,omitempty"`  // scopes that the last login has asked for
	Client   identity `json:"client,omitzero"`
	Places   places   `json:"places,omitzero"`
	// Key is the private key (JWK) that tokens are bound to, for logins that ask for bound tokens.
	Key json.RawMessage `json:"key,omitempty"`
	// Pending is a login that waits for its user.
	Pending pending `json:"pending,omitzero"`
}

// at returns the record for a login at an authorization server: the record of another one is of no use there. The client and the key
// are those of a login that was begun.
func (r record) at(issuer string) record {
	p := r.Pending
	if r.Issuer != issuer {
		r = record{Issuer: issuer}
	}
	switch p.Issuer {
	case issuer:
		r.Client, r.Key, r.Pending = p.Client, p.Key, p
	case "":
	default:
		r.Pending = pending{}
	}
	return r
}

// isLive reports whether the record has a token: then only a completed login changes the rest of the record.
func (r record) isLive() bool { return r.Token.Access != "" || r.Token.Refresh != "" }

// hasAskedFor reports whether the token may have scopes: each was granted, or the login has asked for it. The authorization server may
// state the granted ones in a form of its own: with commas, as URLs, or as one scope for several.
func (r record) hasAskedFor(scopes []string) bool {
	return covered(scopes, slices.Concat(r.Scopes, r.Asked))
}

// places are the endpoints of an authorization server that are used after the login, and their ways
// to authenticate a client.
type places struct {
	Token      string   `json:"token,omitempty"`
	Revocation string   `json:"revocation,omitempty"`
	Methods    []string `json:"methods,omitempty"`
	Algorithms []string `json:"algorithms,omitempty"`
}

// A token is an access token, as an authorization server gave it.
type token struct {
	Access   string    `json:"access,omitempty"`
	Refresh  string    `json:"refresh,omitempty"`
	Obtained time.Time `json:"obtained,omitzero"`
	Login    time.Time `json:"login,omitzero"`  // the time of the login that it comes from
	Expiry   time.Time `json:"expiry,omitzero"` // zero: it is not known
	// Bound says that the token is bound to the key, and is sent with proofs only.
	Bound bool `json:"bound,omitempty"`
	// Taken says that the server has taken a token of the login.
	Taken bool `json:"taken,omitempty"`
	// Refused is how many tokens before this one the server has refused soon after they were got.
	Refused int `json:"refused,omitempty"`
}

// usable reports whether a token may be sent at a time. early is how long before its end it is renewed.
func (t token) usable(now time.Time, early time.Duration) bool {
	return t.Access != "" && (t.Expiry.IsZero() || now.Before(t.Expiry.Add(-early)))
}

// early is how long before its end a token is renewed: a tenth of its life, at most a minute.
func (t token) early() time.Duration {
	return min(time.Minute, t.Expiry.Sub(t.Obtained)/10)
}

// authorization returns the value of the Authorization header for a token.
func (t token) authorization() string {
	if t.Bound {
		return dpop.Scheme + " " + t.Access
	}
	return "Bearer " + t.Access
}

// An identity is the identity of a client at an authorization server.
type identity struct {
	ID       string `json:"id,omitempty"`
	Secret   string `json:"secret,omitempty"`
	Method   string `json:"method,omitempty"`   // of authentication at the token endpoint; "": by the metadata
	Redirect string `json:"redirect,omitempty"` // the redirect URI that was registered
}

// A pending login waits for its user. A process that is started meanwhile goes on with it. Of a login that was refused its issuer, client and key
// are left, for the next one there. One that was not completed, or that was refused for its client, leaves no client: the next one registers another.
type pending struct {
	// Issuer, Client and Key are those of the login. The ones of the record belong to its token.
	Issuer string          `json:"issuer,omitempty"` // "": a record of an older build, in which they are the record's
	Client identity        `json:"client,omitzero"`
	Key    json.RawMessage `json:"key,omitempty"`

	URL      string    `json:"url,omitempty"` // that the user opens
	State    string    `json:"state,omitempty"`
	Verifier string    `json:"verifier,omitempty"`
	Redirect string    `json:"redirect,omitempty"`
	Until    time.Time `json:"until,omitzero"`
}

// scopes returns the scopes that the login asks for.
func (p pending) scopes() []string {
	u, err := url.Parse(p.URL)
	if err != nil {
		return nil
	}
	return strings.Fields(u.Query().Get("scope"))
}

// version is the version of the files.
const version = 1

// A store keeps the record of one server and client. It may be used concurrently, also by other processes.
type store struct {
	file string // "": it is kept in memory
	sems [2]chan struct{}

	mu   sync.Mutex
	kept record // in memory
}

// The parts that are locked: the record, briefly, or the right to ask the user, for as long as that takes.
const (
	lockRecord = iota
	lockLogin
)

// lockAgain is how often a lock of another process is tried again.
const lockAgain = 50 * time.Millisecond

func newStore(dir, server, client string) *store {
	s := &store{sems: [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}}
	if dir != "" {
		s.file = filepath.Join(dir, prefixOf(server)+"-"+short(client)+".json")
	}
	return s
}

// prefixOf returns the beginning of the names of the files for a server.
func prefixOf(server string) string {
	name := "server"
	if u, err := url.Parse(server); err == nil {
		name = strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
				return r
			}
			return '_'
		}, strings.ToLower(u.Host))
	}
	return fmt.Sprintf("%.80s-%s", name, short(server))
}

func short(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// canonical returns one URL for all spellings of a server's URL: without secrets, over HTTP.
func canonical(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return nil, errors.New("server URL: it cannot be read: want one like https://HOST/PATH")
	}
	c := *u
	c.User, c.Fragment, c.RawFragment = nil, "", ""
	switch strings.ToLower(u.Scheme) {
	case "ws", "http":
		c.Scheme = "http"
	default:
		c.Scheme = "https"
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if port == map[string]string{"http": "80", "https": "443"}[c.Scheme] {
		port = ""
	}
	c.Host = host
	switch {
	case port != "":
		c.Host = net.JoinHostPort(host, port)
	case strings.Contains(host, ":"):
		c.Host = "[" + host + "]"
	}
	return &c, nil
}

// lock locks a part of the store. The error is that of ctx, or of the file.
func (s *store) lock(ctx context.Context, what int) (unlock func(), err error) {
	select {
	case s.sems[what] <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	free := func() { <-s.sems[what] }
	if s.file == "" {
		return free, nil
	}
	if err := os.MkdirAll(filepath.Dir(s.file), 0o700); err != nil {
		free()
		return nil, err
	}
	name := statefile.LockName(s.file)
	if what == lockLogin {
		name = strings.TrimSuffix(name, ".lock") + ".login.lock"
	}
	lock := flock.New(name, flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockAgain); err != nil {
		free()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	return func() { _ = lock.Close(); free() }, nil
}

// load returns the record; a zero one if there is none, or none that can be read.
func (s *store) load() (record, error) {
	if s.file == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.kept, nil
	}
	return loadFile(s.file)
}

func loadFile(name string) (record, error) {
	var r record
	data, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, nil
	case err != nil:
		return r, err
	}
	if json.Unmarshal(data, &r) != nil || r.Version != version {
		return record{}, nil // a new login replaces it
	}
	return r, nil
}

// save keeps a record. The caller has lockRecord.
func (s *store) save(r record) error {
	r.Version = version
	if s.file == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept = r
		return nil
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return statefile.Replace(s.file, append(data, '\n'))
}

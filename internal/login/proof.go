package login

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/dpop"
)

// This file is for tokens that are bound to a key (DPoP, RFC 9449).

// A binding says which key the token that is asked for must be bound to.
type binding struct {
	key  *dpop.Key // nil: to none
	must bool      // a token that is not bound will not do
}

// thumbprint returns the thumbprint of the key, or "".
func (b binding) thumbprint() string {
	if b.key == nil {
		return ""
	}
	return b.key.Thumbprint()
}

// bindingOf returns the binding for the renewal of a record's token: a bound token stays bound.
func bindingOf(r record) (b binding, err error) {
	if r.Token.Bound {
		b.key, err = dpop.ParseKey(r.Key)
		b.must = true
	}
	if err != nil {
		return b, &tokenError{code: "invalid_dpop_proof", description: "the key that the token is bound to is lost", host: "this machine"}
	}
	return b, nil
}

// bind makes the login ask for a token that is bound to a key, if the server takes such tokens and the authorization server has them. Many
// authorization servers have them, although servers that do not know bound tokens refuse them.
func (l *attempt) bind(c challenge) error {
	at := l.at
	if !at.bound && (len(at.proofs) == 0 || !c.bound && len(at.ofResource) == 0) {
		return nil
	}
	key, err := dpop.ParseKey(l.r.Key)
	if err != nil || !takes(at.proofs, key) || !takes(at.ofResource, key) { // else the key stays: another process may have begun with it
		key, err = dpop.NewKey(at.proofs, at.ofResource)
	}
	if err != nil && at.bound {
		return fmt.Errorf("%s takes only tokens that are bound to a key: %w", l.s.server.Host, err)
	}
	if err != nil {
		l.s.opts.Logger.Debug("the login is not bound to a key", "error", err)
		return nil
	}
	if l.r.Key, err = json.Marshal(key); err != nil {
		return err
	}
	l.bound = binding{key, at.bound}
	return nil
}

// takes reports whether a list of algorithms has that of a key; an empty list has all.
func takes(list []string, key *dpop.Key) bool {
	return len(list) == 0 || slices.Contains(list, key.Algorithm())
}

// tokenIn returns the token in a value of the Authorization header, and whether the token is bound.
func tokenIn(authorization string) (token string, bound bool) {
	scheme, token, _ := strings.Cut(authorization, " ")
	return token, scheme == dpop.Scheme
}

// Prove adds the proof to a request with a token that needs one. With [Source.Answered] it makes requests with tokens that are bound to a key.
func (s *Source) Prove(req *http.Request, body []byte) error {
	token, bound := tokenIn(req.Header.Get("Authorization"))
	if !bound {
		return nil
	}
	key, err := s.proofs.keyOf(s.current().Key)
	if err != nil {
		return fmt.Errorf("the key of the login at %s cannot be read: %w: 'holdfast logout' and another login make a new one", s.server.Host, err)
	}
	return s.proofs.add(req, key, &dpop.Request{Token: token, Body: body, HasBody: body != nil})
}

// Answered takes the nonce in an answer. It reports whether the request was refused for its proof.
func (s *Source) Answered(req *http.Request, resp *http.Response) (again bool) {
	s.proofs.hear(req.URL, resp.Header)
	if resp.StatusCode != http.StatusUnauthorized || req.Header.Get(dpop.Header) == "" {
		return false
	}
	c := challengeOf(resp.Header)
	return c.isOfProof()
}

// mostNonce bounds a nonce, in bytes.
const mostNonce = 1 << 10

// proofs make proofs. The methods may be called concurrently. The zero value is ready.
type proofs struct {
	mu     sync.Mutex
	nonces map[string]string // the last of each origin
	text   string            // of key
	key    *dpop.Key
}

// keyOf returns the key of a record.
func (p *proofs) keyOf(text []byte) (*dpop.Key, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.key == nil || p.text != string(text) {
		key, err := dpop.ParseKey(text)
		if err != nil {
			return nil, err
		}
		p.key, p.text = key, string(text)
	}
	return p.key, nil
}

// add adds a proof to a request. of has the other facts that the proof is of: the token and the body.
func (p *proofs) add(req *http.Request, key *dpop.Key, of *dpop.Request) error {
	p.mu.Lock()
	of.Nonce = p.nonces[originOf(req.URL)]
	p.mu.Unlock()
	of.Method, of.URL, of.At = req.Method, req.URL, time.Now()
	proof, err := key.Prove(of)
	if err != nil {
		return err
	}
	req.Header[dpop.Header] = []string{proof}
	return nil
}

// hear takes the nonce in the header of an answer.
func (p *proofs) hear(from *url.URL, header http.Header) {
	nonce := header.Get(dpop.Nonce)
	if nonce == "" || len(nonce) > mostNonce {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nonces == nil {
		p.nonces = make(map[string]string)
	}
	p.nonces[originOf(from)] = nonce
}

func originOf(u *url.URL) string { return u.Scheme + "://" + u.Host }

package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast/internal/dpop"
	"holdfast/internal/protocol"
)

// This file is about tokens that are bound to a key of their client (RFC 9449): each request has a proof that its client has the key. See
// docs/decisions/0051-dpop.md.

// The times of proofs.
const (
	proofWindow = 5 * time.Minute // by which the clock of a client may be off (the DPoP profile of MCP, "DPoP Proof Validity Window")
	nonceLife   = 5 * time.Minute
)

// mostProofs bounds the used proofs that are remembered, in each of the two halves.
const mostProofs = 200_000

// Proofs checks the proofs of clients. Its methods may be called concurrently. The zero value is ready.
type Proofs struct {
	// Required says that tokens of the issuer must be bound.
	Required bool
	// Nonces says that proofs must have a nonce of this server that is younger than nonceLife.
	Nonces bool
	// Values is the store in which nodes share the key of their nonces; nil: each node has its own.
	Values Values
	Log    *slog.Logger // slog.Default()

	key nonceKey

	mu       sync.Mutex
	now, old map[proofID]struct{}
	turned   time.Time // when now was begun
	forgot   time.Time // proofs used before that time may have been forgotten
}

// Values are named values that nodes share. The methods are those of a store.
type Values interface {
	FirstValue(ctx context.Context, name string, value []byte, ttl time.Duration) (is []byte, err error)
	SetValue(ctx context.Context, name string, value []byte, ttl time.Duration) error
}

// A proofID is a digest of a key and the id of a proof that was made with that key.
type proofID [16]byte

// A proofError says why a proof is refused. The client gets its text.
type proofError struct {
	code, text string
}

// Error implements error.
func (e *proofError) Error() string { return e.text }

func badProof(format string, args ...any) *proofError {
	return &proofError{dpop.CodeProof, fmt.Sprintf(format, args...)}
}

// A sentWrong says that a token was sent with the wrong scheme. The client gets its text.
type sentWrong string

// Error implements error.
func (e sentWrong) Error() string { return string(e) }

// Is is for [errors.Is].
func (e sentWrong) Is(target error) bool { return target == errInvalid }

const (
	errBound   = sentWrong("the token is bound to a key: send it with the scheme DPoP, and with a proof")
	errNotKeys = sentWrong("the token is not bound to a key: send it with the scheme Bearer")
	errUnbound = sentWrong("the token is not bound to a key: this server takes those only that are (DPoP)")
)

var errNoProof = badProof("a token that is sent with the scheme DPoP needs one proof, in the header DPoP")

// A shown is the token of a request, and how it was sent.
type shown struct {
	token string
	proof bool // the scheme is DPoP
}

// tokenOf returns the token of a request (RFC 6750, section 2.1; RFC 9449, section 7.1).
func tokenOf(r *http.Request) (s shown, ok bool) {
	h := r.Header["Authorization"]
	if len(h) != 1 {
		return s, false
	}
	scheme, token, ok := strings.Cut(h[0], " ")
	s.token, s.proof = strings.TrimSpace(token), strings.EqualFold(scheme, dpop.Scheme)
	return s, ok && (s.proof || strings.EqualFold(scheme, "Bearer")) && s.token != "" && !strings.ContainsAny(s.token, " \t,")
}

// bound checks that a token was sent with the right scheme: DPoP if it is bound to a key, Bearer if not, which Proofs.Required forbids.
// It returns the thumbprint of the key, or "".
func (p *Policy) bound(v *verified, s shown) (key string, err error) {
	key, is := v.confirmation.key()
	switch {
	case !is && p.Proofs.required():
		return "", errUnbound
	case is && !s.proof:
		return "", errBound
	case !is && s.proof:
		return "", errNotKeys
	}
	return key, nil
}

func (p *Proofs) required() bool { return p != nil && p.Required }

// prove checks the proof of a request with a token that is bound to a key. again says that the request was let in before: then prove only
// checks that the proof is made with the key, for the token. The error is a *proofError.
func (p *Policy) prove(r *http.Request, token, key string, again bool) error {
	header := r.Header[dpop.Header]
	if len(header) != 1 {
		return errNoProof
	}
	proof, err := dpop.Parse(header[0])
	switch {
	case err != nil:
		return badProof("%v", err)
	case proof.Key != key:
		return badProof("the proof is made with another key than the token is bound to")
	case !proof.Covers(token):
		return badProof("the proof is not for the token (ath)")
	case again:
		return nil
	case proof.Method != r.Method:
		return badProof("the proof is for another method (htm): want %s", r.Method)
	}
	if at := p.at(r); !proof.IsFor(at[0]) && !proof.IsFor(at[len(at)-1]) {
		return badProof("the proof is for another URL (htu): want %s", inQuotes(at[0]))
	}
	digest, err := proof.Digest()
	if err != nil {
		return badProof("%v", err)
	}
	if err := p.Proofs.take(r.Context(), proof); err != nil {
		return err
	}
	if digest != nil {
		return p.watchBody(r, digest)
	}
	return nil
}

// at returns the URLs that a request may have been made to.
func (p *Policy) at(r *http.Request) []string {
	to := p.resource(r, r.URL.Path)
	if p.Resource == "" && r.TLS == nil { // a proxy may have ended TLS
		return []string{to, "https" + strings.TrimPrefix(to, "http")}
	}
	return []string{to}
}

// inQuotes removes the characters of a text that cannot stand in a quoted string of a header.
func inQuotes(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return -1
		}
		return r
	}, text)
}

// take notes that a proof is used. It returns an error if the proof is not fresh, was used before, or needs a nonce.
func (p *Proofs) take(ctx context.Context, proof *dpop.Proof) error {
	now := time.Now()
	var given time.Time // when the nonce was given
	if proof.Nonce != "" {
		given = p.key.get(ctx, p).open(proof.Nonce)
	}
	fresh := !given.IsZero() && now.Sub(given) < nonceLife && given.Sub(now) < proofWindow // the nonce may have been given by another node's clock
	off := now.Sub(proof.Issued)
	switch {
	case p.Nonces && !fresh:
		return &proofError{dpop.CodeNonce, "the proof needs the nonce of the header DPoP-Nonce"}
	case !fresh && (off > proofWindow || off < -proofWindow):
		return badProof("the proof was not made now (iat), or the clock of the client is wrong: it is %s here, and the header DPoP-Nonce has a nonce that stands for it", now.UTC().Format(time.RFC3339))
	}
	sum := sha256.Sum256([]byte(proof.Key + "\n" + proof.ID))
	id := proofID(sum[:])
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.turned) > 2*proofWindow || len(p.now) >= mostProofs {
		if len(p.old) > 0 && now.Sub(p.turned) <= 2*proofWindow { // a proof that is dropped could still be used again
			p.forgot = p.turned
		}
		p.old, p.now, p.turned = p.now, nil, now
	}
	if now.Sub(p.forgot) < 2*proofWindow && (!fresh || !given.After(p.forgot)) {
		return &proofError{dpop.CodeNonce, "so many proofs are used here that one needs the nonce of the header DPoP-Nonce"}
	}
	_, was := p.old[id]
	if _, is := p.now[id]; is || was {
		return badProof("the proof was used before (jti): make a new one for each request")
	}
	if p.now == nil {
		p.now = make(map[proofID]struct{})
	}
	p.now[id] = struct{}{}
	return nil
}

// offer sets the header with the nonce that the client's next proofs need. err is the error of its request, or nil.
func (p *Proofs) offer(w http.ResponseWriter, r *http.Request, err error) {
	_, refused := errors.AsType[*proofError](err)
	if p == nil || !p.Nonces && !refused {
		return
	}
	w.Header().Set(dpop.Nonce, p.key.get(r.Context(), p).nonce(time.Now()))
}

// A nonceKey is the key that nonces are made with. It is the same on all nodes that share a store.
type nonceKey struct {
	mu    sync.Mutex
	value []byte
	again time.Time // when the store is asked next
}

// The times of the key in the store: nonceKeyTTL after its last use the store drops it, every nonceKeyFor a node that uses it renews it,
// and nonceKeyWait bounds the wait for the store.
const (
	nonceKeyName  = "dpop-nonce-key"
	nonceKeyTTL   = 30 * 24 * time.Hour
	nonceKeyFor   = time.Hour
	nonceKeyWait  = 2 * time.Second
	nonceKeyRetry = time.Minute
)

// A nonces is a key, which makes and opens nonces.
type nonces []byte

func (k *nonceKey) get(ctx context.Context, p *Proofs) nonces {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.value == nil {
		k.value = make([]byte, sha256.Size)
		_, _ = rand.Read(k.value) // it never fails
	}
	if p.Values == nil || time.Now().Before(k.again) {
		return k.value
	}
	k.again = time.Now().Add(nonceKeyFor)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), nonceKeyWait)
	defer cancel()
	is, err := p.Values.FirstValue(ctx, nonceKeyName, k.value, nonceKeyTTL)
	if err == nil && len(is) == sha256.Size {
		k.value = is
		err = p.Values.SetValue(ctx, nonceKeyName, is, nonceKeyTTL)
	}
	if err != nil {
		k.again = time.Now().Add(nonceKeyRetry)
		p.log().Warn("the key of nonces (DPoP) cannot be shared with other nodes now: clients that reach several nodes are asked for a new nonce by each", "error", err)
	}
	return k.value
}

func (p *Proofs) log() *slog.Logger {
	if p.Log != nil {
		return p.Log
	}
	return slog.Default()
}

// macSize is the size of the authentication code in a nonce, in bytes.
const macSize = 16

// nonce returns the nonce for a time.
func (n nonces) nonce(at time.Time) string {
	text := binary.BigEndian.AppendUint64(nil, uint64(at.UnixMilli()))
	return base64.RawURLEncoding.EncodeToString(append(text, n.code(text)...))
}

func (n nonces) code(text []byte) []byte {
	mac := hmac.New(sha256.New, n)
	mac.Write(text)
	return mac.Sum(nil)[:macSize]
}

// open returns the time at which a nonce was given; the zero time if it was not made with this key.
func (n nonces) open(text string) time.Time {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(data) != 8+macSize || !hmac.Equal(data[8:], n.code(data[:8])) {
		return time.Time{}
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(data)))
}

// errBody says that a body has another digest than the proof.
var errBody = badProof("the body is not the one that the proof is for (content_digest)")

// watchBody makes the body of a request end with an error if its digest is not that of the proof.
func (p *Policy) watchBody(r *http.Request, digest *dpop.Digest) error {
	if r.ContentLength == 0 || r.Body == nil {
		if !digest.Holds() {
			return errBody
		}
		return nil
	}
	challenge := p.challenge(r, dpop.Scheme, errBody, p.Scopes)
	r.Body = &watchedBody{ReadCloser: r.Body, digest: digest, left: r.ContentLength, refusal: &bodyRefusal{
		protocol.Unauthorized{Status: http.StatusUnauthorized, Challenge: []string{challenge}, Text: errBody.Error()},
	}}
	return nil
}

// A bodyRefusal is the error of reading a body that has another digest than the proof.
type bodyRefusal struct{ no protocol.Unauthorized }

// Error implements error.
func (e *bodyRefusal) Error() string { return e.no.Error() }

// Unwrap is for [errors.As].
func (e *bodyRefusal) Unwrap() error { return &e.no }

// Reason returns the reason for observers.
func (e *bodyRefusal) Reason() string { return dpop.CodeProof }

// A watchedBody returns an error in place of the end of a body that has the wrong digest.
type watchedBody struct {
	io.ReadCloser
	digest  *dpop.Digest
	left    int64 // bytes to come; below 0: the length is not known
	refusal error
}

// Read implements [io.Reader]. It returns the last byte only if the digest is right: a reader that knows the length does not read on to
// the end.
func (b *watchedBody) Read(data []byte) (int, error) {
	n, err := b.ReadCloser.Read(data)
	_, _ = b.digest.Write(data[:n])
	over := errors.Is(err, io.EOF)
	if b.left > 0 {
		b.left -= int64(n)
		over = over || b.left <= 0
	}
	if over && !b.digest.Holds() {
		return 0, b.refusal
	}
	return n, err
}

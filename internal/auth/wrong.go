package auth

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// wrongEvery is the time between two lines of the log about tokens that are not valid.
const wrongEvery = time.Minute

// mostReason bounds the reason in these lines, in bytes: a client may have chosen a part of it.
const mostReason = 200

// A wrongTokens logs tokens that are not valid: the first at once, and those of the next minute with one line at its end.
// Expired tokens are among them: these are normal, and may be many.
type wrongTokens struct {
	mu      sync.Mutex
	running bool // a minute is under way
	tokens  int  // that came and are not in the log yet
	address string
	err     string
}

// An invalidToken is errInvalid with its cause, which the client does not get.
type invalidToken struct{ cause error }

// Error implements error.
func (e *invalidToken) Error() string { return errInvalid.Error() }

// Is is for [errors.Is].
func (e *invalidToken) Is(target error) bool { return target == errInvalid }

// note counts a refused request, if why is an invalidToken.
func (t *wrongTokens) note(log *slog.Logger, r *http.Request, why error) {
	var invalid *invalidToken
	if !errors.As(why, &invalid) {
		return
	}
	text := invalid.cause.Error()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.address, t.err = addressOf(r), strings.ToValidUTF8(text[:min(len(text), mostReason)], "")
	t.tokens++
	if !t.running {
		t.tell(log)
	}
}

// tell logs the tokens that came, and begins a minute. t.mu is held.
func (t *wrongTokens) tell(log *slog.Logger) {
	log.Info("clients sent tokens that are not valid here: each was refused (401)", "tokens", t.tokens, "last_address", t.address, "last_reason", t.err)
	t.tokens, t.running = 0, true
	time.AfterFunc(wrongEvery, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.tokens > 0 {
			t.tell(log)
			return
		}
		t.running = false
	})
}

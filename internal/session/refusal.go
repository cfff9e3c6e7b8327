package session

import (
	"errors"
	"net/http"
	"slices"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Refusal returns the [protocol.Unauthorized] with which the backend has refused the client's
// initialize, or nil.
func (s *Session) Refusal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backend.refused
}

// noteRefusal notes that the backend has refused the client's initialize, or a modern request: modern clients send no initialize.
func (c *Call) noteRefusal(m *jsonrpc.Message, err error) {
	var refused *protocol.Unauthorized
	if c.s.modern != "" {
		c.Refused(err)
	} else if m.Method == protocol.MethodInitialize && errors.As(err, &refused) {
		locked(c.s, func() { c.s.backend.refused = refused })
	}
}

// Refused notes that the backend's server has refused the client of the call, if err is a
// [protocol.Unauthorized]: nothing of the call has run. A backend calls it before it answers the request. The
// client may make the request again, under the same idempotency key, with another token.
func (c *Call) Refused(err error) {
	var refused *protocol.Unauthorized
	if !errors.As(err, &refused) {
		return
	}
	c.mu.Lock()
	if !c.IsOver() {
		c.refused = refused
	}
	c.mu.Unlock()
	c.NotTaken()
}

// NotTaken notes that no server has taken the request of the call, and none will: its client may make it
// again under the same idempotency key. A backend calls it before it answers the request.
func (c *Call) NotTaken() {
	if !c.IsOver() {
		c.disown()
	}
}

// MayRefuse reports whether the server may refuse one of the messages of r, because it gets the client's token.
func (m *Manager) MayRefuse(r *http.Request, msgs []jsonrpc.Message) bool {
	b, ok := m.backend.(authorizationTaker)
	if !ok {
		return false
	}
	if b, ok := m.backend.(refuser); ok {
		return slices.ContainsFunc(msgs, func(one jsonrpc.Message) bool { return b.MayRefuse(r, &one) })
	}
	takes, _ := b.TakesAuthorization(r)
	return takes
}

// Refusal returns the [protocol.Unauthorized] with which the backend has refused the call, or
// nil.
func (c *Call) Refusal() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

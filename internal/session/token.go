package session

import (
	"strconv"

	"holdfast/internal/caller"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// askedSeal is the purpose of tickets that are ids of requests to clients.
const askedSeal = "holdfast request id"

// FindSeal returns the session and the stream that a text of [ticket.Maker] names, if it is
// the principal's. The error is [ErrNotFound], whatever the reason, a [*Redirect] if the session is not on
// this node, or that of the store.
func (m *Manager) FindSeal(purpose, text string, bound []byte, principal caller.Principal) (*Session, uint64, error) {
	t, ok := ticket.Parse(text)
	if !ok {
		return nil, 0, ErrNotFound
	}
	s, err := m.findSealed(t, purpose, bound, principal)
	if err != nil {
		return nil, 0, err
	}
	s.Touch()
	return s, t.Number, nil
}

// askedID returns the id, as raw JSON, under which the client gets a request of the backend that belongs to a call, or to none. A client that can
// resume requests, or has a deferred call, may answer from another session: the id names the one that asks.
func (s *Session) askedID(c *Call, number int64) []byte {
	if s.Resumes() == nil && (c == nil || c.deferred() == nil) {
		return strconv.AppendInt(nil, number, 10)
	}
	return append(s.Tickets().Append([]byte{'"'}, askedSeal, uint64(number), nil), '"')
}

// parseAskedID returns the number in an id of askedID.
func (s *Session) parseAskedID(id []byte) (number int64, ok bool) {
	text := string(jsonrpc.Key(id))
	if id[0] == '"' {
		text = jsonrpc.String(id) // some clients answer with the id as a string
	}
	t, ok := ticket.Parse(text)
	if s.Resumes() == nil && (!ok || s.offers.Load() == 0) {
		number, err := strconv.ParseInt(text, 10, 64)
		return number, err == nil
	}
	return int64(t.Number), ok && s.Tickets().Made(t, askedSeal)
}

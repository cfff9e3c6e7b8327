package session

import (
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// StreamName returns a stream's name as clients see it in event ids and URLs, and the tail of its event ids, which has the JSON-RPC id of the
// stream's call. The tail is "" for calls of several requests, and calls that ended without a response.
func (s *Session) StreamName(number uint64) (name, tail string) {
	if number != standalone && !s.single {
		tail = ticket.Tail(s.id, number, []byte(requestOf(s, number)))
	}
	return ticket.StreamName(s.id, number), tail
}

// requestOf returns the JSON-RPC id of the request of a stream's call; "": the call has several requests, or the id is not known.
func requestOf(s *Session, number uint64) string {
	if c := s.CallAt(number); c != nil {
		c.mu.Lock()
		n := len(c.pending)
		var id string
		if n > 0 {
			id = c.pending[0].id
		}
		c.mu.Unlock()
		switch n {
		case 0:
		case 1:
			return id
		default:
			return ""
		}
	}
	end, err := s.streams.End(s.m.work.Context(), number)
	if err != nil || end == nil || jsonrpc.Field(end.Data, "method") != nil {
		return ""
	}
	return string(jsonrpc.Field(end.Data, "id"))
}

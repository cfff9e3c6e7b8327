package session

import (
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// StreamName returns a stream's name as clients see it in event ids and URLs, and what the ids of its events end with: the JSON-RPC id of the
// stream's call. That is "" for calls of several requests, and those that have no response.
func (s *Session) StreamName(number uint64) (name, tail string) {
	if number != standalone && !s.single {
		tail = ticket.Tail(s.id, number, []byte(requestOf(s, number)))
	}
	return ticket.StreamName(s.id, number), tail
}

// requestOf returns the JSON-RPC id of the request of a stream's call; "": there are several, or it is not known.
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
	at := stream.Cursor{Stream: stream.ID{Session: s.key, Number: number}}
	_, next, err := s.m.store.Bounds(s.m.work.Context(), at.Stream)
	if err != nil || next < 2 {
		return ""
	}
	var end [1]stream.Entry
	at.Seq = next - 2
	got, err := s.m.store.Read(s.m.work.Context(), at, end[:0])
	if err != nil || len(got) == 0 || !got[0].Last || jsonrpc.Field(got[0].Data, "method") != nil {
		return ""
	}
	return string(jsonrpc.Field(got[0].Data, "id"))
}

package session

import (
	"context"
	"strconv"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows is for modern clients that come back with what a call has asked for, when it has ended.

// mostAnswered bounds how many calls a session remembers whose questions were answered.
const mostAnswered = 1 << 10

// Answered notes that the client has answered what a call had asked by seq: it may not do so twice.
func (s *Session) Answered(number, seq uint64) {
	all := s.watchedTable()
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.answered == nil {
		all.answered = make(map[uint64]uint64)
	}
	if _, known := all.answered[number]; !known && len(all.answered) >= mostAnswered {
		oldest := number
		for n := range all.answered {
			oldest = min(oldest, n)
		}
		delete(all.answered, oldest)
	}
	all.answered[number] = max(all.answered[number], seq)
}

// EndOf returns the response of a call that has ended without the answers to what it had asked by seq:
// its backend has not waited for them, or nobody knows its outcome. It is nil where the client has
// answered, where the call has no response, and where none is kept.
func (s *Session) EndOf(ctx context.Context, number, seq uint64) []byte {
	st, err := s.endedStanding(ctx, number)
	switch {
	case err != nil:
		return nil
	case string(jsonrpc.Field(st.Response, "error", "code")) == strconv.Itoa(protocol.CodeOutcomeUnknown):
		return st.Response
	case s.taken: // the client may have answered at another node
		return nil
	}
	all := s.watchedTable()
	all.mu.Lock()
	defer all.mu.Unlock()
	if through, answered := all.answered[number]; answered && through >= seq {
		return nil
	}
	return st.Response
}

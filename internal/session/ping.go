package session

import (
	"strconv"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows is for clients of revisions before 2025-11-25, some of which fail on an
// event without data: what gives them an event id of a call that says nothing is a
// ping. docs/decisions/0021-ids-by-ping.md.

// pingID begins the ids of our own pings. The number of the stream follows.
const pingID = "holdfast-ping-"

// Ping has the call ping its client, as the first that it says. It does nothing for a
// call that has said anything, or is over. It does not wait.
func (r *Reader) Ping() {
	c := r.call
	if c == nil || r.cursor.Stream.Number == standalone {
		return
	}
	c.mu.Lock()
	if c.isOver() || c.said > 0 {
		c.mu.Unlock()
		return
	}
	id := append([]byte{'"'}, pingID...)
	id = append(strconv.AppendUint(id, c.number, 36), '"')
	c.push(jsonrpc.AppendRequest(nil, id, protocol.MethodPing, nil), false)
	c.mu.Unlock()
	c.s.flushInBackground() // who reads does not wait for the store
}

// ponged takes the client's answer to a ping of ours. One to anything else, or to the
// ping of a call that is over, says nothing.
func (s *Session) ponged(id []byte) {
	if len(id) == 0 || id[0] != '"' {
		return
	}
	text, ours := strings.CutPrefix(jsonrpc.String(id), pingID)
	if number, err := strconv.ParseUint(text, 36, 64); ours && err == nil {
		s.acknowledge(number, 1)
	}
}

// acknowledge notes that the client has for certain what a stream says through seq,
// which is more than that it was written.
func (s *Session) acknowledge(number, seq uint64) {
	t := &s.streams
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.streams[number].reader; r != nil {
		r.acked = max(r.acked, seq)
	}
	t.gaps.acknowledge(number, seq)
}

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

// Ping implements [reading.Call].
func (w writer) Ping() {
	c := w.Call
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
		s.streams.Has(number, 1)
	}
}

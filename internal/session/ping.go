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
	if c.IsOver() || c.said > 0 {
		c.mu.Unlock()
		return
	}
	id := append([]byte{'"'}, pingID...)
	id = append(strconv.AppendUint(id, c.number, 36), '"')
	c.push(jsonrpc.AppendRequest(nil, id, protocol.MethodPing, nil), false)
	c.mu.Unlock()
	c.s.flushInBackground() // who reads does not wait for the store
}

// pinged returns the number of the stream of the call whose ping a client answers, by the id of the answer.
func pinged(id []byte) (number uint64, ok bool) {
	if len(id) == 0 || id[0] != '"' {
		return 0, false
	}
	text, ours := strings.CutPrefix(jsonrpc.String(id), pingID)
	number, err := strconv.ParseUint(text, 36, 64)
	return number, ours && err == nil
}

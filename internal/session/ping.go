package session

import (
	"strconv"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file is for clients of revisions before 2025-11-25. Some of these fail on an
// event without data, so a ping gives them an event id of a call that has said
// nothing. docs/decisions/0021-ids-by-ping.md.

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
	c.s.flushInBackground() // the reader does not wait for the store
}

// pinged returns the number of the stream with the ping that an answer of this id is to. ok is false if it is to none of ours.
func pinged(id []byte) (number uint64, ok bool) {
	if len(id) == 0 || id[0] != '"' {
		return 0, false
	}
	text, ours := strings.CutPrefix(jsonrpc.String(id), pingID)
	number, err := strconv.ParseUint(text, 36, 64)
	return number, ours && err == nil
}

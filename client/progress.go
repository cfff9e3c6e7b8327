package client

import (
	"bytes"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// progress is the progress of a request as far as the host has received it. A request that
// is sent again may run again, and count from the beginning under the same token; but "the
// progress value MUST increase with each notification" (2025-11-25, Progress).
type progress struct {
	token string  // the key of the progress token; "": the request has none. It does not change
	last  float64 // the greatest value that the host has received
	any   bool    // the host has received a value
}

// tokenOf returns the key of the progress token of a request, or "".
func tokenOf(body []byte) string {
	if !bytes.Contains(body, []byte("progressToken")) {
		return "" // searching a long body is cheaper than parsing it
	}
	token := jsonrpc.Field(body, "params", "_meta", "progressToken")
	if token == nil {
		return ""
	}
	return string(jsonrpc.Key(token))
}

// goesBack reports whether a notification is progress that the host must not receive,
// because an earlier run of the request has brought it as much. k is the call that the
// notification belongs to, if that is known.
func (c *Conn) goesBack(k *call, m jsonrpc.Message) bool {
	if m.Method != protocol.MethodProgress {
		return false
	}
	token, value, ok := protocol.Progress(m.Params)
	if !ok {
		return false
	}
	if k == nil || k.progress.token != token {
		if k = c.calls.withProgress(token); k == nil {
			return false
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &k.progress
	if p.any && value <= p.last {
		return k.sends > 1 // in one run it is the server's mistake, and the host's to see
	}
	p.last, p.any = value, true
	return false
}

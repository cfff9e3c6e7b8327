package client

import (
	"bytes"
	"strconv"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// progress is what the host was told of a request's progress. A request that is sent
// again may run again, and begin to count anew under the token that it had; but "the
// progress value MUST increase with each notification" (2025-11-25, Progress).
type progress struct {
	token string  // the key of the token; "": the host wants to hear none
	last  float64 // the greatest value that the host was told, if any was
	told  bool
}

// tokenOf returns the key of the progress token of a request, or "".
func tokenOf(body []byte) string {
	if !bytes.Contains(body, []byte("progressToken")) {
		return "" // a long body is sooner looked through than taken apart
	}
	token := jsonrpc.Field(body, "params", "_meta", "progressToken")
	if token == nil {
		return ""
	}
	return string(jsonrpc.Key(token))
}

// goesBack reports whether a notification is progress that the host must not be told,
// as it was told as much of an earlier run of the request. k is the call that it
// belongs to, if that is known.
func (c *Conn) goesBack(k *call, m jsonrpc.Message) bool {
	if m.Method != protocol.MethodProgress {
		return false
	}
	raw := jsonrpc.Field(m.Params, "progressToken")
	value, err := strconv.ParseFloat(string(jsonrpc.Field(m.Params, "progress")), 64)
	if raw == nil || err != nil {
		return false
	}
	token := string(jsonrpc.Key(raw))
	if k == nil || k.progress.token != token {
		if k = c.callWith(token); k == nil {
			return false
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &k.progress
	if p.told && value <= p.last {
		return k.sends > 1 // else the server repeats itself, and that is between it and the host
	}
	p.last, p.told = value, true
	return false
}

// callWith returns the call in flight with a progress token, or nil.
func (c *Conn) callWith(token string) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		if k.progress.token == token {
			return k
		}
	}
	return nil
}

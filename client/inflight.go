package client

import (
	"holdfast/internal/rpc"
	"holdfast/jsonrpc"
)

// response delivers a response to the call that it belongs to: k, or another call whose
// response comes on k's stream, or, with a nil k, on the standalone one.
func (c *Conn) response(k *call, m jsonrpc.Message) {
	if k != nil && k.named(m.ID) {
		k.deliver(m)
		return
	}
	other := c.callNamed(m.ID)
	if other == nil {
		c.logger.Debug("response to no request in flight", "id", string(m.ID))
		return
	}
	other.deliver(m)
	other.cancel(nil)
}

// named reports whether the request has an id, or was last sent under it.
func (k *call) named(id []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return sameID(id, k.wire) || sameID(id, k.id)
}

// answeredUnder reports whether a response with an id is the request's: some servers write an integer as a string, or a
// string as an integer.
func (k *call) answeredUnder(id []byte) bool {
	return k.named(id) || k.named(rpc.Respelled(jsonrpc.Key(id)))
}

// sameID reports whether two ids, as raw JSON, are the same.
func sameID(a, b []byte) bool {
	return len(a) > 0 && string(jsonrpc.Key(a)) == string(jsonrpc.Key(b))
}

package server

import (
	"bytes"
	"fmt"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// keyOf returns the idempotency key of a POST, "" if it has none: the header's,
// else that of its one message.
func keyOf(r *http.Request, msgs []jsonrpc.Message) (string, error) {
	switch header := r.Header[protocol.HeaderIdempotencyKey]; {
	case len(header) > 1:
		return "", fmt.Errorf("%s stands there twice", protocol.HeaderIdempotencyKey)
	case len(header) == 1:
		return protocol.IdempotencyKey(header[0])
	case len(msgs) > 1:
		return "", nil
	}
	return messageKey(&msgs[0])
}

// messageKey returns the idempotency key that a message itself carries, or "".
func messageKey(m *jsonrpc.Message) (string, error) {
	if !bytes.Contains(m.Params, []byte("idempotencyKey")) { // as nearly always
		return "", nil
	}
	raw := jsonrpc.Field(m.Params, "_meta", protocol.MetaIdempotencyKey)
	if raw == nil {
		return "", nil
	}
	key := jsonrpc.String(raw)
	return key, protocol.CheckKey(key)
}

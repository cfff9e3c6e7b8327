package exchange

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"holdfast/internal/feature/handoff"
	"holdfast/internal/protocol"
	"holdfast/internal/server/answering"
	"holdfast/jsonrpc"
)

// KeyOf returns the idempotency key of a POST, "" if it has none: the header's,
// else that of its one message.
func KeyOf(r *http.Request, msgs []jsonrpc.Message) (string, error) {
	switch header := r.Header[protocol.HeaderIdempotencyKey]; {
	case len(header) > 1:
		return "", fmt.Errorf("%s stands there twice", protocol.HeaderIdempotencyKey)
	case len(header) == 1:
		return protocol.IdempotencyKey(header[0])
	case len(msgs) > 1:
		return "", nil
	}
	return MessageKey(&msgs[0])
}

// MessageKey returns the idempotency key that a message itself carries, or "".
func MessageKey(m *jsonrpc.Message) (string, error) {
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

// LastEventID returns the id of the event that the client has last seen, or "".
func LastEventID(r *http.Request) string {
	if v := r.Header[protocol.HeaderLastEventID]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// IsBetweenNodes reports whether only nodes make requests of a method, and of each other.
func IsBetweenNodes(method string) bool {
	return method == handoff.MethodAsk || method == MethodList
}

// MethodList is the method by which a node asks others what their sessions know of all that a principal has begun.
const MethodList = "holdfast/tasks"

type movedKey struct{}

// WithMoved returns a context for a request that came at a path where its server is no more: it is at another.
func WithMoved(ctx context.Context, to string) context.Context {
	return context.WithValue(ctx, movedKey{}, to)
}

// Moved returns an error if a request came at a path where its server is no more.
func Moved(ctx context.Context) error {
	if to, ok := ctx.Value(movedKey{}).(string); ok {
		return &answering.Moved{To: to}
	}
	return nil
}

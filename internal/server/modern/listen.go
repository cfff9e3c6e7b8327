package modern

import (
	"context"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A Listen is what a feature tells on a subscriptions/listen, beside the backend. It is used by one goroutine at a time.
type Listen interface {
	// Alone reports whether the backend has nothing to tell on it: then it is not asked.
	Alone() bool
	// Filter adds what the client is told of to the filter of an acknowledgement, and returns that.
	Filter(ack []byte) []byte
	// Watch has ready be told when there may be news, until ctx ends or Close is called.
	Watch(ctx context.Context, ready chan<- struct{})
	// News returns the notifications that have come up since the last call. ended says why the listen ends; "": there may be
	// more.
	News() (news [][]byte, ended string)
	// Close ends the watching, and waits for what was begun for it.
	Close()
}

// Again serves a subscriptions/listen of ours in the place of a client's: where the session is that m is about. What it is
// answered with is written to w.
type Again func(ctx context.Context, w http.ResponseWriter, m jsonrpc.Message)

// ListenEnded returns the response that ends the subscriptions/listen with an id.
func ListenEnded(id []byte) []byte {
	result := []byte(`{"resultType":"` + protocol.ResultComplete + `"}`)
	result, _ = jsonrpc.Set(result, id, "_meta", protocol.MetaSubscriptionID)
	return jsonrpc.AppendResult(nil, id, result)
}

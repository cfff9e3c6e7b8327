package modern

import (
	"context"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// A Feature extends revision 2026-07-28: with methods of its own, answers before the end of a call, or notifications for
// listens. The root package lists the features; no front knows one. The methods may be called concurrently.
type Feature interface {
	methods
	calls
	// Listen removes the feature's part from the filter of a subscriptions/listen, in m, and returns its source of
	// notifications; nil: the filter has no such part. After an error the request is not served here. again serves such a
	// request on other nodes; nil: their notifications are left out.
	Listen(q *Request, m *jsonrpc.Message, again Again) (Listen, error)
}

// The methods are requests that a feature serves.
type methods interface {
	// Ref names the session that a request is for, as a stream URL does; "": the feature knows none.
	Ref(q *Request) string
	// Serve serves a request on the node of its session, and returns the result. ours is false if the request is not the
	// feature's. The error is session.ErrNotFound, one that names another node, or a *jsonrpc.Error.
	Serve(q *Request, m *jsonrpc.Message) (result []byte, ours bool, err error)
	// NotFound returns the error for a request with a method of the feature's when its session is not found; nil: the
	// method is not the feature's.
	NotFound(method string) *jsonrpc.Error
	// Continues reports whether a request is about a call that has begun before.
	Continues(m *jsonrpc.Message) bool
}

// The calls are calls that go on after their requests were answered.
type calls interface {
	// Patience returns the age of a call at which the feature may answer its request; 0: it does not.
	Patience(q *Request) time.Duration
	// Answer returns the result for the request of a call that then goes on; nil: the request waits for the end of the call.
	Answer(q *Request, m *jsonrpc.Message, s *session.Session, number uint64) []byte
	// Own returns the response of a backend with the feature's changes.
	Own(q *Request, response []byte) []byte
}

// Features are the features of a handler.
type Features []Feature

// First returns the feature that may answer a request before its call has ended, and the call's age then; nil: none does.
func (all Features) First(q *Request) (f Feature, after time.Duration) {
	for _, f := range all {
		if after := f.Patience(q); after > 0 {
			return f, after
		}
	}
	return nil, 0
}

// Own returns a response with the changes of all features.
func (all Features) Own(q *Request, response []byte) []byte {
	for _, f := range all {
		response = f.Own(q, response)
	}
	return response
}

// A Listen is a feature's source of notifications for a subscriptions/listen, beside the backend. It is used by one goroutine at a time.
type Listen interface {
	// Alone reports whether the backend has no notifications for the listen: then it does not get the request.
	Alone() bool
	// Filter returns an acknowledgement with the feature's part added to its filter.
	Filter(ack []byte) []byte
	// Watch signals ready when there may be news, until ctx ends or Close is called.
	Watch(ctx context.Context, ready chan<- struct{})
	// News returns the notifications since the last call. ended says why the listen ends; "": more may come.
	News() (news [][]byte, ended string)
	// Close ends the watching, and waits for its goroutines.
	Close()
}

// Again serves a subscriptions/listen of this node's own in the place of a client's, on the node of m's session. It calls hear with
// each message of the answer's stream.
type Again func(ctx context.Context, m jsonrpc.Message, hear func(message []byte))

// ListenEnded returns the response that ends the subscriptions/listen with the id.
func ListenEnded(id []byte) []byte {
	result := []byte(`{"resultType":"` + protocol.ResultComplete + `"}`)
	result, _ = jsonrpc.Set(result, id, "_meta", protocol.MetaSubscriptionID)
	return jsonrpc.AppendResult(nil, id, result)
}

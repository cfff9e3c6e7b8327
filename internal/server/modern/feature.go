package modern

import (
	"context"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// A Feature adds something to revision 2026-07-28: methods of its own, answers that come before their calls have ended, or news.
// No front knows a feature: the root names them. Its methods may be called concurrently.
type Feature interface {
	methods
	calls
	// Listen takes out of the filter of a subscriptions/listen what the feature tells of, by changing m; nil: nothing. An error
	// says that the request is not served here. again serves such a request on other nodes; nil: what is there is left out.
	Listen(q *Request, m *jsonrpc.Message, again Again) (Listen, error)
}

// The methods are requests that a feature serves.
type methods interface {
	// Ref names the session that a request is for, as a stream URL does; "": the request is for none that the feature knows.
	Ref(q *Request) string
	// Serve serves a request where its session is, and returns the result. ours is false if it is not the feature's. The error is
	// session.ErrNotFound, one of another node, or a *jsonrpc.Error.
	Serve(q *Request, m *jsonrpc.Message) (result []byte, ours bool, err error)
	// NotFound is what a request of a method is answered with that is for nothing which is kept; nil: the method is not the
	// feature's.
	NotFound(method string) *jsonrpc.Error
	// Continues reports whether a request is about something that has begun before.
	Continues(m *jsonrpc.Message) bool
}

// The calls are those that go on when their requests were answered.
type calls interface {
	// Patience is how old the call of a request is when the feature may answer that; 0: it does not.
	Patience(q *Request) time.Duration
	// Answer returns the result for the request of a call that goes on; nil: the request waits for the end of the call.
	Answer(q *Request, m *jsonrpc.Message, s *session.Session, number uint64) []byte
	// Own returns the response of a backend as the client gets it.
	Own(q *Request, response []byte) []byte
}

// Features are those of a handler.
type Features []Feature

// First returns the feature that may answer a request before its call has ended, and how old the call is then; nil: none does.
func (all Features) First(q *Request) (f Feature, after time.Duration) {
	for _, f := range all {
		if after := f.Patience(q); after > 0 {
			return f, after
		}
	}
	return nil, 0
}

// Own returns a response as the client gets it.
func (all Features) Own(q *Request, response []byte) []byte {
	for _, f := range all {
		response = f.Own(q, response)
	}
	return response
}

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

// Again serves a subscriptions/listen of ours in the place of a client's: where the session is that m is about. hear is called with
// each message of the stream that answers.
type Again func(ctx context.Context, m jsonrpc.Message, hear func(message []byte))

// ListenEnded returns the response that ends the subscriptions/listen with an id.
func ListenEnded(id []byte) []byte {
	result := []byte(`{"resultType":"` + protocol.ResultComplete + `"}`)
	result, _ = jsonrpc.Set(result, id, "_meta", protocol.MetaSubscriptionID)
	return jsonrpc.AppendResult(nil, id, result)
}

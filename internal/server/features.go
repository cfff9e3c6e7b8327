package server

import (
	"context"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/feature/handoff"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// A Feature adds something to revision 2026-07-28: methods of its own, answers that come before their calls have ended, or news.
// This package knows no feature: see [Options.Features]. Its methods may be called concurrently.
type Feature interface {
	methods
	calls
	// Listen takes out of the filter of a subscriptions/listen what the feature tells of, by changing m; nil: nothing. An error
	// says that the request is not served here. again serves such a request on other nodes; nil: what is there is left out.
	Listen(q *modern.Request, m *jsonrpc.Message, again modern.Again) (modern.Listen, error)
}

// The methods are requests that a feature serves.
type methods interface {
	// Ref names the session that a request is for, as a stream URL does; "": the request is for none that the feature knows.
	Ref(q *modern.Request) string
	// Serve serves a request where its session is, and returns the result. ours is false if it is not the feature's. The error is
	// session.ErrNotFound, one of another node, or a *jsonrpc.Error.
	Serve(q *modern.Request, m *jsonrpc.Message) (result []byte, ours bool, err error)
	// NotFound is what a request of a method is answered with that is for nothing which is kept; nil: the method is not the
	// feature's.
	NotFound(method string) *jsonrpc.Error
	// Continues reports whether a request is about something that has begun before.
	Continues(m *jsonrpc.Message) bool
}

// The calls are those that go on when their requests were answered.
type calls interface {
	// Patience is how old the call of a request is when the feature may answer that; 0: it does not.
	Patience(q *modern.Request) time.Duration
	// Answer returns the result for the request of a call that goes on; nil: the request waits for the end of the call.
	Answer(q *modern.Request, m *jsonrpc.Message, s *session.Session, number uint64) []byte
	// Own returns the response of a backend as the client gets it.
	Own(q *modern.Request, response []byte) []byte
}

// features are those of a handler.
type features []Feature

// betweenNodes are the methods by which nodes ask each other what their sessions know, with what answers them: the result for a
// principal, of sessions in a range. No client can make such a request. The functions do not get the exchange, which would be on the
// heap for that.
var betweenNodes = map[string]func(context.Context, *session.Manager, caller.Principal, session.Range, []byte) ([]byte, error){
	handoff.MethodAsk: func(ctx context.Context, sessions *session.Manager, of caller.Principal, _ session.Range, query []byte) ([]byte, error) {
		return sessions.Answered(ctx, of, query)
	},
	exchange.MethodList: func(ctx context.Context, sessions *session.Manager, of caller.Principal, in session.Range, query []byte) ([]byte, error) {
		return sessions.ListHere(ctx, of, in, query), nil
	},
}

// First returns the feature that may answer a request before its call has ended, and how old the call is then; nil: none does.
func (all features) First(q *modern.Request) (f Feature, after time.Duration) {
	for _, f := range all {
		if after := f.Patience(q); after > 0 {
			return f, after
		}
	}
	return nil, 0
}

// Own returns a response as the client gets it.
func (all features) Own(q *modern.Request, response []byte) []byte {
	for _, f := range all {
		response = f.Own(q, response)
	}
	return response
}

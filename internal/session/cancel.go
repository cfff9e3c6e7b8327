package session

import (
	"context"
	"net/http"

	"holdfast/backend"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file cancels calls in flight, and tells their backends.

// withdraw ends a request of the call with end, if the request is in flight, and then tells the backend, if that has the
// request. header is that of the HTTP request which is the cause, or nil. withdraw reports whether the request was in flight.
func (s *Session) withdraw(c *Call, id []byte, header http.Header, reason string, end func(*inflight)) (done bool) {
	s.mu.Lock()
	rq, l := s.requests.take(id, c), s.backend.link
	s.mu.Unlock()
	if rq == nil {
		return false
	}
	end(rq)
	if rq.sent && !rq.ours {
		l.tellCancelled(rq, header, reason)
	}
	return true
}

// tellCancelled tells a backend, unless l is nil, that the client no longer wants a request which the backend has.
func (l *link) tellCancelled(rq *inflight, header http.Header, reason string) {
	if l == nil {
		return
	}
	params, _ := jsonrpc.Set([]byte(`{}`), []byte(rq.id), "requestId")
	if reason != "" {
		params, _ = jsonrpc.Set(params, jsonrpc.Quote(reason), "reason")
	}
	m := jsonrpc.Message{Kind: jsonrpc.Notification, Method: protocol.MethodCancelled, Params: params}
	m.Raw = jsonrpc.AppendRequest(nil, nil, m.Method, params)
	if err := l.deliver(backend.Inbound{Message: m, Context: context.Background(), Header: header}); err != nil {
		l.s.m.logger.Debug("cancellation not delivered", "session", l.s.Name(), "error", err)
	}
}

// errOperator is the response to a request that an operator has cancelled.
var errOperator = jsonrpc.Errorf(jsonrpc.CodeServer, "cancelled by an operator")

// CancelByOperator ends a request in flight with an error that says so, and tells the backend. done: the request was in flight.
func (s *Session) CancelByOperator(id string) (done bool) {
	rq := s.requests.at("", []byte(id))
	if rq == nil { // the request may have come from another session
		for other := range s.requests.each {
			if other.id == id && other.call.guestOf() != "" {
				rq = other
			}
		}
	}
	if rq == nil || rq.call.method == protocol.MethodInitialize {
		return false
	}
	return s.withdraw(rq.call, []byte(id), nil, errOperator.Message, func(rq *inflight) {
		c := rq.call
		c.mu.Lock()
		c.watch.Settle(c.number, rq.id, observe.CancelledByOperator, errOperator.Code)
		c.mu.Unlock()
		rq.fail(errOperator)
	})
}

package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"holdfast/internal/caller"
	"holdfast/internal/feature/handofftext"
	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// elsewhere makes the requests of package session to other nodes: a [session.Elsewhere].
type elsewhere struct{ h *Handler }

// request returns the exchange of a request to other nodes, for a principal.
func (e elsewhere) request(ctx context.Context, principal caller.Principal, method string, params []byte) (*exchange.Exchange, error) {
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, []byte("0"), method, params))
	if err != nil {
		return nil, err
	}
	r := (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: http.Header{}, Host: "localhost"}).WithContext(ctx)
	return &exchange.Exchange{Purpose: exchange.ForRequest, HTTP: exchange.OwnPost(r), Principal: principal, Msgs: []jsonrpc.Message{m}}, nil
}

// betweenNodes are the methods by which nodes ask each other about their sessions. Each function returns the result for a principal,
// from sessions in a range. No client can make such a request. The functions do not get the exchange, as that would put it on the heap.
var betweenNodes = map[string]func(context.Context, *session.Manager, caller.Principal, session.Range, []byte) ([]byte, error){
	handofftext.MethodAsk: func(ctx context.Context, sessions *session.Manager, of caller.Principal, _ session.Range, query []byte) ([]byte, error) {
		return sessions.Answered(ctx, of, query)
	},
	exchange.MethodList: func(ctx context.Context, sessions *session.Manager, of caller.Principal, in session.Range, query []byte) ([]byte, error) {
		return sessions.ListHere(ctx, of, in, query), nil
	},
}

// Ask implements [session.Elsewhere].
func (e elsewhere) Ask(ctx context.Context, method string, principal caller.Principal, query []byte) ([]byte, error) {
	x, err := e.request(ctx, principal, method, query)
	if err != nil {
		return nil, err
	}
	answer, err := e.h.ask(x)
	if err != nil {
		return nil, err
	}
	return jsonrpc.Field(answer, "result"), nil
}

// List implements [session.Elsewhere].
func (e elsewhere) List(ctx context.Context, principal caller.Principal, after stream.SessionKey, query []byte) ([]json.RawMessage, session.Range, error) {
	x, err := e.request(ctx, principal, exchange.MethodList, query)
	if err != nil {
		return nil, session.Range{}, err
	}
	return e.h.everywhere(x, after)
}

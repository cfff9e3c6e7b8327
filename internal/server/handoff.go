package server

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"

	"holdfast/internal/caller"
	"holdfast/internal/feature/handoff"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// What follows is for calls that were handed off: the session has them, and here they are asked
// for on other nodes. See docs/decisions/0027-hand-off.md.

// methodHandedOff is the method by which one node asks another for a call. No client can.
const methodHandedOff = "holdfast/handedOff"

// isBetweenNodes reports whether only nodes make requests of a method, and of each other.
func isBetweenNodes(method string) bool { return method == methodHandedOff || method == methodList }

// elsewhere asks other nodes for what sessions want to know: a [session.Elsewhere].
type elsewhere struct{ h *Handler }

// handleOf returns the handle that a request has as the argument of one of our tools, or "".
func handleOf(m *jsonrpc.Message) string {
	if m.Method != protocol.MethodCallTool || !bytes.Contains(m.Params, []byte(handoff.Prefix)) || !handoff.IsTool(jsonrpc.String(jsonrpc.Field(m.Params, "name"))) {
		return ""
	}
	handle := jsonrpc.String(jsonrpc.Field(m.Params, "arguments", "handle"))
	if !ticket.Is(handle) {
		return ""
	}
	return handle
}

// findCarrier finds the carrier of a modern request, which is not to end before
// [session.Session.Release]. One that asks for a call that was handed off is a call of that one's
// carrier, so that its client can be asked what the backend asks. The error is that of
// [session.Manager.Carrier], or a [*session.Redirect].
func (h *Handler) findCarrier(x *exchange) (err error) {
	if handle := handleOf(&x.msgs[0]); handle != "" {
		s, _, err := h.sessions.HandOffSession(handle, x.principal)
		var away *session.Redirect
		switch {
		case errors.As(err, &away) && h.nodes != nil:
			return err
		case err == nil && s.Modern() == x.modern.version && s.Reserve():
			x.session = s
			return nil
		}
	}
	client := h.sessions.ClientOf(x.r, x.principal, x.credential())
	var admit func() error
	if h.sessions.Limited() && (x.once.key == "" || !h.sessions.BegunHere(&client, x.once.key)) {
		admit = func() error { return h.admitAlone(x) } // what is refused starts no server
	}
	x.session, err = h.sessions.Carrier(x.r, &client, x.modern.version, x.modern.client, admit)
	return err
}

// request returns a request to another node for what concerns a principal.
func (e elsewhere) request(ctx context.Context, principal caller.Principal, method string, params []byte) (*exchange, error) {
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, []byte("0"), method, params))
	if err != nil {
		return nil, err
	}
	r := (&http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/"}, Header: http.Header{}, Host: "localhost"}).WithContext(ctx)
	return &exchange{purpose: forRequest, r: askFor(r), principal: principal, msgs: []jsonrpc.Message{m}}, nil
}

// HandedOff implements [session.Elsewhere].
func (e elsewhere) HandedOff(ctx context.Context, principal caller.Principal, query []byte) ([]byte, error) {
	x, err := e.request(ctx, principal, methodHandedOff, query)
	if err != nil {
		return nil, err
	}
	answer, err := e.h.ask(x)
	if err != nil {
		return nil, err
	}
	return jsonrpc.Field(answer, "result"), nil
}

// startHandedOff answers such a request.
func (h *Handler) startHandedOff(x *exchange, o *outcome) error {
	m := &x.msgs[0]
	result, err := h.sessions.HandedOff(x.r.Context(), x.principal, m.Params)
	if err != nil {
		return err
	}
	o.kind, o.body = outcomeAnswer, jsonrpc.AppendResult(nil, m.ID, result)
	return nil
}

package server

import (
	"bytes"
	"errors"

	"holdfast/internal/feature/handoff"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/jsonrpc"
)

// What follows is for calls that were handed off: the session has them, and here they are asked
// for on other nodes. See docs/decisions/0027-hand-off.md.

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
		case err == nil && s.Modern() == x.modern.Version && s.Reserve():
			x.session = s
			return nil
		}
	}
	client := h.sessions.ClientOf(x.r, x.principal, x.credential())
	var admit func() error
	if h.sessions.Limited() && (x.once.key == "" || !h.sessions.BegunOnce(&client, x.once.key)) {
		admit = func() error { return h.starter.admitAlone(x) } // what is refused starts no server
	}
	x.session, err = h.sessions.Carrier(x.r, &client, x.modern.Version, x.modern.Client, admit)
	return err
}

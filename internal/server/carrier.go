package server

import (
	"errors"

	"holdfast/internal/session"
)

// findCarrier finds the carrier of a modern request, which is not to end before
// [session.Session.Release]. One of a tool of ours that is about another call is a call of that one's
// carrier, so that its client can be asked what the backend asks. The error is that of
// [session.Manager.Carrier], or a [*session.Redirect].
func (h *Handler) findCarrier(x *exchange) (err error) {
	if ref := h.sessions.Ref(x.msgs[0].Method, x.msgs[0].Params); ref != "" {
		s, err := h.sessions.FindCarrier(ref, x.modern.Version, x.principal)
		var away *session.Redirect
		switch {
		case errors.As(err, &away) && h.nodes != nil:
			return err
		case s != nil:
			x.session = s
			return nil
		}
	}
	client := h.sessions.ClientOf(x.r, x.principal, x.credential())
	var admit func() error
	if h.sessions.Gate.Bounds() && (x.once.key == "" || !h.sessions.BegunOnce(&client, x.once.key)) {
		admit = func() error { return h.starter.admitAlone(x) } // what is refused starts no server
	}
	x.session, err = h.sessions.Carrier(x.r, &client, x.modern.Version, x.modern.Client, admit)
	return err
}

package server

import (
	"errors"

	"holdfast/internal/server/exchange"
	"holdfast/internal/session"
)

// findCarrier finds the carrier of a modern request, which is not to end before
// [session.Session.Release]. One of a tool of ours that is about another call is a call of that one's
// carrier, so that its client can be asked what the backend asks. The error is that of
// [session.Manager.Carrier], or a [*session.Redirect].
func (h *Handler) findCarrier(x *exchange.Exchange) (err error) {
	if ref := h.sessions.Ref(x.Msgs[0].Method, x.Msgs[0].Params); ref != "" {
		s, err := h.sessions.FindCarrier(ref, x.Modern.Version, x.Principal)
		var away *session.Redirect
		switch {
		case errors.As(err, &away) && h.nodes != nil:
			return err
		case s != nil:
			x.Session = s
			return nil
		}
	}
	client := h.sessions.ClientOf(x.HTTP, x.Principal, x.Credential())
	var admit func() error
	if h.sessions.Gate.Bounds() && (x.Once.Key == "" || !h.sessions.BegunOnce(&client, x.Once.Key)) {
		admit = func() error { return h.starter.AdmitAlone(x) } // what is refused starts no server
	}
	x.Session, err = h.sessions.Carrier(x.HTTP, &client, x.Modern.Version, x.Modern.Client, admit)
	return err
}

package server

import (
	"holdfast/internal/server/exchange"
)

// What follows is for calls that go on when their requests were answered, and for requests about them, which may be served in
// another session than their client's. They are the experimental tasks of revision 2025-11-25 (package legacytask), which package
// session knows as a service.

// startAnswered begins a call whose request is answered at once, or finds the one that the same request has begun
// before.
func (h *Handler) startAnswered(x *exchange.Exchange, o *outcome) (err error) {
	if o.Begun, err = h.starter.Start(x, x.Msgs, false); err != nil {
		return err
	}
	o.kind = outcomeBegun
	o.body = o.Session.Deferral(x.HTTP.Context(), o.Number, &x.Msgs[0])
	return nil
}

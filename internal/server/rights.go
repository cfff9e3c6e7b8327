package server

import (
	"net/http"

	"holdfast/internal/placement"
	"holdfast/internal/server/copying"
	"holdfast/internal/server/exchange"
)

// watchRights is that of an exchange that another node serves, which has begun a stream with a header: the request ends, and
// with it what that node says.
func (p *placed) watchRights(head http.Header) {
	x := p.x
	if p.deny == nil || p.unwatch != nil {
		return
	}
	rights, returns := copying.RightsOf(x.HTTP.Context()), head[placement.HeaderReturns] != nil || copying.GoesWithRights(p.door)
	if rights == nil || !returns && x.Purpose != exchange.ForSocket && (x.Purpose != exchange.ForModern || !x.IsListen()) {
		return
	}
	p.unwatch = rights.Watch(func() {
		why := copying.Denial(rights)
		if why == nil && x.Purpose == exchange.ForSocket && p.h.callers.bySingleTools(x.HTTP.Context()) {
			why = errNoSocket // what comes on it is not looked at here
		}
		if why != nil {
			p.deny(&placement.NotAllowed{Why: why.Text})
		}
	})
}

package server

import (
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/modernfront"
)

// identify sets the principal of an exchange and the session that its header names. It checks the
// MCP-Protocol-Version header, which may be absent. If it returns false, the request was answered.
func (h *Handler) identify(w http.ResponseWriter, x *exchange.Exchange) bool {
	if v := x.HTTP.Header[protocol.HeaderVersion]; len(v) > 0 && !protocol.Known(v[0]) && (x.Purpose != exchange.ForSocket || !protocol.Modern(v[0]) || h.opts.Eras == modernfront.ErasLegacy) {
		h.answers.Reject(w, http.StatusBadRequest, modern.Unsupported(v[0], protocol.Supported()))
		return false
	}
	if id := x.HTTP.Header[protocol.HeaderSession]; len(id) > 0 {
		x.Secret = id[0]
	}
	x.Last = exchange.LastEventID(x.HTTP)
	x.Principal = h.callers.principal(x.HTTP)
	if x.From != nil {
		x.Once.Name, x.Once.Again = x.From.Once, x.From.Again
		x.Continues = x.From.Continues
	}
	return true
}

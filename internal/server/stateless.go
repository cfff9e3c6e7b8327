package server

import (
	"cmp"
	"encoding/json"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
)

// decodeStateless decodes a POST that stands alone: its session lives as long as the request. There is nothing to come back to, so
// nothing is primed. If it is false the request was answered.
func (h *Handler) decodeStateless(w http.ResponseWriter, x *exchange.Exchange) bool {
	x.Purpose = exchange.ForSession
	if err := exchange.Check(x.Msgs, x.Batch, exchange.StageNone, statelessRevision(x)); err != nil {
		h.answers.Fail(w, err)
		return false
	}
	if exchange.Requests(x.Msgs) == 0 {
		w.WriteHeader(http.StatusAccepted) // there is nobody left whom it could concern
		return false
	}
	return true
}

// startStateless begins the calls of a POST that stands alone.
func (h *Handler) startStateless(x *exchange.Exchange, o *outcome) error {
	if x.Msgs[0].Method != "initialize" {
		if err := x.Session.Initialize(x.Values(), initializeParams(statelessRevision(x)), x.HTTP.Header); err != nil {
			return err
		}
	}
	return h.startCall(x, o)
}

// statelessRevision returns the revision that a request names.
func statelessRevision(x *exchange.Exchange) string {
	return cmp.Or(versionOf(x.HTTP), protocol.V20250326)
}

// initializeParams are what a backend is told of a client that it will see once.
func initializeParams(revision string) []byte {
	params, _ := json.Marshal(map[string]any{
		"protocolVersion": revision,
		"capabilities":    map[string]any{},
		"clientInfo":      map[string]string{"name": "holdfast-stateless", "version": "1"},
	})
	return params
}

package server

import (
	"cmp"
	"encoding/json"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
)

// decodeStateless decodes a POST that stands alone: its session lives as long as the request. A client can't come back for its
// stream, so there are no priming events. If it returns false, the request was answered.
func (h *Handler) decodeStateless(w http.ResponseWriter, x *exchange.Exchange) bool {
	x.Purpose = exchange.ForSession
	if err := exchange.Check(x.Msgs, x.Batch, exchange.StageNone, statelessRevision(x)); err != nil {
		h.answers.Fail(w, err)
		return false
	}
	if exchange.Requests(x.Msgs) == 0 {
		w.WriteHeader(http.StatusAccepted) // no session and no call is left that the messages could be for
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

// statelessRevision returns the revision that a request names, by default 2025-03-26.
func statelessRevision(x *exchange.Exchange) string {
	return cmp.Or(versionOf(x.HTTP), protocol.V20250326)
}

// initializeParams returns the params of the initialize that a backend gets for a client that stands alone.
func initializeParams(revision string) []byte {
	params, _ := json.Marshal(map[string]any{
		"protocolVersion": revision,
		"capabilities":    map[string]any{},
		"clientInfo":      map[string]string{"name": "holdfast-stateless", "version": "1"},
	})
	return params
}

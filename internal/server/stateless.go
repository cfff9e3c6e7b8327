package server

import (
	"context"
	"encoding/json"
	"net/http"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// stateless answers a POST that stands alone: a session that lives as long as
// the request. There is nothing to come back to, so nothing is primed.
func (h *Handler) stateless(w http.ResponseWriter, r *http.Request, msgs []jsonrpc.Message, batch bool, requests int) {
	revision := protocol.V20250326
	if v := r.Header[protocol.HeaderVersion]; len(v) > 0 {
		revision = v[0]
	}
	if err := checkMessages(msgs, batch, stageNone, revision); err != nil {
		h.fail(w, err)
		return
	}
	if requests == 0 {
		w.WriteHeader(http.StatusAccepted) // there is nobody left whom it could concern
		return
	}
	s, err := h.sessions.New(r, h.principal(r), false)
	if err != nil {
		h.fail(w, err)
		return
	}
	defer h.sessions.End(s)
	if msgs[0].Method != "initialize" {
		ctx := context.WithoutCancel(r.Context())
		if err := s.Initialize(ctx, initializeParams(revision), r.Header); err != nil {
			h.fail(w, err)
			return
		}
	}
	if err := h.call(w, r, s, msgs, batch, runOnce{}); err != nil {
		h.fail(w, err)
	}
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

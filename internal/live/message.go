package live

import (
	"encoding/json"
	"strings"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// progress has the params of the last notifications/progress.
type progress struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"`
	Message  string  `json:"message"`
}

// Kinds of entries.
const (
	kindProgress = "progress"
	kindRequest  = "request" // from the server to the client
	kindMessage  = "message"
	kindResponse = "response"
)

// take returns the kind of an entry, and keeps the progress in it.
func (r *record) take(e observe.Appended) string {
	switch {
	case e.Last:
		return kindResponse
	case len(e.Data) == 0 || len(e.Data) > mostParsed:
		return kindMessage
	}
	method := jsonrpc.String(jsonrpc.Field(e.Data, "method"))
	switch {
	case method == protocol.MethodProgress:
		var p progress
		if json.Unmarshal(jsonrpc.Field(e.Data, "params"), &p) == nil {
			p.Message = text(p.Message)
			r.progress = p
		}
		return kindProgress
	case method != "" && jsonrpc.Field(e.Data, "id") != nil:
		return kindRequest
	}
	return kindMessage
}

// text cuts a text to mostText bytes, and copies it, so that the memory of s can be freed.
func text(s string) string {
	if len(s) > mostText {
		s = strings.ToValidUTF8(s[:mostText], "") + "…"
	}
	return strings.Clone(s)
}

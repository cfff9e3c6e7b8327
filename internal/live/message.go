package live

import (
	"encoding/json"
	"strings"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// progress is what the last notifications/progress said.
type progress struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"`
	Message  string  `json:"message"`
}

// Kinds of entries.
const (
	kindProgress = "progress"
	kindRequest  = "request" // of the server, to the client
	kindMessage  = "message"
	kindResponse = "response"
)

// take returns the kind of an entry, and keeps the progress that it says.
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

// text bounds a text, and keeps no memory of what it was cut from.
func text(s string) string {
	if len(s) > mostText {
		s = strings.ToValidUTF8(s[:mostText], "") + "…"
	}
	return strings.Clone(s)
}

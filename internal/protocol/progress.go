package protocol

import (
	"strconv"

	"holdfast/jsonrpc"
)

// ProgressToken returns the progress token in the params of a request, as raw JSON; nil: it has none, or null, which some libraries write
// for none.
func ProgressToken(params []byte) []byte {
	token := jsonrpc.Field(params, "_meta", progressToken)
	if string(token) == "null" {
		return nil
	}
	return token
}

// Progress returns the key of the token of a progress notification, and its value. ok reports
// whether the params have both. A request that is made again counts from the beginning, but its
// client has seen the progress of the earlier run: "the progress value MUST increase with each
// notification" (2025-11-25, Progress). So a value that is not greater must not be sent.
func Progress(params []byte) (token string, value float64, ok bool) {
	raw := jsonrpc.Field(params, "progressToken")
	value, err := strconv.ParseFloat(string(jsonrpc.Field(params, "progress")), 64)
	if raw == nil || err != nil {
		return "", 0, false
	}
	return string(jsonrpc.Key(raw)), value, true
}

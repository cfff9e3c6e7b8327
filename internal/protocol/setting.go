package protocol

import (
	"bytes"

	"holdfast/jsonrpc"
)

// longSetting is how long, in bytes, params are that are kept as they are.
const longSetting = 1 << 10

// Setting returns the params of a request that sets something for a session (resources/subscribe, logging/setLevel), to be
// kept for a server that has to be told again: only what sets it, if they are long.
func Setting(params []byte) []byte {
	if len(params) <= longSetting {
		return bytes.Clone(params) // and not the message with it
	}
	for _, name := range []string{"uri", "level"} {
		if value := jsonrpc.String(jsonrpc.Field(params, name)); value != "" && len(value) <= MaxURI {
			return jsonrpc.Object(name, value)
		}
	}
	return []byte("{}")
}

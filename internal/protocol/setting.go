package protocol

import (
	"bytes"

	"holdfast/jsonrpc"
)

// longSetting is the longest params that are kept unchanged, in bytes.
const longSetting = 1 << 10

// Setting returns the params of a request that sets something for a session (resources/subscribe, logging/setLevel), to be
// kept for a server that has to be told again: of long params, only the member with the uri or the level.
func Setting(params []byte) []byte {
	if len(params) <= longSetting {
		return bytes.Clone(params) // the clone does not keep the whole message in memory
	}
	for _, name := range []string{"uri", "level"} {
		if value := jsonrpc.String(jsonrpc.Field(params, name)); value != "" && len(value) <= MaxURI {
			return jsonrpc.Object(name, value)
		}
	}
	return []byte("{}")
}

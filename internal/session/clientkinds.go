package session

import (
	"encoding/json"
	"strings"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// infoOf returns the clientInfo in what a client says of itself, as [Manager.Carrier] gets it, or nil.
func infoOf(says string) (info json.RawMessage) {
	if json.NewDecoder(strings.NewReader(says)).Decode(&info) != nil {
		return nil
	}
	return info
}

// RefusedModern notes that a modern request was refused because of its era, for the log.
func (m *Manager) RefusedModern(request *jsonrpc.Message) {
	meta := jsonrpc.Field(request.Params, "_meta")
	m.kinds.Refused(m.logger, time.Now(), jsonrpc.Field(meta, protocol.MetaClientInfo), jsonrpc.String(jsonrpc.Field(meta, protocol.MetaProtocolVersion)))
}

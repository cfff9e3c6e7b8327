package session

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"strings"

	"holdfast/internal/caller"
	"holdfast/internal/protocol"
)

// A carrierKey says which requests share a carrier: those of one principal and tenant and
// of one kind of client, for one server.
type carrierKey struct {
	principal        caller.Principal
	tenant, revision string
	client           string            // see carriers.kindOf
	server           any               // see [perRequest]
	credential       caller.Credential // see Client.apart
}

// shortClient bounds, in bytes, a client's text about itself that is kept as it is.
const shortClient = 256

// kindOf returns the key of a kind of clients, from a request's text about its client. For texts that are not longer than longSpelling, the
// key is the same for all spellings of equal values, with or without extensions of Holdfast: our client declares them for single calls.
func (all *carriers) kindOf(client string) string {
	all.mu.Lock()
	kind, known := all.spellings[client]
	all.mu.Unlock()
	if known {
		return kind
	}
	if len(client) > longSpelling { // decoding takes many times its memory
		return keyOfClient(client)
	}
	kind = keyOfClient(canonicalClient(client))
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.spellings == nil || len(all.spellings) >= mostSpellings {
		all.spellings = make(map[string]string)
	}
	all.spellings[client] = kind
	return kind
}

// canonicalClient returns the common spelling of clientInfo and clientCapabilities, which are JSON with a
// comma in between; the first may be absent.
func canonicalClient(client string) string {
	if strings.HasPrefix(client, ",") {
		client = "null" + client
	}
	var both []any
	d := json.NewDecoder(strings.NewReader("[" + client + "]"))
	d.UseNumber()
	if d.Decode(&both) != nil || len(both) != 2 {
		return client
	}
	if capabilities, ok := both[1].(map[string]any); ok {
		if extensions, ok := capabilities["extensions"].(map[string]any); ok {
			maps.DeleteFunc(extensions, func(name string, _ any) bool { return strings.HasPrefix(name, protocol.OwnExtensions) })
			if len(extensions) == 0 {
				delete(capabilities, "extensions")
			}
		}
	}
	text, err := json.Marshal(both)
	if err != nil {
		return client
	}
	return string(text)
}

// keyOfClient returns the key of a kind of clients: their text about themselves, or its digest if it is long. The text is JSON, and a digest is not.
func keyOfClient(client string) string {
	if len(client) <= shortClient {
		return client
	}
	sum := sha256.Sum256([]byte(client))
	return "\x00" + string(sum[:])
}

package bridge

import (
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/internal/statefile"
)

// A known has the last answers of the server to the requests that hosts make first: initialize and lists. A host that
// starts while the server is away gets these answers, because no host asks again. They are kept in a file beside the
// sessions ([store]), of mode 0600, for each server, transport and headers, and of one login. Its methods may be called
// concurrently. A nil known has no answers.
type known struct {
	name string // of the file

	mu     sync.Mutex
	read   bool
	record knownRecord
}

// A knownRecord is the content of the file, as JSON.
type knownRecord struct {
	Login   time.Time              `json:"login,omitzero"` // when the user who got the answers logged in
	Answers map[string]knownAnswer `json:"answers"`        // by the requests' hashes
}

// A knownAnswer is a result.
type knownAnswer struct {
	At     time.Time       `json:"at"`
	Result json.RawMessage `json:"result"`
}

// Bounds of the answers that are kept of a server.
const (
	mostKnown      = 64      // answers
	mostKnownBytes = 4 << 20 // of their results
	knownFor       = 30 * 24 * 60 * 60 * time.Second
	knownSuffix    = ".known" // of the file
)

// lists has the requests, besides initialize, that get known answers, each with the notification that tells a host to ask again.
var lists = map[string]string{
	protocol.MethodToolsList:   protocol.MethodToolsListChanged,
	"prompts/list":             protocol.MethodPromptsListChanged,
	"resources/list":           protocol.MethodResourcesListChanged,
	"resources/templates/list": protocol.MethodResourcesListChanged,
}

// isListChanged reports whether a notification tells a host to list again.
func isListChanged(method string) bool {
	return method == protocol.MethodToolsListChanged || method == protocol.MethodPromptsListChanged || method == protocol.MethodResourcesListChanged
}

// keyOf returns the key of a request in [knownRecord.Answers], or "" if its answer is not kept.
func keyOf(method string, params []byte) string {
	if method != protocol.MethodInitialize && lists[method] == "" {
		return ""
	}
	return fingerprintOf(method, params).Same
}

// load reads the file, once. k.mu is held. login is when the user logged in; answers of another login are forgotten.
func (k *known) load(login time.Time) {
	if !k.read {
		k.read = true
		if data, err := os.ReadFile(k.name); err != nil || json.Unmarshal(data, &k.record) != nil {
			k.record = knownRecord{}
		}
	}
	if !k.record.Login.Equal(login) {
		k.record = knownRecord{Login: login}
	}
}

// answer returns the last result of a request, or nil.
func (k *known) answer(key string, login time.Time) json.RawMessage {
	if k == nil || key == "" {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.load(login)
	if a := k.record.Answers[key]; time.Since(a.At) < knownFor {
		return a.Result
	}
	return nil
}

// keep keeps the result of a request.
func (k *known) keep(key string, login time.Time, result []byte) {
	if k == nil || key == "" || len(result) > mostKnownBytes {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.load(login)
	if k.record.Answers == nil {
		k.record.Answers = make(map[string]knownAnswer)
	}
	old, there := k.record.Answers[key]
	if there && string(old.Result) == string(result) && time.Since(old.At) < knownFor/2 {
		return
	}
	k.record.Answers[key] = knownAnswer{time.Now(), append(json.RawMessage(nil), result...)}
	k.bound()
	data, err := json.Marshal(k.record)
	if err == nil {
		err = statefile.Replace(k.name, data)
	}
	if err != nil {
		slog.Warn("what the server has answered is not kept: if it is away when the host starts again, the host gets an error", "error", err)
	}
}

// bound forgets the oldest answers where there are too many. k.mu is held.
func (k *known) bound() {
	for {
		size, oldest := 0, ""
		for key, a := range k.record.Answers {
			size += len(a.Result)
			if oldest == "" || a.At.Before(k.record.Answers[oldest].At) {
				oldest = key
			}
		}
		if len(k.record.Answers) <= mostKnown && size <= mostKnownBytes {
			return
		}
		delete(k.record.Answers, oldest)
	}
}

package session

import (
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What clientKinds keeps and logs is bounded, because clients choose their names.
const (
	mostKinds       = 1000 // that are remembered; then the log begins anew
	mostKindLines   = 10   // in kindLinesPeriod
	kindLinesPeriod = time.Minute
	longestName     = 64 // in bytes, of a client's name and version
)

// insists is how many refused requests say that a kind of client falls back on no older revision. A host
// that begins two sessions at once is refused twice before it falls back.
const insists = 3

// clientKinds logs once for each kind of client which era it speaks: a line for each name, version and
// era. The zero value is ready to use. It is used when sessions and carriers begin, and not for each request.
type clientKinds struct {
	mu     sync.Mutex
	kinds  map[clientKind]*eraOfKind
	period time.Time // when the period of the last line began
	lines  int       // in that
}

// A clientKind is what clients of a kind say of themselves.
type clientKind struct{ name, version string }

// eraOfKind is what is known of a kind.
type eraOfKind struct {
	legacy, modern bool // there is a line
	refused        int  // modern requests; 0 after a legacy one
	heard          bool // modern clients of the kind were shown our tools
}

// spoke notes that a client has begun to speak a revision. info is its clientInfo, as JSON.
func (k *clientKinds) spoke(logger *slog.Logger, now time.Time, info []byte, revision string) {
	kind := kindOfClient(info)
	k.mu.Lock()
	of := k.of(kind)
	modern := protocol.Modern(revision)
	said := &of.legacy
	if modern {
		said = &of.modern
	} else {
		of.refused = 0
	}
	logs := !*said && k.mayLog(now)
	*said = *said || logs
	k.mu.Unlock()
	if logs {
		era := "legacy"
		if modern {
			era = "modern"
		}
		logger.Info("a kind of client speaks the "+era+" era", "client", kind.name, "version", kind.version, "revision", revision)
	}
}

// refused notes that a modern request was refused because of its era.
func (k *clientKinds) refused(logger *slog.Logger, now time.Time, info []byte, revision string) {
	kind := kindOfClient(info)
	k.mu.Lock()
	of := k.of(kind)
	of.refused++
	logs := of.refused == insists && !of.legacy && k.mayLog(now)
	k.mu.Unlock()
	if logs {
		logger.Warn("a kind of client asks for the modern era only, and is refused: --eras both (Options.Eras) serves it",
			"client", kind.name, "version", kind.version, "revision", cutName(revision))
	}
}

// hears notes that a modern client of a kind was shown our tools. It lists them for itself once, and its requests
// may come to another carrier later.
func (k *clientKinds) hears(kind clientKind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of(kind).heard = true
}

// hasHeard reports whether one was.
func (k *clientKinds) hasHeard(kind clientKind) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := k.kinds[kind]
	return is != nil && is.heard
}

// of returns what is known of a kind. k.mu is held.
func (k *clientKinds) of(kind clientKind) *eraOfKind {
	if of := k.kinds[kind]; of != nil {
		return of
	}
	if k.kinds == nil || len(k.kinds) >= mostKinds {
		k.kinds = make(map[clientKind]*eraOfKind)
	}
	of := new(eraOfKind)
	k.kinds[kind] = of
	return of
}

// mayLog reports whether there may be another line now, and counts it. k.mu is held.
func (k *clientKinds) mayLog(now time.Time) bool {
	if now.Sub(k.period) >= kindLinesPeriod {
		k.period, k.lines = now, 0
	}
	if k.lines >= mostKindLines {
		return false
	}
	k.lines++
	return true
}

// kindOfClient reads a clientInfo, which may be nil.
func kindOfClient(info []byte) clientKind {
	return clientKind{
		name:    cutName(jsonrpc.String(jsonrpc.Field(info, "name"))),
		version: cutName(jsonrpc.String(jsonrpc.Field(info, "version"))),
	}
}

// infoOf returns the clientInfo in what a client says of itself, as [Manager.Carrier] gets it, or nil.
func infoOf(says string) (info json.RawMessage) {
	if json.NewDecoder(strings.NewReader(says)).Decode(&info) != nil {
		return nil
	}
	return info
}

// cutName returns the beginning of what a client says.
func cutName(name string) string {
	if len(name) <= longestName {
		return strings.Clone(name)
	}
	return strings.Clone(strings.ToValidUTF8(name[:longestName], "")) // without the rest in memory
}

// RefusedModern notes that a modern request was refused because of its era, for the log.
func (m *Manager) RefusedModern(request *jsonrpc.Message) {
	meta := jsonrpc.Field(request.Params, "_meta")
	m.kinds.refused(m.logger, time.Now(), jsonrpc.Field(meta, protocol.MetaClientInfo), jsonrpc.String(jsonrpc.Field(meta, protocol.MetaProtocolVersion)))
}

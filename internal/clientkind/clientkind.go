// Package clientkind knows kinds of clients: clients with the same name and version. It knows their era, and
// whether they have our tools.
package clientkind

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Bounds of the kinds that a Table keeps and logs, because clients choose their names.
const (
	mostKinds       = 1000 // kinds that are remembered; then the table is emptied, and logs kinds again
	mostKindLines   = 10   // lines in kindLinesPeriod
	kindLinesPeriod = time.Minute
	longestName     = 64 // in bytes, of a client's name and version
)

// insists is how many refused requests show that a kind of client does not fall back on an older
// revision. A host that begins two sessions at once is refused twice before it falls back.
const insists = 3

// A Table logs once for each kind of client which era it speaks: a line for each name, version and era. The zero
// value is ready to use. It is used when sessions and carriers begin, not for each request. Its methods may be
// called concurrently.
type Table struct {
	mu     sync.Mutex
	kinds  map[Kind]*eraOfKind
	period time.Time // when the period of the last line began
	lines  int       // lines in that period
}

// A Kind is the name and version of clients, from their clientInfo.
type Kind struct{ Name, Version string }

// eraOfKind has the eras of a kind.
type eraOfKind struct {
	legacy, modern bool // the log has a line for it
	refused        int  // modern requests; 0 after a legacy one
	heard          bool // modern clients of the kind were shown our tools
}

// Spoke notes that a client has begun to speak a revision. info is its clientInfo, as JSON.
func (k *Table) Spoke(logger *slog.Logger, now time.Time, info []byte, revision string) {
	kind := Of(info)
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
		logger.Info("a kind of client speaks the "+era+" era", "client", kind.Name, "version", kind.Version, "revision", revision)
	}
}

// Refused notes that a modern request was refused because of its era.
func (k *Table) Refused(logger *slog.Logger, now time.Time, info []byte, revision string) {
	kind := Of(info)
	k.mu.Lock()
	of := k.of(kind)
	of.refused++
	logs := of.refused == insists && !of.legacy && k.mayLog(now)
	k.mu.Unlock()
	if logs {
		logger.Warn("a kind of client asks for the modern era only, and is refused: --eras both (Options.Eras) serves it",
			"client", kind.Name, "version", kind.Version, "revision", cutName(revision))
	}
}

// Hears notes that a modern client of a kind was shown our tools. A client lists them once, and its requests may
// come to another carrier later.
func (k *Table) Hears(kind Kind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of(kind).heard = true
}

// HasHeard reports whether a modern client of a kind was shown our tools.
func (k *Table) HasHeard(kind Kind) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := k.kinds[kind]
	return is != nil && is.heard
}

// of returns the entry of a kind, which it adds if needed. k.mu is held.
func (k *Table) of(kind Kind) *eraOfKind {
	if of := k.kinds[kind]; of != nil {
		return of
	}
	if k.kinds == nil || len(k.kinds) >= mostKinds {
		k.kinds = make(map[Kind]*eraOfKind)
	}
	of := new(eraOfKind)
	k.kinds[kind] = of
	return of
}

// mayLog reports whether another line may be logged now, and counts it. k.mu is held.
func (k *Table) mayLog(now time.Time) bool {
	if now.Sub(k.period) >= kindLinesPeriod {
		k.period, k.lines = now, 0
	}
	if k.lines >= mostKindLines {
		return false
	}
	k.lines++
	return true
}

// Of returns the kind of a clientInfo, which may be nil.
func Of(info []byte) Kind {
	return Kind{
		Name:    cutName(jsonrpc.String(jsonrpc.Field(info, "name"))),
		Version: cutName(jsonrpc.String(jsonrpc.Field(info, "version"))),
	}
}

// cutName returns the beginning of a client's text, at most longestName bytes.
func cutName(name string) string {
	if len(name) <= longestName {
		return strings.Clone(name)
	}
	return strings.Clone(strings.ToValidUTF8(name[:longestName], "")) // the clone does not keep the rest in memory
}

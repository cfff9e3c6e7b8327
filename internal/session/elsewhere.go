package session

import (
	"context"
	"encoding/json"
	"io"

	"holdfast/internal/caller"
	"holdfast/stream"
)

// Elsewhere asks other nodes for what concerns a principal.
type Elsewhere interface {
	// Ask asks the node of a call, with a method of an [Addition]: query is for [Manager.Answered] there.
	Ask(ctx context.Context, method string, principal caller.Principal, query []byte) ([]byte, error)
	// List asks all nodes for [Manager.ListHere]. It returns their answers, and the range
	// of sessions after one that they are of.
	List(ctx context.Context, principal caller.Principal, after stream.SessionKey, query []byte) ([]json.RawMessage, Range, error)
	// Strand tells all nodes that this one knows a stranded call, by a name: for [Manager.Hint] there. It does not wait.
	Strand(keys []byte, name uint64)
	// Unstrand tells them that a node, this one if it is "", does not know it any more: for [Manager.Unhint] there. It does not wait.
	Unstrand(node string, keys []byte, name uint64)
	// Alone reports whether there are none.
	Alone() bool
	// Fly tells them of calls in flight: for [Manager.HintFlights] there. It does not wait.
	Fly(all []Flight)
	// Borrow asks a node for a stranded call: query is for [Manager.Lend] there. It returns what that writes; nil: nothing.
	Borrow(ctx context.Context, node string, query []byte) (io.ReadCloser, error)
}

// OnElsewhere sets what asks other nodes. It is called once, before there are sessions.
func (m *Manager) OnElsewhere(ask Elsewhere) { m.elsewhere = ask }

// Elsewhere returns what asks other nodes; nil if there are none.
func (m *Manager) Elsewhere() Elsewhere { return m.elsewhere }

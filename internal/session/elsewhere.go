package session

import (
	"context"
	"encoding/json"

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
}

// OnElsewhere sets what asks other nodes. It is called once, before there are sessions.
func (m *Manager) OnElsewhere(ask Elsewhere) { m.elsewhere = ask }

// Elsewhere returns what asks other nodes; nil if there are none.
func (m *Manager) Elsewhere() Elsewhere { return m.elsewhere }

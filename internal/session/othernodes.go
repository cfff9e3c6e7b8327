package session

import (
	"context"
	"encoding/json"

	"holdfast/internal/caller"
	"holdfast/stream"
)

// Elsewhere asks other nodes about the calls of a principal.
type Elsewhere interface {
	// Ask asks the node of a call, with a method of an [Addition]: query is for [Manager.Answered] there.
	Ask(ctx context.Context, method string, principal caller.Principal, query []byte) ([]byte, error)
	// List asks all nodes for [Manager.ListHere]. It returns their answers, and the range of sessions, from
	// the one after the key after, that these cover.
	List(ctx context.Context, principal caller.Principal, after stream.SessionKey, query []byte) ([]json.RawMessage, Range, error)
}

// OnElsewhere sets the manager's [Elsewhere]. It is called once, before there are sessions.
func (m *Manager) OnElsewhere(ask Elsewhere) { m.elsewhere = ask }

// Elsewhere returns the manager's [Elsewhere]; nil if there are no other nodes.
func (m *Manager) Elsewhere() Elsewhere { return m.elsewhere }

package session

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows has a server that is opened again for a session know what the client has set: the log level, and the
// resources that it has subscribed to.

// settings are what a client has set, as the params of its requests. Guarded by Session.mu. The subscriptions count as held
// by [holding.keepSubscription].
type settings struct {
	level []byte
	subs  map[string][]byte // by their URIs; nil if there are none
}

// take takes in a request of the client that the server is about to get. It reports whether that sets something.
func (t *settings) take(m *jsonrpc.Message) bool {
	switch m.Method {
	case protocol.MethodSetLevel:
		t.level = protocol.Setting(m.Params)
	case protocol.MethodSubscribe:
		if t.subs == nil {
			t.subs = make(map[string][]byte)
		}
		t.subs[uriOf(m)] = protocol.Setting(m.Params)
	case protocol.MethodUnsubscribe:
		if delete(t.subs, uriOf(m)); len(t.subs) == 0 {
			t.subs = nil
		}
	default:
		return false
	}
	return true
}

// requests returns what sets them again.
func (t *settings) requests() (all []jsonrpc.Message) {
	if t.level != nil {
		all = append(all, jsonrpc.Message{Method: protocol.MethodSetLevel, Params: t.level})
	}
	for _, uri := range slices.Sorted(maps.Keys(t.subs)) {
		all = append(all, jsonrpc.Message{Method: protocol.MethodSubscribe, Params: t.subs[uri]})
	}
	return all
}

// setAgain tells a conversation that was opened again, for in, what the client has set.
func (l *link) setAgain(ctx context.Context, all []jsonrpc.Message, in backend.Inbound) {
	for i := range all {
		if _, err := l.ask(ctx, all[i].Method, all[i].Params, in); err != nil {
			l.s.m.logger.Warn("the server has not answered to what the client had set before", "session", l.s.Name(), "method", all[i].Method, "error", err)
			return
		}
	}
}

// A sleepNote is what the store has of a session that sleeps, or has slept, and that its id does not say.
type sleepNote struct {
	Revision string            `json:"r,omitempty"` // that its server has chosen, if it is not the one that the client asked for
	Level    json.RawMessage   `json:"l,omitempty"`
	Subs     []json.RawMessage `json:"s,omitempty"`
}

// sleepNoteOf returns the note of a session; nil: there is nothing to be noted. s.mu is held.
func sleepNoteOf(s *Session) []byte {
	n := sleepNote{Level: s.backend.settings.level}
	if jsonrpc.String(jsonrpc.Field(s.backend.initialize, "params", "protocolVersion")) != s.revision {
		n.Revision = s.revision
	}
	for _, uri := range slices.Sorted(maps.Keys(s.backend.settings.subs)) {
		n.Subs = append(n.Subs, s.backend.settings.subs[uri])
	}
	text, err := json.Marshal(&n)
	if err != nil || string(text) == "{}" {
		return nil
	}
	return text
}

// apply has a session that nobody knows yet be as its note says.
func (n *sleepNote) apply(s *Session) {
	if protocol.Known(n.Revision) && !protocol.Modern(n.Revision) {
		s.revision = n.Revision
	}
	t := &s.backend.settings
	t.level = bytes.Clone(n.Level)
	for _, params := range n.Subs {
		m := jsonrpc.Message{Method: protocol.MethodSubscribe, Params: params}
		t.take(&m)
		s.held.subscribed(uriOf(&m))
	}
}

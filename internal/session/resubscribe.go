package session

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file tells a server that is opened again for a session the client's settings: the log level, and the
// resources that the client has subscribed to.

// settings are a client's settings, as the params of the requests that made them. Guarded by Session.mu. The subscriptions
// count as held by [holding.keepSubscription].
type settings struct {
	level []byte
	subs  map[string][]byte // by their URIs; nil if there are none
}

// take takes in a request of the client that the server is about to get. sets says that the request is about a setting,
// and changes that the setting is another one now.
func (t *settings) take(m *jsonrpc.Message) (sets, changes bool) {
	switch m.Method {
	case protocol.MethodSetLevel:
		was := t.level
		t.level = protocol.Setting(m.Params)
		changes = !bytes.Equal(t.level, was)
	case protocol.MethodSubscribe:
		if t.subs == nil {
			t.subs = make(map[string][]byte)
		}
		uri, params := uriOf(m), protocol.Setting(m.Params)
		changes = !bytes.Equal(t.subs[uri], params)
		t.subs[uri] = params
	case protocol.MethodUnsubscribe:
		uri := uriOf(m)
		_, changes = t.subs[uri]
		if delete(t.subs, uri); len(t.subs) == 0 {
			t.subs = nil
		}
	default:
		return false, false
	}
	return true, changes
}

// A settingsNote has the client's settings noted in the store. The zero value is ready for use.
type settingsNote struct {
	due atomic.Bool // a goroutine is about to note them
	mu  sync.Mutex  // held while they are noted
}

// noteSettings notes the client's settings in the store, on a goroutine of its own. At most one waits for another: settings that change
// meanwhile are in its note.
func (s *Session) noteSettings() {
	t := &s.settingsNote
	if t.due.Swap(true) {
		return
	}
	note := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.due.Store(false)
		s.noteStored(true)
	}
	if !s.m.work.Go(note) {
		note()
	}
}

// requests returns the requests that make the settings again.
func (t *settings) requests() (all []jsonrpc.Message) {
	if t.level != nil {
		all = append(all, jsonrpc.Message{Method: protocol.MethodSetLevel, Params: t.level})
	}
	for _, uri := range slices.Sorted(maps.Keys(t.subs)) {
		all = append(all, jsonrpc.Message{Method: protocol.MethodSubscribe, Params: t.subs[uri]})
	}
	return all
}

// mostNoted bounds, in bytes, the subscriptions in the note of a session: the store has to take the note. A server that is opened again at
// another node is not told of more.
const mostNoted = 64 << 10

// escapedLen returns the length of a JSON text as [json.Marshal] spells it.
func escapedLen(text []byte) int {
	return len(text) + len(`u003c`)*(bytes.Count(text, []byte("<"))+bytes.Count(text, []byte(">"))+bytes.Count(text, []byte("&")))
}

// note returns the settings for the note of a session; nil: there are none.
func (t *settings) note() []byte {
	n, size := sleepNote{Level: t.level}, 0
	for _, uri := range slices.Sorted(maps.Keys(t.subs)) {
		if size += escapedLen(t.subs[uri]) + 1; size > mostNoted {
			break
		}
		n.Subs = append(n.Subs, t.subs[uri])
	}
	if n.Level == nil && n.Subs == nil {
		return nil
	}
	text, err := json.Marshal(&n)
	if err != nil {
		return nil
	}
	return text
}

// setAgain makes the client's settings again in a conversation that was opened again to deliver in.
func (l *link) setAgain(ctx context.Context, all []jsonrpc.Message, in backend.Inbound) {
	for i := range all {
		if _, err := l.ask(ctx, all[i].Method, all[i].Params, in); err != nil {
			l.s.m.logger.Warn("the server has not answered to what the client had set before", "session", l.s.Name(), "method", all[i].Method, "error", err)
			return
		}
	}
}

// A sleepNote is the note of a session that sleeps, or has slept, about the state that its id does not have. The note of any session in a
// shared store has its settings in the same form.
type sleepNote struct {
	Revision string            `json:"r,omitempty"` // that its server has chosen, if it is not the one that the client asked for
	Level    json.RawMessage   `json:"l,omitempty"`
	Subs     []json.RawMessage `json:"s,omitempty"`
	Agent    string            `json:"a,omitempty"` // the User-Agent, if the host of the client is known by nothing else; not in other notes: the record has it
}

// sleepNoteOf returns the note of a session; nil: it needs none. s.mu is held.
func sleepNoteOf(s *Session) []byte {
	n := sleepNote{Level: s.backend.settings.level}
	if jsonrpc.String(jsonrpc.Field(s.backend.initialize, "params", "protocolVersion")) != s.revision {
		n.Revision = s.revision
	}
	for _, uri := range slices.Sorted(maps.Keys(s.backend.settings.subs)) {
		n.Subs = append(n.Subs, s.backend.settings.subs[uri])
	}
	if knowsByAgent(s) {
		n.Agent = s.agent
	}
	text, err := json.Marshal(&n)
	if err != nil || string(text) == "{}" {
		return nil
	}
	return text
}

// apply restores a session, which no other goroutine knows yet, from its note.
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

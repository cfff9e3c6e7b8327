package session

import (
	"context"
	"net/http"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// A toolServer is the backend of a session, as its [tools.List] asks it.
type toolServer struct{ *Session }

// Asks implements [tools.Server].
func (s toolServer) Asks(ctx context.Context, m *jsonrpc.Message, header http.Header) (ask tools.Ask, done func(news bool)) {
	s.mu.Lock()
	l := s.backend.link
	isOpen := l != nil && l.conn != nil && s.revision != ""
	s.mu.Unlock()
	if !isOpen || !s.m.work.Start() {
		return nil, nil
	}
	in := backend.Inbound{Context: context.WithoutCancel(ctx), Header: header}
	if s.modern != "" && m != nil {
		in.Params = modernParams([]byte("{}"), m.Params, s.modern)
	}
	ask = func(ctx context.Context, params []byte) (jsonrpc.Message, error) {
		page, err := l.ask(ctx, protocol.MethodToolsList, params, in)
		if err == nil {
			s.events.toolsPage(page.Result)
		}
		return page, err
	}
	return ask, func(news bool) {
		defer s.m.work.Done()
		if news && s.m.shared != nil {
			s.noteSession(nil, true) // the next owner cannot ask before it opens a backend
			s.log.Flush()
		}
	}
}

// outlivesNode reports whether the next owner of a session has to know of a call, as a webhook is told the outcome of one of its requests:
// else a node that forwards the call, and one that takes it over, would both make it again.
func (m *Manager) outlivesNode(msgs []jsonrpc.Message) bool {
	return m.shared != nil && m.Tools.TellsOthers(msgs)
}

// learnAgain lists the tools of a session that was taken over, or revived, before they were known: the next
// owner should know whether the call for which the backend was opened is safe. Some backends learn a modern
// client's capabilities from its first request alone, so they are not asked for a message without any.
func (s *Session) learnAgain(in backend.Inbound) {
	if (s.taken || s.firstEpoch != 0) && (s.modern == "" || jsonrpc.Field(in.Params, "_meta", protocol.MetaClientCapabilities) != nil) {
		s.Tools.ReadUnknown(in.Context, &in.Message, in.Header)
	}
}

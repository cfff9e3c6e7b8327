package session

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"holdfast/backend"
	"holdfast/internal/caller"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// toolHints is what a session knows of its backend's tools.
type toolHints struct {
	complete bool            // every tool has been seen
	listed   int             // how often the list has changed
	learning chan struct{}   // closed when the list has been read; nil if it is not being read
	asked    time.Duration   // when that began, by the manager's clock
	safe     map[string]bool // tools that say they may be called again
	changes  map[string]bool // of those, the ones that do not say that they only read
	headed   headedTools
	common   bool            // the maps are other sessions', too: see [toolHints.own]
	shaped   map[string]bool // tools, and whether they have an outputSchema; nil if no addition is on
	clash    bool            // there is a tool of the name of one of ours
	nested   bool            // there is one of such a name after a prefix: a Holdfast is behind merged servers
}

// Learning of the tools takes hintsTimeout at the most. Calls wait until it has taken hintsWait, and are
// stored then: where a server is slow to list its tools, that is lost once, however many calls there are and
// however often one asks.
const (
	hintsTimeout = 10 * time.Second
	hintsWait    = 50 * time.Millisecond
)

// toolList is the part of a tools/list result that matters here.
type toolList struct {
	Tools []struct {
		Name        string          `json:"name"`
		InputSchema json.RawMessage `json:"inputSchema"`
		Output      json.RawMessage `json:"outputSchema"`
		Annotations struct {
			ReadOnly   bool `json:"readOnlyHint"`
			Idempotent bool `json:"idempotentHint"`
		} `json:"annotations"`
	} `json:"tools"`
}

// A toolPage is what matters here of one page of a tools/list result.
type toolPage struct {
	tools []toolHint
	last  bool // no other page follows
	ok    bool // it is such a page
}

// A toolHint is what matters of a tool.
type toolHint struct {
	name                  string
	headers               []protocol.ParamHeader
	shaped, safe, changes bool
}

// readPage reads one page of a tools/list result. That takes long if there are many tools: no lock is to
// be held.
func readPage(result []byte) (p toolPage) {
	var page toolList
	if json.Unmarshal(result, &page) != nil {
		return p
	}
	p.last, p.ok = protocol.NextCursor(result) == nil, page.Tools != nil
	p.tools = make([]toolHint, len(page.Tools))
	for i := range page.Tools {
		t := &page.Tools[i]
		p.tools[i] = toolHint{
			name: t.Name, headers: headersOf(t.InputSchema),
			shaped: len(t.Output) > 0, safe: t.Annotations.ReadOnly || t.Annotations.Idempotent, changes: !t.Annotations.ReadOnly,
		}
	}
	return p
}

// learn takes in a page. If the addition is on it matters which tools have an outputSchema.
func (h *toolHints) learn(p *toolPage, added Addition) {
	h.own()
	shapes := added.IsOn()
	for i := range p.tools {
		t := &p.tools[i]
		h.headed.learn(t.name, t.headers)
		own, nested := added.Tool(t.name)
		h.clash = h.clash || own
		h.nested = h.nested || !h.clash && nested
		if shapes {
			if h.shaped == nil {
				h.shaped = make(map[string]bool)
			}
			h.shaped[t.name] = t.shaped
		}
		if !t.safe {
			delete(h.safe, t.name)
			continue
		}
		if h.safe == nil {
			h.safe = make(map[string]bool)
		}
		h.safe[t.name] = true
		h.mayChange(t.name, t.changes)
	}
}

// mayChange notes whether a tool that may be called again may leave something in the server's memory.
func (h *toolHints) mayChange(name string, changes bool) {
	switch {
	case !changes:
		delete(h.changes, name)
	case h.changes == nil:
		h.changes = map[string]bool{name: true}
	default:
		h.changes[name] = true
	}
}

// Light reports whether a request may start light, answered with nothing kept of it. For a
// tool that is not known yet the backend's list is read, once, and waited for a little.
// What is not safe to make again is never light where other nodes may take it over, and neither is what tells somebody
// besides its client: a node that forwards it, and one that takes it over, would both make it again.
func (s *Session) Light(ctx context.Context, m *jsonrpc.Message, header http.Header) bool {
	if s.m.shared != nil && s.m.untold.Wants(m.Params) {
		return false
	}
	return s.retrySafe(ctx, m, header) || s.m.shared == nil && protocol.Unrecorded(m.Method)
}

// outlivesNode reports whether the next owner of a session has to know of a call, since the outcome of one of its requests is told to somebody
// besides its client.
func (m *Manager) outlivesNode(msgs []jsonrpc.Message) bool {
	if m.shared == nil {
		return false
	}
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request && m.untold.Wants(msgs[i].Params) {
			return true
		}
	}
	return false
}

// retrySafe reports whether a request may be made again without harm, as far as is known
// now. The tools are read as for [Session.Light].
func (s *Session) retrySafe(ctx context.Context, m *jsonrpc.Message, header http.Header) bool {
	return protocol.RetrySafe(m.Method, func() bool { return s.safeTool(ctx, m, header) })
}

// safeTool reports whether the tool of a tools/call may be called again.
func (s *Session) safeTool(ctx context.Context, m *jsonrpc.Message, header http.Header) bool {
	name := toolOf(m)
	if s.m.safeTool(s.Server(), name) {
		return true
	}
	s.mu.Lock()
	if owns(s.m.added, name) && !s.tools.clash {
		s.mu.Unlock()
		return true
	}
	safe, known := s.tools.safe[name], s.tools.complete
	if safe || known || s.backend.link == nil || s.backend.link.conn == nil || s.revision == "" {
		s.mu.Unlock()
		return safe
	}
	learning := s.learnTools(s.askingFor(ctx, m, header))
	rest := hintsWait - (s.m.clock() - s.tools.asked)
	s.mu.Unlock()
	if learning == nil {
		return false
	}
	awaitTools(ctx, learning, rest)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tools.safe[name]
}

// awaitTools waits until the backend's list of tools was read, but no longer than most.
func awaitTools(ctx context.Context, learning chan struct{}, most time.Duration) {
	if most <= 0 {
		return
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-learning:
	case <-t.C:
	case <-ctx.Done():
	}
}

// learnTools begins to read the backend's list of tools, unless that is being done. It
// returns what is closed when it is, or nil at the end. s.mu is held.
func (s *Session) learnTools(in backend.Inbound) (learning chan struct{}) {
	if s.tools.learning == nil && s.m.startWork() {
		s.tools.learning, s.tools.asked = make(chan struct{}), s.m.clock()
		go s.learnAll(s.backend.link, s.tools.listed, s.tools.learning, in)
	}
	return s.tools.learning
}

// learnAgain is for a session that was taken over before its tools were known: the
// call for which its backend was opened is not known as safe, and the next owner
// should know. Some backends take the first request for all that there is to hear of a modern
// client, so they are not asked for the sake of a message that says nothing of that.
func (s *Session) learnAgain(in backend.Inbound) {
	if s.modern != "" && jsonrpc.Field(in.Params, "_meta", protocol.MetaClientCapabilities) == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.taken || s.firstEpoch != 0) && !s.tools.complete && len(s.tools.safe) == 0 && s.backend.link != nil && s.backend.link.conn != nil && s.revision != "" {
		s.learnTools(s.askingFor(in.Context, &in.Message, in.Header))
	}
}

// toolOf returns the name of the tool that a tools/call calls.
func toolOf(m *jsonrpc.Message) string { return jsonrpc.String(jsonrpc.Field(m.Params, "name")) }

// safeTool reports whether the operator calls a tool of a server safe.
func (m *Manager) safeTool(server, name string) bool {
	return m.opts.Safe != nil && m.callsSafe(name) || m.many != nil && m.many.SafeTool(server, name)
}

// RetrySafe reports whether all the requests of a principal may be made again without harm,
// as far as that is known without their session.
func (m *Manager) RetrySafe(principal caller.Principal, msgs []jsonrpc.Message) (safe bool) {
	var err error // then nobody has called them safe
	defer panics.Catch(&err, m.logger, "", "")
	return allSafe(msgs, func(x *jsonrpc.Message) bool { return m.safeTool(principal.Server(), toolOf(x)) })
}

// allSafe reports whether all requests among msgs may be made again; tool says so of a
// tools/call.
func allSafe(msgs []jsonrpc.Message, tool func(*jsonrpc.Message) bool) bool {
	for i := range msgs {
		m := &msgs[i]
		if m.Kind == jsonrpc.Request && !protocol.RetrySafe(m.Method, func() bool { return tool(m) }) {
			return false
		}
	}
	return true
}

// learnPage takes in what a client is answered that asked for tools: no others need be asked for
// if that is all of them, and the list is still the one of when the answer came. It reports whether the
// next owner of the session should know.
func (s *Session) learnPage(rq *inflight, result []byte, listed int) (news bool) {
	page := readPage(result)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tools.listed != listed { // it has changed while the page was read
		return false
	}
	s.tools.learn(&page, s.m.added)
	s.patience.nested.Store(s.tools.nested)
	if !page.ok || !page.last || !rq.list || s.tools.complete {
		return false
	}
	s.tools.complete = true
	return s.m.shared != nil && len(s.tools.safe) > 0
}

// learnAll reads the backend's whole list of tools, and closes done.
func (s *Session) learnAll(l *link, listed int, done chan struct{}, in backend.Inbound) {
	defer s.m.work.Done()
	ctx, stop := context.WithTimeout(context.Background(), hintsTimeout)
	defer stop()
	var all toolHints
	params := []byte("{}")
	failed := false                          // the server ended; one that does not answer is not asked again
	for pages := protocol.NewPages(100); ; { // a server that has no last one is not believed
		m, err := l.ask(ctx, "tools/list", params, in)
		if err != nil {
			s.m.logger.Debug("tools not listed", "session", s.Name(), "error", err)
			failed = ctx.Err() == nil
			break
		}
		s.events.toolsPage(m.Result)
		page := readPage(m.Result)
		all.learn(&page, s.m.added)
		cursor, _, err := pages.Next(m.Result)
		if m.Error != nil {
			err = fmt.Errorf("the server answers %.200s", m.Error)
		}
		if err != nil {
			s.m.logger.Warn("not all tools listed: calls of the others are taken for unsafe to repeat", "session", s.Name(), "error", err)
		}
		if cursor == nil || err != nil {
			break
		}
		params, _ = jsonrpc.Set([]byte("{}"), cursor, "cursor")
	}
	s.mu.Lock()
	current := s.tools.listed == listed // else it is an old list
	if current && !failed {
		s.tools.safe, s.tools.changes, s.tools.headed, s.tools.complete = all.safe, all.changes, all.headed, true
		s.tools.common = false
		s.tools.shaped, s.tools.clash, s.tools.nested = all.shaped, all.clash, all.nested
		s.patience.nested.Store(all.nested)
	}
	if current {
		s.tools.learning = nil
	}
	close(done)
	s.mu.Unlock()
	if current && !failed && s.m.shared != nil && len(all.safe) > 0 {
		s.noteSession(nil, true) // the next owner cannot ask before it opens a backend
		s.log.Flush()
	}
}

// Package handoff hands calls off: a request that takes longer than hosts wait is answered with a handle, and goes on in
// another call. Its client asks for that call with tools of ours (tools.go). See docs/decisions/0027-hand-off.md.
package handoff

import (
	"bytes"
	"log/slog"
	"time"

	"holdfast/internal/feature/handofftext"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/ticket"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// An After says after which time calls of a tool of a server are handed off, if their clients do not know tasks; 0 or less:
// never. The time for [handofftext.ToolWait] is above 0 if calls of any tool of the server are handed off. An After returns at
// once: it is called with locks held.
type After func(server, tool string, host hosts.Host) time.Duration

// Handles is the [session.Addition] that hands off the calls of one manager.
type Handles struct {
	sessions *session.Manager
	after    After // nil: no call is handed off
	tasks    bool  // calls of modern clients may become tasks
	logger   *slog.Logger
}

// New returns the function for [session.Options] that makes the handles of a manager. If after is nil no call is handed off.
func New(after After) func(*session.Manager, *session.Options) session.Addition {
	return func(m *session.Manager, o *session.Options) session.Addition {
		h := &Handles{sessions: m, after: after, tasks: o.Polls, logger: o.Logger}
		if o.Stateless {
			h.after = nil
		}
		return h
	}
}

// retry is how long after a hand-off that failed it is tried again.
const retry = time.Second

// IsOn reports whether calls are handed off here.
func (h *Handles) IsOn() bool { return h.after != nil }

// Offers reports whether calls are handed off to the client of a request. A client that knows tasks gets tasks.
func (h *Handles) Offers(s *session.Session, m *jsonrpc.Message, host hosts.Host) bool {
	host.Heard = true
	return h.IsOn() && h.after(s.Server(), handofftext.ToolWait, host) > 0 && !s.Polls(m)
}

// Patience returns after which time a request is handed off; 0: never. A client that refuses hand-offs in _meta waits for as
// long as it takes.
func (h *Handles) Patience(c *session.Call, m *jsonrpc.Message, host hosts.Host) time.Duration {
	s := c.Session()
	if m.Method != protocol.MethodCallTool || !h.Offers(s, m, host) {
		return 0
	}
	tool := tools.Called(m)
	if handofftext.IsTool(tool) || c.IsPolled(m) || string(jsonrpc.Field(m.Params, "_meta", handofftext.Meta)) == "false" {
		return 0
	}
	return h.after(s.Server(), tool, host)
}

// Sent returns a request as the backend gets it. It tells a backend that hands calls off itself, which its tools show, not to
// do so in two cases: the request is a task, or may become one, and would end with a handle; or the backend's tools have other
// names here, so that its handle is of no use to the client.
func (h *Handles) Sent(c *session.Call, m jsonrpc.Message) jsonrpc.Message {
	if m.Method != protocol.MethodCallTool {
		return m
	}
	s := c.Session()
	nested, deferred := s.Tools.Nests(), c.IsDeferred()
	if !nested && !deferred && (s.Modern() == "" || !h.tasks) {
		return m // the usual case
	}
	clash := s.Tools.Clashes() && !handofftext.IsTool(tools.Called(&m)) && (deferred || s.Polls(&m))
	if !clash && (!nested || !h.Offers(s, &m, s.HostOf(&m))) {
		return m
	}
	params, ok := jsonrpc.Set(m.Params, []byte("false"), "_meta", handofftext.Meta)
	if !ok {
		return m
	}
	return protocol.Parsed(jsonrpc.AppendRequest(nil, m.ID, m.Method, params), m)
}

// mostWait returns how long one of our tools waits at most for a call of a tool; "": of any tool.
func (h *Handles) mostWait(s *session.Session, tool string, host hosts.Host) time.Duration {
	host = host.MayAsk()
	after := h.after(s.Server(), handofftext.ToolWait, host)
	if own := h.after(s.Server(), tool, host); own > 0 && tool != "" {
		after = min(after, own)
	}
	return handofftext.Most(after)
}

// Late hands a request off.
func (h *Handles) Late(l *session.Late) {
	s, tool := l.Session(), l.Tool()
	shaped, ok := s.Tools.IsShaped(tool)
	if !ok { // no client could call our tools
		h.logger.Warn("calls are not handed off: the server has a tool of that name", "session", s.Name(),
			"tools", handofftext.ToolWait+", "+handofftext.ToolCancel)
		return
	}
	modern := s.Modern() != ""
	if asking, sent := l.State(); asking && modern || !sent {
		// A modern client that is asked for input does not wait for an answer. A request that was
		// not sent to the backend has not begun.
		wait := retry
		if after := h.after(s.Server(), tool, s.HostOf(nil)); asking && after > 0 || !asking && after > 0 && after < wait {
			wait = after
		}
		l.Again(wait)
		return
	}
	err := l.PassOn(func(number uint64) []byte {
		is := handofftext.State{Handle: s.Tickets().Make(seal, number, nil), Status: handofftext.Working, Tool: tool}
		return handofftext.Answer(is, h.mostWait(s, tool, s.HostOf(nil)), handofftext.Form{Modern: modern, Bare: shaped})
	})
	if err != nil {
		h.logger.Warn("call not handed off", "session", s.Name(), "error", err)
		l.Again(retry)
	}
}

// seal is the purpose that is sealed into a handle.
const seal = "holdfast hand-off"

// Ref returns the handle that a request has as the argument of one of our tools, or "". A handle begins with the name of its session.
func (*Handles) Ref(method string, params []byte) string {
	if method != protocol.MethodCallTool || !bytes.Contains(params, []byte(handofftext.Prefix)) || !handofftext.IsTool(jsonrpc.String(jsonrpc.Field(params, "name"))) {
		return ""
	}
	if handle := jsonrpc.String(jsonrpc.Field(params, "arguments", "handle")); ticket.Is(handle) {
		return handle
	}
	return ""
}

package session

import (
	"context"
	"net/http"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/clientkind"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file has the interfaces by which the core knows a feature that has a package of its own, above this one. See [Options.Addition].

// An Addition is such a feature: it has tools beside those of a backend, and decides how calls that take long go on. Its methods may be called concurrently.
type Addition interface {
	ownTools
	patient
}

// ownTools are the tools that an addition offers to clients. Calls of them are calls like others, but no backend gets them,
// unless a tool of the backend has the same name.
type ownTools interface {
	// Tool reports whether name is that of one of the addition's tools, or, for nested, ends with such a name: so do
	// the tools that a backend which is a Holdfast, too, has from a server of its own.
	Tool(name string) (own, nested bool)
	// Offers reports whether the tools are offered to the client of a request. s.mu is held.
	Offers(s *Session, m *jsonrpc.Message, host hosts.Host) bool
	// Add adds the tools to a response to tools/list.
	Add(s *Session, response []byte, host hosts.Host) []byte
	// Run runs one of the tools, and returns its result.
	Run(ctx context.Context, c *Call, m *jsonrpc.Message, host hosts.Host) []byte
	// Ref returns the text by which a request of one of the tools names a call and its session, as a stream URL does; "": the request names no call.
	Ref(method string, params []byte) string
	// Find returns the session that a text of Ref names, if the session is the principal's. The errors are those of [Manager.FindSeal].
	Find(ref string, principal caller.Principal) (*Session, error)
	// Answer answers a query of another node: see [Elsewhere]. The error is a [*Redirect] or [ErrMoved] if the call is not on
	// this node, or that of a store which can't tell.
	Answer(ctx context.Context, principal caller.Principal, query []byte) ([]byte, error)
}

// A patient knows how long clients wait for their calls.
type patient interface {
	// IsOn reports whether calls can be late at all.
	IsOn() bool
	// Patience returns the time after which a request is late; 0: never. s.mu is held.
	Patience(c *Call, m *jsonrpc.Message, host hosts.Host) time.Duration
	// Late is told of a late request.
	Late(l *Late)
	// Heir returns the Heir for a call that is an heir. No other goroutine knows the call yet.
	Heir(c *Call) Heir
	// Sent returns the request that the backend gets for m.
	Sent(c *Call, m jsonrpc.Message) jsonrpc.Message
}

// An Heir hears of a call that goes on with the request of another one: see [Late.PassOn].
type Heir interface {
	// Asked is told of a request of the backend. data has the id under which clients know the request.
	Asked(data []byte)
}

// noAddition stands for an absent addition.
type noAddition struct{ Addition }

func (noAddition) Tool(string) (own, nested bool)                     { return false, false }
func (noAddition) Offers(*Session, *jsonrpc.Message, hosts.Host) bool { return false }
func (noAddition) Ref(string, []byte) string                          { return "" }
func (noAddition) Find(string, caller.Principal) (*Session, error)    { return nil, ErrNotFound }
func (noAddition) Answer(context.Context, caller.Principal, []byte) ([]byte, error) {
	return nil, ErrNotFound
}
func (noAddition) IsOn() bool                                                 { return false }
func (noAddition) Patience(*Call, *jsonrpc.Message, hosts.Host) time.Duration { return 0 }
func (noAddition) Heir(*Call) Heir                                            { return noAddition{} }
func (noAddition) Sent(_ *Call, m jsonrpc.Message) jsonrpc.Message            { return m }
func (noAddition) Asked([]byte)                                               {}

// Ref returns the text by which a call of one of our tools names a session: see [Addition].
func (m *Manager) Ref(method string, params []byte) string { return m.added.Ref(method, params) }

// FindCarrier returns the principal's carrier of a revision that a text of [Manager.Ref] names, and keeps it for a request as
// [Manager.Carrier] does. It returns nil if the session is no such carrier, or has ended. The errors are those of [Manager.FindSeal].
func (m *Manager) FindCarrier(ref, revision string, principal caller.Principal) (*Session, error) {
	s, err := m.added.Find(ref, principal)
	if err != nil || s.modern != revision {
		return nil, err
	}
	s.use.reserved.Add(1)
	if s.isClosed() {
		s.use.reserved.Add(-1)
		return nil, nil
	}
	return s, nil
}

// Answered answers a query that another node has for an [Addition].
func (m *Manager) Answered(ctx context.Context, principal caller.Principal, query []byte) ([]byte, error) {
	return m.added.Answer(ctx, principal, query)
}

// serveTool answers, on another goroutine, a request that calls one of our tools. If the server's tools are
// not known it lists them first, and delivers the request to the server if that has a tool of the name. It
// returns false if the server is known to have one.
func (s *Session) serveTool(ctx context.Context, c *Call, m jsonrpc.Message, header http.Header, failed func(error) *jsonrpc.Error) bool {
	if s.Tools.Clashes() {
		return false
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	begun := false
	rq := s.requests.with(c, m.ID, func(rq *inflight) {
		if begun = s.m.work.Start(); begun {
			rq.stop, rq.ours = stop, true
		}
	})
	if !begun {
		stop()
		return true // the request was cancelled, or all calls end now
	}
	go func() {
		defer s.m.work.Done()
		defer stop()
		if s.m.added.Ref(m.Method, m.Params) == "" && s.Tools.AwaitClash(ctx, &m, header) { // the tool is the server's
			s.requests.locked(func() { rq.ours = false })
			c.deliverOne(context.WithoutCancel(ctx), m, header, failed)
			return
		}
		c.AnswerOwn(m.ID, jsonrpc.AppendResult(nil, []byte(rq.id), c.runTool(ctx, &m)))
	}()
	return true
}

// runTool runs one of our tools, and returns its result.
func (c *Call) runTool(ctx context.Context, m *jsonrpc.Message) []byte {
	s := c.s
	host := s.HostOf(m)
	if info := jsonrpc.Field(m.Params, "_meta", protocol.MetaClientInfo); info != nil && s.modern != "" && s.m.opts.Host != nil {
		host = s.m.opts.Host(clientkind.Of(info).Name, "") // the carrier that ref names may be of another kind of clients
	}
	return s.m.added.Run(ctx, c, m, host)
}

// Polls reports whether the client of a modern request gets a task, as tasks are on and the request declares their extension.
func (s *Session) Polls(m *jsonrpc.Message) bool {
	return s.modern != "" && s.m.opts.Polls &&
		jsonrpc.Field(m.Params, "_meta", protocol.MetaClientCapabilities, "extensions", protocol.ExtensionTasks) != nil
}

// IsPolled reports whether a request is a task, or may become one: of revision 2025-11-25 by the param "task".
func (c *Call) IsPolled(m *jsonrpc.Message) bool {
	return c.deferred() != nil || jsonrpc.Field(m.Params, "task") != nil || m.Method == protocol.MethodCallTool && c.s.Polls(m)
}

// IsDeferred reports whether the call's client was answered when the call began.
func (c *Call) IsDeferred() bool { return c.deferred() != nil }

// HostOf returns what is known of the host that makes the request m; nil: of the host of the session's client.
func (s *Session) HostOf(m *jsonrpc.Message) (host hosts.Host) {
	locked(s, func() {
		if host = s.patience.host; m != nil {
			host = s.patience.hostOf(s, m)
		}
	})
	return host
}

// Hears reports whether the client reads the standalone stream.
func (s *Session) Hears() bool { return s.single || s.streams.IsRead(standalone) }

// Say writes a message to the call's stream that needs no answer from the call's own client.
func (c *Call) Say(data []byte) { c.emit(data, false) }

// Say writes a message to the standalone stream.
func (s *Session) Say(data []byte) { s.standalone.emit(data, false) }

// Caller returns the principal that the session belongs to, with the server.
func (s *Session) Caller() caller.Principal { return s.principal }

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

// What follows is what the core knows of a feature with a package of its own, above this one. See [Options.Addition].

// An Addition is such a feature: it has tools beside those of a backend, and says what becomes of calls that take long. Each of its
// methods may be called by several goroutines at once.
type Addition interface {
	ownTools
	patient
}

// Own tools are what an addition offers to clients. Calls of them are calls like others, that no backend gets, but where the
// backend's own tools have such a name.
type ownTools interface {
	// Tool reports whether a tool has the name of one of the addition's, or one that ends with such a name, as those have that
	// another Holdfast has from a server of its own.
	Tool(name string) (own, nested bool)
	// Offers reports whether the client of a request is offered the tools. s.mu is held.
	Offers(s *Session, m *jsonrpc.Message, host hosts.Host) bool
	// Add adds the tools to a response to tools/list.
	Add(s *Session, response []byte, host hosts.Host) []byte
	// Run runs one of the tools, and returns its result.
	Run(ctx context.Context, c *Call, m *jsonrpc.Message, host hosts.Host) []byte
	// Ref names the session of the call that a request of one of the tools is about, as a stream URL does; "": it names none.
	Ref(method string, params []byte) string
	// Find returns the session that such a text names, if it is the principal's. The error is as that of [Manager.FindSeal].
	Find(ref string, principal caller.Principal) (*Session, error)
	// Answer answers a query of another node: see [Elsewhere]. The error is a [*Redirect] or [ErrMoved] where what is asked for
	// is not here, or that of a store which can't tell.
	Answer(ctx context.Context, principal caller.Principal, query []byte) ([]byte, error)
}

// A patient knows how long the clients of calls wait.
type patient interface {
	// IsOn reports whether any call is late, ever.
	IsOn() bool
	// Patience returns after which time a request is late; 0: never. s.mu is held.
	Patience(c *Call, m *jsonrpc.Message, host hosts.Host) time.Duration
	// Late is told of a late request.
	Late(l *Late)
	// Heir returns what is to hear of an heir, which no other goroutine knows yet.
	Heir(c *Call) Heir
	// Sent returns a request as the backend gets it.
	Sent(c *Call, m jsonrpc.Message) jsonrpc.Message
}

// An Heir hears of a call that goes on with the request of another one: see [Late.PassOn].
type Heir interface {
	// Asked is told of a request of the backend, by the id that clients know it by.
	Asked(data []byte)
}

// noAddition is the addition where there is none.
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

// Ref names the session that a request is for since it calls one of our tools: see [Addition].
func (m *Manager) Ref(method string, params []byte) string { return m.added.Ref(method, params) }

// FindCarrier finds the carrier of a revision that a text of [Manager.Ref] names, if it is the principal's, and has it stay for a
// request as [Manager.Carrier] does. It returns nil if that is none, or has ended. The error is as that of [Manager.FindSeal].
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

// Answered answers what another node asks an [Addition].
func (m *Manager) Answered(ctx context.Context, principal caller.Principal, query []byte) ([]byte, error) {
	return m.added.Answer(ctx, principal, query)
}

// serveTool has a request answered by Holdfast that calls such a tool. Where the server's tools
// are not known they are listed before: if one has that name the request is for the server, and
// it is false.
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
		return true // it was cancelled, or all calls end now
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
		host = s.m.opts.Host(clientkind.Of(info).Name, "") // the carrier is the call's, and may be another kind's
	}
	return s.m.added.Run(ctx, c, m, host)
}

// Polls reports whether the client of a modern request is given a task, and asks for that.
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

// HostOf returns what is known of the host that makes a request; nil: of that of the session's client.
func (s *Session) HostOf(m *jsonrpc.Message) (host hosts.Host) {
	locked(s, func() {
		if host = s.patience.host; m != nil {
			host = s.patience.hostOf(s, m)
		}
	})
	return host
}

// Hears reports whether the client hears what is said on the standalone stream.
func (s *Session) Hears() bool { return s.single || s.streams.IsRead(standalone) }

// Say says something in the call's stream that needs no answer from the call's own client.
func (c *Call) Say(data []byte) { c.emit(data, false) }

// Say says something on the standalone stream.
func (s *Session) Say(data []byte) { s.standalone.emit(data, false) }

// Caller returns whose session it is, and where.
func (s *Session) Caller() caller.Principal { return s.principal }

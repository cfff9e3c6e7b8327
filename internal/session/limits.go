package session

import (
	"encoding/json"
	"net/http"

	"holdfast/internal/caller"
	"holdfast/internal/feature/tasktext"
	"holdfast/internal/flight"
	"holdfast/internal/limit"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows asks internal/limit whether calls may begin. It is asked last, when it is known
// that there is no such call yet, and before anything is on record of it.

// An Origin is where requests come from.
type Origin struct {
	Header  http.Header // of the HTTP request that brought them, if that was a request of their own
	Address string      // of the client, as [http.Request.RemoteAddr] has it; "" if nobody knows
	// Pass says that the requests were admitted before, and what they take. It is released if
	// they do not begin.
	Pass     *limit.Pass
	Admitted bool // they were, also if they take nothing
	// Guest is the session that they came from, as they are about a task of the one in which they
	// begin; "": that one.
	Guest stream.SessionKey
	// ID is that by which the client knows its request, as raw JSON, if the request has got another one; else nil.
	ID []byte
	// Conn is the connection on which they came, if it can be asked; else nil.
	Conn Connection
}

// A Connection is one that can be asked for its client.
type Connection = flight.Connection

// isLimited reports whether a request is one whose number is bounded: one that begins work. Those
// that open a session, or ask for what goes on, are not. One that listens counts as what it makes: see [listenWork].
func (m *Manager) isLimited(x *jsonrpc.Message) bool {
	if x.Kind != jsonrpc.Request {
		return false
	}
	switch x.Method {
	case protocol.MethodInitialize, protocol.MethodDiscover, protocol.MethodPing, protocol.MethodSubscriptions,
		protocol.MethodTaskGet, protocol.MethodTaskUpdate, protocol.MethodTaskCancel, protocol.MethodTaskResult:
		return false
	}
	return !protocol.Resumes(x.Method) && !m.callsOurTool(x)
}

// aboutBegun reports whether a request is about calls that were begun before: one about tasks,
// or a call of one of our tools.
func (s *Session) aboutBegun(msgs []jsonrpc.Message) bool {
	if len(msgs) != 1 {
		return false
	}
	m := &msgs[0]
	if s.owner(m.Method) != nil {
		return true
	}
	if !s.m.callsOurTool(m) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.tools.clash
}

// limited appends for each of the requests that are bounded the tool that it calls, or "".
func (m *Manager) limited(tools []string, msgs []jsonrpc.Message) []string {
	for i := range msgs {
		x := &msgs[i]
		switch {
		case !m.isLimited(x):
		case x.Method == protocol.MethodCallTool:
			tools = append(tools, toolOf(x))
		default:
			tools = append(tools, "")
		}
	}
	return tools
}

// passLimits asks whether a new call may begin. The error is a [*limit.Refusal].
func (s *Session) passLimits(msgs []jsonrpc.Message, from []Origin) (*limit.Pass, error) {
	if !s.m.opts.Limits.Bounds() {
		return nil, nil
	}
	by := limit.Caller{Server: s.Server(), Client: s.tenant.name}
	if len(from) > 0 {
		if from[0].Admitted || from[0].Pass != nil {
			return from[0].Pass, nil
		}
		by.Address = caller.TenantOf(caller.Principal{}, from[0].Address)
	}
	return s.m.admitCaller(by, msgs)
}

// Limited reports whether there are limits on what clients may begin.
func (m *Manager) Limited() bool { return m.opts.Limits.Bounds() }

// AdmitAlone asks whether a call may begin that has no session of its own yet, and needs one for itself
// alone. It does so before anything is opened for it. The error is a [*limit.Refusal].
func (m *Manager) AdmitAlone(principal caller.Principal, address string, msgs []jsonrpc.Message) (*limit.Pass, error) {
	if !m.opts.Limits.Bounds() {
		return nil, nil
	}
	return m.admitCaller(limit.Caller{Server: principal.Server(), Client: caller.TenantOf(principal, address), Address: caller.TenantOf(caller.Principal{}, address)}, msgs)
}

func (m *Manager) admitCaller(by limit.Caller, msgs []jsonrpc.Message) (*limit.Pass, error) {
	if work := listenWork(msgs); work > 0 {
		return nil, m.opts.Limits.AdmitWork(by, work)
	}
	var one [1]string
	tools := m.limited(one[:0], msgs)
	if len(tools) > 0 {
		return m.opts.Limits.Admit(by, tools...)
	}
	if m.beginsSession(msgs) {
		return nil, m.opts.Limits.AdmitAddress(by.Address)
	}
	return nil, nil
}

// listenWork returns how many calls a subscriptions/listen counts as: one for each resource that it subscribes
// to, and one if it asks for nothing but lists. 0: it is another request, or is about tasks of ours only.
func listenWork(msgs []jsonrpc.Message) int {
	if len(msgs) != 1 || msgs[0].Kind != jsonrpc.Request || msgs[0].Method != protocol.MethodSubscriptions {
		return 0
	}
	raw := jsonrpc.Field(msgs[0].Params, "notifications")
	var filter struct { // decoded as it is by package translate: members in other letters count, too
		URIs []json.RawMessage `json:"resourceSubscriptions"`
	}
	_ = json.Unmarshal(raw, &filter) // what is wrong begins nothing
	if len(filter.URIs) == 0 && jsonrpc.Field(raw, "taskIds") != nil && tasktext.AsksForNothingElse(raw) {
		return 0
	}
	return max(len(filter.URIs), 1)
}

// AdmitList asks whether a request may be served that looks for all calls or tasks of a client. The error is a
// [*limit.Refusal].
func (m *Manager) AdmitList(principal caller.Principal, address string) error {
	if !m.opts.Limits.Bounds() {
		return nil
	}
	return m.opts.Limits.AdmitWork(limit.Caller{Server: principal.Server(), Client: caller.TenantOf(principal, address), Address: caller.TenantOf(caller.Principal{}, address)}, 1)
}

// beginsSession reports whether messages begin with a request that opens a session, and for which
// [Manager.New] has not been asked yet.
func (m *Manager) beginsSession(msgs []jsonrpc.Message) bool {
	return len(msgs) > 0 && (msgs[0].Method == protocol.MethodDiscover || msgs[0].Method == protocol.MethodInitialize && m.opts.Stateless)
}

// holdLimits counts requests of a session that was taken over. They have begun, and are not refused.
func (s *Session) holdLimits(msgs []jsonrpc.Message) *limit.Pass {
	if !s.m.opts.Limits.Bounds() {
		return nil
	}
	return s.m.opts.Limits.Hold(limit.Caller{Server: s.Server(), Client: s.tenant.name}, s.m.limited(nil, msgs)...)
}

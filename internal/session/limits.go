package session

import (
	"net/http"

	"holdfast/internal/limit"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// What follows asks internal/limit whether calls may begin. It is asked last, when it is known
// that there is no such call yet, and before anything is on record of it.

// An Origin is where requests come from.
type Origin struct {
	Header  http.Header // of the HTTP request that brought them, if that was a request of their own
	Address string      // of the client, as [http.Request.RemoteAddr] has it; "" if nobody knows
	// Pass says that the requests were admitted before, and what they take. It is released if
	// they do not begin.
	Pass *limit.Pass
}

// isLimited reports whether a request is one whose number is bounded: one that begins work. Those
// that open a session, ask for what goes on, or listen, are not.
func (s *Session) isLimited(m *jsonrpc.Message) bool {
	if m.Kind != jsonrpc.Request {
		return false
	}
	switch m.Method {
	case protocol.MethodInitialize, protocol.MethodDiscover, protocol.MethodPing, protocol.MethodSubscriptions,
		protocol.MethodTaskGet, protocol.MethodTaskUpdate, protocol.MethodTaskCancel, protocol.MethodTaskList, protocol.MethodTaskResult:
		return false
	}
	return !protocol.Resumes(m.Method) && !s.callsOurTool(m)
}

// limited appends for each of the requests that are bounded the tool that it calls, or "".
func (s *Session) limited(tools []string, msgs []jsonrpc.Message) []string {
	for i := range msgs {
		m := &msgs[i]
		switch {
		case !s.isLimited(m):
		case m.Method == protocol.MethodCallTool:
			tools = append(tools, toolOf(m))
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
		if from[0].Pass != nil {
			return from[0].Pass, nil
		}
		by.Address = TenantOf("", from[0].Address)
	}
	var one [1]string
	tools := s.limited(one[:0], msgs)
	if len(tools) == 0 {
		if s.beginsNothing(msgs) {
			return nil, nil
		}
		return nil, s.m.opts.Limits.AdmitAddress(by.Address)
	}
	return s.m.opts.Limits.Admit(by, tools...)
}

// beginsNothing reports whether there is no request among the messages with which clients begin
// that have no session.
func (s *Session) beginsNothing(msgs []jsonrpc.Message) bool {
	return len(msgs) == 0 || msgs[0].Method != protocol.MethodDiscover && (msgs[0].Method != protocol.MethodInitialize || !s.m.opts.Stateless)
}

// holdLimits counts requests of a session that was taken over. They have begun, and are not refused.
func (s *Session) holdLimits(msgs []jsonrpc.Message) *limit.Pass {
	if !s.m.opts.Limits.Bounds() {
		return nil
	}
	return s.m.opts.Limits.Hold(limit.Caller{Server: s.Server(), Client: s.tenant.name}, s.limited(nil, msgs)...)
}

// Package admission asks internal/limit whether calls of clients may begin. It is asked last: after the search for an earlier call of
// the same request, and before the new call is recorded.
package admission

import (
	"encoding/json"

	"holdfast/internal/caller"
	"holdfast/internal/feature/tasktext"
	"holdfast/internal/limit"
	"holdfast/internal/protocol"
	"holdfast/internal/tools"
	"holdfast/jsonrpc"
)

// A Gate asks the limits.
type Gate struct {
	*limit.Limiter
	Stateless bool                        // an initialize is counted for its address here, and not when its session opens
	IsOurs    func(*jsonrpc.Message) bool // reports whether a request calls a tool of our own
}

// of returns a client as the limits know it, by its principal and its address.
func of(principal caller.Principal, address string) limit.Caller {
	return limit.Caller{Server: principal.Server(), Client: caller.TenantOf(principal, address), Address: caller.TenantOf(caller.Principal{}, address)}
}

// Alone asks whether a call may begin that needs a session for itself alone, before the session is
// opened. The error is a [*limit.Refusal].
func (g *Gate) Alone(principal caller.Principal, address string, msgs []jsonrpc.Message) (*limit.Pass, error) {
	if !g.Bounds() {
		return nil, nil
	}
	return g.Call(of(principal, address), msgs)
}

// List asks whether a request for all calls or tasks of a client may be served. The error is a
// [*limit.Refusal].
func (g *Gate) List(principal caller.Principal, address string) error {
	if !g.Bounds() {
		return nil
	}
	return g.AdmitWork(of(principal, address), 1)
}

// Call asks whether a call may begin. The error is a [*limit.Refusal].
func (g *Gate) Call(by limit.Caller, msgs []jsonrpc.Message) (*limit.Pass, error) {
	if work := listenWork(msgs); work > 0 {
		return nil, g.AdmitWork(by, work)
	}
	var one [1]string
	if called := g.limited(one[:0], msgs); len(called) > 0 {
		return g.Admit(by, called...)
	}
	if g.beginsSession(msgs) {
		return nil, g.AdmitAddress(by.Address)
	}
	return nil, nil
}

// Hold counts requests that have begun at another node. They are not refused.
func (g *Gate) Hold(by limit.Caller, msgs []jsonrpc.Message) *limit.Pass {
	return g.Limiter.Hold(by, g.limited(nil, msgs)...)
}

// IsLimited reports whether a request is limited as a call: it begins work. Requests that open a session, or ask
// for a call that goes on, are not. A subscriptions/listen counts as the calls that it makes: see listenWork.
func (g *Gate) IsLimited(x *jsonrpc.Message) bool {
	if x.Kind != jsonrpc.Request {
		return false
	}
	switch x.Method {
	case protocol.MethodInitialize, protocol.MethodDiscover, protocol.MethodPing, protocol.MethodSubscriptions,
		protocol.MethodTaskGet, protocol.MethodTaskUpdate, protocol.MethodTaskCancel, protocol.MethodTaskResult:
		return false
	}
	return !protocol.Resumes(x.Method) && !g.IsOurs(x)
}

// limited appends, for each limited request, the tool that it calls, or "".
func (g *Gate) limited(called []string, msgs []jsonrpc.Message) []string {
	for i := range msgs {
		x := &msgs[i]
		switch {
		case !g.IsLimited(x):
		case x.Method == protocol.MethodCallTool:
			called = append(called, tools.Called(x))
		default:
			called = append(called, "")
		}
	}
	return called
}

// listenWork returns how many calls a subscriptions/listen counts as: one for each resource that it subscribes
// to, and one if it asks only for lists. 0: it is another request, or asks only for tasks of ours.
func listenWork(msgs []jsonrpc.Message) int {
	if len(msgs) != 1 || msgs[0].Kind != jsonrpc.Request || msgs[0].Method != protocol.MethodSubscriptions {
		return 0
	}
	raw := jsonrpc.Field(msgs[0].Params, "notifications")
	var filter struct { // decoded as in package translate, which ignores the case of members' names
		URIs []json.RawMessage `json:"resourceSubscriptions"`
	}
	_ = json.Unmarshal(raw, &filter) // a wrong filter begins nothing
	if len(filter.URIs) == 0 && jsonrpc.Field(raw, "taskIds") != nil && tasktext.AsksForNothingElse(raw) {
		return 0
	}
	return max(len(filter.URIs), 1)
}

// beginsSession reports whether messages begin with a request that opens a session, and that was
// not counted for its address yet.
func (g *Gate) beginsSession(msgs []jsonrpc.Message) bool {
	return len(msgs) > 0 && (msgs[0].Method == protocol.MethodDiscover || msgs[0].Method == protocol.MethodInitialize && g.Stateless)
}

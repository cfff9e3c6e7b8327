package session

import (
	"net/http"

	"holdfast/internal/again"
	"holdfast/internal/caller"
	"holdfast/internal/limit"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// An Origin is where requests come from.
type Origin struct {
	Header  http.Header // of the HTTP request that brought them, if they had one of their own
	Address string      // of the client, as [http.Request.RemoteAddr] has it; "" if it is not known
	// Pass has the slots of requests that were admitted before. It is released if they do not begin.
	Pass     *limit.Pass
	Admitted bool // they were admitted before, also if they take no slots
	// Guest is the session that the requests came from, as they are about a task of the session in which they begin; "": they came from that one.
	Guest stream.SessionKey
	// ID is the id by which the client knows its request, as raw JSON, if the request has got another id; else nil.
	ID []byte
	// Conn is the connection on which the requests came, if it can be asked; else nil.
	Conn Connection
}

// A Connection can be asked about its client.
type Connection = again.Connection

// aboutBegun reports whether msgs is one request about calls that were begun before: it is about tasks, or calls one of our tools.
func (s *Session) aboutBegun(msgs []jsonrpc.Message) bool {
	if len(msgs) != 1 {
		return false
	}
	m := &msgs[0]
	return s.owner(m.Method) != nil || s.m.Tools.CallsOwn(m) && !s.Tools.Clashes()
}

// passLimits returns the pass of a new call, if it may begin; nil: it needs none. The error is a [*limit.Refusal].
func (s *Session) passLimits(msgs []jsonrpc.Message, from []Origin) (*limit.Pass, error) {
	if !s.m.Gate.Bounds() {
		return nil, nil
	}
	by := limit.Caller{Server: s.Server(), Client: s.tenant.name}
	if len(from) > 0 {
		if from[0].Admitted || from[0].Pass != nil {
			return from[0].Pass, nil
		}
		by.Address = caller.TenantOf(caller.Principal{}, from[0].Address)
	}
	return s.m.Gate.Call(by, msgs)
}

// holdLimits counts requests of a session that was taken over. They have begun, and are not refused.
func (s *Session) holdLimits(msgs []jsonrpc.Message) *limit.Pass {
	if !s.m.Gate.Bounds() {
		return nil
	}
	return s.m.Gate.Hold(limit.Caller{Server: s.Server(), Client: s.tenant.name}, msgs)
}

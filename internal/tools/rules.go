package tools

import (
	"log/slog"

	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Rules are what lists have in common. They do not change.
type Rules struct {
	// Operator reports whether the operator says that a tool of a server may be called again. A panic of it is raised.
	Operator func(server, tool string) bool
	Own      Own
	Alone    bool // no other node takes sessions over
	Logger   *slog.Logger
}

// Own are tools of our own, beside those of servers.
type Own interface {
	// Tool reports whether a tool has the name of one of them, or one that ends with such a name.
	Tool(name string) (own, nested bool)
	// IsOn reports whether they are offered at all.
	IsOn() bool
}

// Owns reports whether a tool has the name of one of ours, if those are on.
func (r *Rules) Owns(tool string) bool {
	own, _ := r.Own.Tool(tool)
	return own && r.Own.IsOn()
}

// Repeatable reports whether all requests to a server may be made again without harm, as far as that is known without
// the server's list.
func (r *Rules) Repeatable(server string, msgs []jsonrpc.Message) (all bool) {
	var err error // then nobody has called them safe
	defer panics.Catch(&err, r.Logger, "", "")
	return Repeatable(msgs, func(m *jsonrpc.Message) bool { return r.Operator(server, Called(m)) })
}

// Repeatable reports whether all requests among msgs may be made again without harm; tool says so of a tools/call.
func Repeatable(msgs []jsonrpc.Message, tool func(*jsonrpc.Message) bool) bool {
	for i := range msgs {
		m := &msgs[i]
		if m.Kind == jsonrpc.Request && !protocol.RetrySafe(m.Method, func() bool { return tool(m) }) {
			return false
		}
	}
	return true
}

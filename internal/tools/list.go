// Package tools has the facts that servers tell of their tools: which may be called again, and which arguments of a call headers
// repeat. It asks a server for its list if need be, and knows a session as a [Server] only.
package tools

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A List has the facts that one session knows of its server's tools. Its methods may be called concurrently.
// While the List's lock is held no other lock is taken, and no other code called but [Own].
type List struct {
	of     Server
	rules  *Rules
	nested atomic.Bool // the last of hints.nested that was learned; read without a lock

	mu      sync.Mutex
	hints           // of this version
	version int32   // how often the list has changed
	reading *reader // nil if the list is not being read
}

// Init sets the server that has the tools, and the rules. It is called first.
func (l *List) Init(of Server, rules *Rules) { l.of, l.rules = of, rules }

// is returns the result of what, called with the lock held. It has no type parameter: the functions would be on the heap then.
func (l *List) is(what func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return what()
}

// Version returns a number of the list, above 0, which changes when the list does.
func (l *List) Version() int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version + 1
}

// Forget notes that the server's list has changed.
func (l *List) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hints, l.version, l.reading = hints{}, l.version+1, nil
}

// Learn takes in the result of a client's tools/list, if version, that of when the result came, is still the list's. whole says that the
// client asked for this version from its beginning: the list is complete then, if the result is its last page. Learn reports whether the list
// has become complete, with tools that may be called again.
func (l *List) Learn(result []byte, version int32, whole bool) (news bool) {
	p := readPage(result)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version+1 != version { // the list has changed while the page was read
		return false
	}
	l.learn(&p, l.rules.Own)
	l.nested.Store(l.hints.nested)
	if !p.last || !whole || l.complete {
		return false
	}
	l.complete = true
	return len(l.repeatable) > 0
}

// Restore takes in tools that another node knows as ones that may be called again. They are taken for tools that may change something.
func (l *List) Restore(repeatable []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range repeatable {
		set(&l.repeatable, name, true, true)
		set(&l.changes, name, true, true)
	}
}

// Names returns the tools that are known to say that they may be called again, sorted.
func (l *List) Names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.repeatable))
}

// IsComplete reports whether all tools are known.
func (l *List) IsComplete() bool { return l.is(func() bool { return l.complete }) }

// IsReading reports whether the list is being read.
func (l *List) IsReading() bool { return l.is(func() bool { return l.reading != nil }) }

// SaysRepeatable reports whether a tool is known to say that it may be called again.
func (l *List) SaysRepeatable(tool []byte) bool {
	return l.is(func() bool { return l.repeatable[string(tool)] })
}

// OnlyReads reports whether a tool is known to do nothing but read.
func (l *List) OnlyReads(tool []byte) bool {
	return l.is(func() bool { return l.repeatable[string(tool)] && !l.changes[string(tool)] })
}

// IsRepeatable reports whether the list, as far as it is known, or the operator says that a tool may be called again.
func (l *List) IsRepeatable(tool string) bool {
	return l.is(func() bool { return l.repeatable[tool] }) || l.rules.Operator(l.of.Server(), tool)
}

// Repeatable reports whether the tool of a tools/call may be called again. If that is not known it has the list read, once, and waits for it a little: see [Patience].
func (l *List) Repeatable(ctx context.Context, m *jsonrpc.Message, header http.Header) bool {
	name := Called(m)
	if l.rules.Operator(l.of.Server(), name) {
		return true
	}
	l.mu.Lock()
	repeatable, known := l.repeatable[name] || !l.clash && l.rules.Owns(name), l.complete
	l.mu.Unlock()
	if repeatable || known {
		return repeatable
	}
	if r := l.start(ctx, m, header); r != nil {
		r.await(ctx, time.Until(r.began.Add(Patience)))
	}
	return l.is(func() bool { return l.repeatable[name] })
}

// Light reports whether a request may start light, so that nothing of it is stored. If other nodes may take sessions over, a request is not light
// that is not repeatable, or of which others than its client are told: a node that forwards it, and one that takes it over, would both make it again.
func (l *List) Light(ctx context.Context, m *jsonrpc.Message, header http.Header) bool {
	if !l.rules.Alone && l.rules.Told != nil && l.rules.Told(m.Params) {
		return false
	}
	return protocol.RetrySafe(m.Method, func() bool { return l.Repeatable(ctx, m, header) }) || l.rules.Alone && protocol.Unrecorded(m.Method)
}

// CheckHeaders returns an error unless the headers of a modern tools/call repeat the arguments that the tool's inputSchema says they
// do. The list is read before the first call. A call that waits for it in vain is not checked.
func (l *List) CheckHeaders(ctx context.Context, m *jsonrpc.Message, header http.Header) error {
	if m.Method != protocol.MethodCallTool {
		return nil
	}
	l.awaitAll(ctx, m, header, longPatience)
	var headers []protocol.ParamHeader
	l.mu.Lock()
	if len(l.headed) > 0 {
		headers = l.headed[Called(m)] // they never change
	}
	l.mu.Unlock()
	if len(headers) == 0 {
		return nil
	}
	arguments := protocol.Arguments(headers, jsonrpc.Field(m.Params, "arguments"))
	for i, h := range headers {
		if err := h.Check(header.Values(protocol.HeaderParam+h.Name), arguments[i]); err != nil {
			return err
		}
	}
	return nil
}

// IsShaped reports whether a tool has an outputSchema, or may have one. If that is not known it has the list read. It is not ok if
// the server has a tool with the name of one of ours.
func (l *List) IsShaped(name string) (shaped, ok bool) {
	if l.is(func() bool { _, known := l.shaped[name]; return !known }) {
		l.awaitAll(context.Background(), nil, http.Header{}, longPatience)
	}
	return l.is(func() bool { shaped, known := l.shaped[name]; return shaped || !known }), !l.Clashes()
}

// Clashes reports whether the server is known to have a tool with the name of one of ours.
func (l *List) Clashes() bool { return l.is(func() bool { return l.clash }) }

// AwaitClash is Clashes once all tools are known, if they can be learned.
func (l *List) AwaitClash(ctx context.Context, m *jsonrpc.Message, header http.Header) bool {
	l.awaitAll(ctx, m, header, mostReading)
	return l.Clashes()
}

// Nests reports whether the server has tools with the names of ours after a prefix.
func (l *List) Nests() bool { return l.nested.Load() }

// Rules are common to all lists of a node. They do not change.
type Rules struct {
	// Operator reports whether the operator says that a tool of a server may be called again. Its panics reach the caller.
	Operator func(server, tool string) bool
	Own      Own
	// Told reports whether others than its client are told of the outcome of a request with params. nil: they never are.
	Told   func(params []byte) bool
	Alone  bool // no other node takes sessions over
	Logger *slog.Logger
}

// Own are tools of our own, beside those of servers. Its methods may be called with a List's lock held.
type Own interface {
	// Tool reports whether name is that of one of them, or, for nested, ends with such a name.
	Tool(name string) (own, nested bool)
	// IsOn reports whether they are offered at all.
	IsOn() bool
}

// Owns reports whether a tool has the name of one of ours, if those are on.
func (r *Rules) Owns(tool string) bool {
	own, _ := r.Own.Tool(tool)
	return own && r.Own.IsOn()
}

// CallsOwn reports whether a request calls a tool with the name of one of ours, if those are on.
func (r *Rules) CallsOwn(m *jsonrpc.Message) bool {
	return r.Own.IsOn() && m.Method == protocol.MethodCallTool && r.Owns(Called(m)) // the last, as the name of the tool costs an allocation
}

// TellsOthers reports whether others than its client are told of the outcome of a request among msgs.
func (r *Rules) TellsOthers(msgs []jsonrpc.Message) bool {
	return r.Told != nil && slices.ContainsFunc(msgs, func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request && r.Told(m.Params) })
}

// Repeatable reports whether all requests to a server may be made again without harm, as far as their methods and the operator say.
func (r *Rules) Repeatable(server string, msgs []jsonrpc.Message) (all bool) {
	var err error // on a panic they are not safe
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

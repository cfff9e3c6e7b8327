package tools

import (
	"encoding/json"
	"maps"
	"reflect"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Called returns the name of the tool that a tools/call calls.
func Called(m *jsonrpc.Message) string { return jsonrpc.String(jsonrpc.Field(m.Params, "name")) }

// A page is what matters here of one page of a tools/list result.
type page struct {
	Tools []tool `json:"tools"`
	last  bool   // no other page follows
}

// A tool is what matters of a tool.
type tool struct {
	Name        string          `json:"name"`
	InputSchema json.RawMessage `json:"inputSchema"`
	Output      json.RawMessage `json:"outputSchema"`
	Annotations struct {
		ReadOnly   bool `json:"readOnlyHint"`
		Idempotent bool `json:"idempotentHint"`
	} `json:"annotations"`
	headers []protocol.ParamHeader // the arguments that headers repeat
}

func (t *tool) isRepeatable() bool { return t.Annotations.ReadOnly || t.Annotations.Idempotent }

// readPage reads one page of a tools/list result. That takes long if there are many tools: no lock is to
// be held.
func readPage(result []byte) (p page) {
	if json.Unmarshal(result, &p) != nil {
		return page{}
	}
	p.last = p.Tools != nil && protocol.NextCursor(result) == nil
	for i := range p.Tools {
		// Clients do not show a tool whose annotations are invalid: it has none then, and there is nothing to check.
		p.Tools[i].headers, _ = protocol.ParamHeaders(p.Tools[i].InputSchema)
	}
	return p
}

// Hints returns the tools of a page of a tools/list result, and which of them say that they may be called again.
func Hints(result []byte) map[string]bool {
	p := readPage(result)
	all := make(map[string]bool, len(p.Tools))
	for i := range p.Tools {
		all[p.Tools[i].Name] = p.Tools[i].isRepeatable()
	}
	return all
}

// hints are what is known of a server's tools.
type hints struct {
	complete   bool                              // every tool has been seen
	repeatable map[string]bool                   // tools that say they may be called again
	changes    map[string]bool                   // of those, the ones that do not say that they only read
	headed     map[string][]protocol.ParamHeader // tools with arguments that headers repeat
	shaped     map[string]bool                   // tools, and whether they have an outputSchema; nil if our own are off
	common     bool                              // the maps are other lists', too: see [hints.own]
	clash      bool                              // there is a tool of the name of one of ours
	nested     bool                              // there is one of such a name after a prefix: a Holdfast is behind merged servers
}

// learn takes in a page. If our own tools are on it matters which tools have an outputSchema.
func (h *hints) learn(p *page, ours Own) {
	h.own()
	shapes := ours.IsOn()
	for i := range p.Tools {
		t := &p.Tools[i]
		own, nested := ours.Tool(t.Name)
		h.clash = h.clash || own
		h.nested = h.nested || !h.clash && nested
		set(&h.repeatable, t.Name, true, t.isRepeatable())
		set(&h.changes, t.Name, true, t.isRepeatable() && !t.Annotations.ReadOnly)
		set(&h.headed, t.Name, t.headers, len(t.headers) > 0)
		set(&h.shaped, t.Name, len(t.Output) > 0, shapes)
	}
}

// set gives a tool a value in a map, which is made when it is needed, or takes the tool out of it.
func set[V any](of *map[string]V, tool string, value V, has bool) {
	switch {
	case !has:
		delete(*of, tool)
	case *of == nil:
		*of = map[string]V{tool: value}
	default:
		(*of)[tool] = value
	}
}

// equal reports whether both say the same of the same tools.
func (h *hints) equal(other *hints) bool {
	return maps.Equal(h.repeatable, other.repeatable) && maps.Equal(h.changes, other.changes) && maps.Equal(h.shaped, other.shaped) &&
		reflect.DeepEqual(h.headed, other.headed)
}

// own gives h maps of its own, which may be changed.
func (h *hints) own() {
	if h.common {
		h.repeatable, h.changes, h.headed, h.shaped, h.common = maps.Clone(h.repeatable), maps.Clone(h.changes), maps.Clone(h.headed), maps.Clone(h.shaped), false
	}
}

// Common has what is known of the tools of servers, by their names, as the lists of quiet sessions share it. One goroutine uses it.
type Common map[string]hints

// Share has a list share its maps with the last one of its server, if they are equal.
func (c Common) Share(l *List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &l.hints
	if h.common || !h.complete {
		return
	}
	server := l.of.Server()
	if other, ok := c[server]; ok && other.equal(h) {
		h.repeatable, h.changes, h.headed, h.shaped = other.repeatable, other.changes, other.headed, other.shaped
	} else {
		c[server] = hints{repeatable: h.repeatable, changes: h.changes, headed: h.headed, shaped: h.shaped}
	}
	h.common = true
}

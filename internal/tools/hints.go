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

// A page has the fields of one page of a tools/list result that are used here.
type page struct {
	Tools []tool `json:"tools"`
	last  bool   // no other page follows
}

// A tool has the fields of a tool that are used here.
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

// readPage reads one page of a tools/list result. That takes long if there are many tools: the caller must hold no lock.
func readPage(result []byte) (p page) {
	if json.Unmarshal(result, &p) != nil {
		return page{}
	}
	p.last = p.Tools != nil && protocol.NextCursor(result) == nil
	for i := range p.Tools {
		// Clients do not show a tool with invalid header annotations: it gets no headers, and calls of it are not checked.
		p.Tools[i].headers, _ = protocol.ParamHeaders(p.Tools[i].InputSchema)
	}
	return p
}

// Hints returns the tools of a page of a tools/list result, and whether each says that it may be called again.
func Hints(result []byte) map[string]bool {
	p := readPage(result)
	all := make(map[string]bool, len(p.Tools))
	for i := range p.Tools {
		all[p.Tools[i].Name] = p.Tools[i].isRepeatable()
	}
	return all
}

// hints are the known facts about a server's tools.
type hints struct {
	complete   bool                              // every tool has been seen
	repeatable map[string]bool                   // tools that say they may be called again
	changes    map[string]bool                   // those of repeatable that do not say that they only read
	headed     map[string][]protocol.ParamHeader // tools with arguments that headers repeat
	shaped     map[string]bool                   // tools, and whether they have an outputSchema; nil if our own are off
	common     bool                              // other lists have the maps, too: see [hints.own]
	clash      bool                              // a tool has the name of one of ours
	nested     bool                              // a tool has such a name after a prefix: one of several merged servers is a Holdfast
}

// learn takes in a page. It notes which tools have an outputSchema only if our own tools are on.
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

// set gives a tool a value in a map, which it makes if need be, or, if has is false, removes the tool from it.
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

// Common has the facts about the tools of servers, by the servers' names, that the lists of quiet sessions share. One goroutine uses it.
type Common map[string]hints

// Share has a list share its maps with the last list of its server, if these are equal.
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

package config

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A section is a member of the file that has servers.
type section struct {
	name    string
	servers named[hostServer]
	// unit is the unit of a server's timeout. 0: hosts differ.
	unit time.Duration
	kind kind
}

// A kind is a kind of host, if its variables and settings differ from those of others.
type kind int

const (
	ofGemini   kind = iota + 1 // $NAME is a variable, too, as with Crush
	ofOpencode                 // variables are {env:NAME} and {file:PATH}
	ofAmp
)

func (r *reader) sections() []section {
	all := []section{
		{name: "mcpServers", servers: r.host.McpServers},
		{name: "servers", servers: r.host.Servers},
		{name: "context_servers", servers: r.host.ContextServers, unit: time.Second},
		{name: "mcp.servers", servers: r.host.MCP.Servers},
		{name: "mcp", servers: r.host.MCP.others, kind: ofOpencode},
		{name: "amp.mcpServers", servers: r.host.AmpServers, kind: ofAmp},
	}
	if r.host.isGemini(r.file) {
		all[0].unit, all[0].kind = time.Millisecond, ofGemini
	}
	if slices.ContainsFunc(all[4].servers, func(m member[hostServer]) bool { // Crush
		return slices.Contains([]string{"stdio", "http", "sse"}, m.Value.Type.value)
	}) {
		all[4].unit, all[4].kind = time.Second, ofGemini
	}
	return all
}

// isGemini reports whether a file is one of the Gemini CLI: it is in its folder, or has members
// that only this host knows.
func (h *hostFile) isGemini(file string) bool {
	abs, err := filepath.Abs(file)
	return err == nil && slices.Contains([]string{".gemini", ".qwen"}, filepath.Base(filepath.Dir(abs))) ||
		h.MCP.Allowed != nil || h.MCP.Excluded != nil || h.Allow != nil || h.Excluded != nil ||
		slices.ContainsFunc(h.McpServers, func(m member[hostServer]) bool {
			s := &m.Value
			return s.HTTP.value != "" || s.Trust.at > 0 || s.Include != nil || s.Exclude != nil
		})
}

// excludes reports whether the host does not use a server of its file.
func (r *reader) excludes(in section, s *member[hostServer]) bool {
	h := r.host
	is := func(t text) bool { return t.value == s.Name }
	not := func(allowed []text) bool { return allowed != nil && !slices.ContainsFunc(allowed, is) }
	return s.Value.Disabled || s.Value.Enabled != nil && !*s.Value.Enabled ||
		in.name == "mcpServers" && (slices.ContainsFunc(h.MCP.Excluded, is) || slices.ContainsFunc(h.Excluded, is) || not(h.MCP.Allowed) || not(h.Allow)) ||
		in.kind == ofAmp && r.rejected(&s.Value)
}

// isElsewhere reports whether the server's command or URL is in an extension of Zed, or in another file of
// opencode, and not in this file.
func (h *hostServer) isElsewhere(in section) bool {
	return (in.name == "context_servers" || in.kind == ofOpencode) && h.Command.value == "" && h.URL.value == ""
}

// ignore notes that a member of a server is not used.
func (r *reader) ignore(at int, member string) {
	r.ignored = append(r.ignored, Ignored{r.placeOf(at), member})
}

// hostSettings returns the settings that a host has for a server, or else those for all
// servers.
func (r *reader) hostSettings(s *member[hostServer], in section) defaults {
	h, d := &s.Value, r.host.Holdfast.defaults
	if t := h.Timeout; t.at > 0 {
		if within := t.number * float64(in.unit); in.unit == 0 {
			r.ignore(t.at, join(join(in.name, s.Name), "timeout"))
		} else if within >= 1 && within < math.MaxInt64 {
			d.Timeout = &duration{t.at, time.Duration(within)}
		}
	}
	own := h.Holdfast != nil && h.Holdfast.Tools != nil
	if own && (h.Include != nil || h.Exclude != nil) {
		r.failf(s.At, "the server %q has tools in includeTools or excludeTools, and in the settings of holdfast: put them in one place", s.Name)
	}
	var names []string
	tools := &toolList{Deny: h.Exclude}
	for _, c := range []struct {
		name  string
		allow []text
	}{{"includeTools", h.Include}, {"tools", h.Tools.allow}, {"enabled_tools", h.On}} {
		if c.allow != nil && !slices.ContainsFunc(c.allow, func(t text) bool { return t.value == "*" }) {
			names, tools.Allow = append(names, c.name), c.allow
		}
	}
	if own && h.Holdfast.Tools.Allow != nil && names != nil {
		names = append(names, `"allow" of holdfast`)
	}
	if len(names) > 1 {
		r.failf(s.At, "the server %q says in %s which tools it has: put them in one place", s.Name, strings.Join(names, " and "))
	}
	if all := d.Tools; all != nil { // tools that are denied for all servers stay denied
		tools.Deny = slices.Concat(all.Deny, h.Exclude)
		if tools.Allow == nil {
			tools.Allow = all.Allow
		}
	}
	d.Tools = tools
	return d
}

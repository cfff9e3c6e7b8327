package config

import (
	"math"
	"path/filepath"
	"slices"
	"time"
)

// A section is a member of the file that has servers.
type section struct {
	name    string
	servers named[hostServer]
	// unit is what the timeout of a server is counted in. 0: hosts differ.
	unit time.Duration
}

func (r *reader) sections() []section {
	all := []section{{name: "mcpServers", servers: r.host.McpServers}, {name: "servers", servers: r.host.Servers},
		{name: "context_servers", servers: r.host.ContextServers, unit: time.Second}}
	if r.gemini {
		all[0].unit = time.Millisecond
	}
	return all
}

// isGemini reports whether a file is one of the Gemini CLI: it is in its folder, or has members
// that only this host knows.
func (h *hostFile) isGemini(file string) bool {
	abs, err := filepath.Abs(file)
	return err == nil && filepath.Base(filepath.Dir(abs)) == ".gemini" ||
		h.MCP.Allowed != nil || h.MCP.Excluded != nil ||
		slices.ContainsFunc(h.McpServers, func(m member[hostServer]) bool {
			s := &m.Value
			return s.HTTP.value != "" || s.Trust.at > 0 || s.Include != nil || s.Exclude != nil
		})
}

// excludes reports whether the host has a server in its file that it does not use.
func (h *hostFile) excludes(in section, s *member[hostServer]) bool {
	is := func(t text) bool { return t.value == s.Name }
	return s.Value.Disabled || s.Value.Enabled != nil && !*s.Value.Enabled || in.name == "mcpServers" &&
		(slices.ContainsFunc(h.MCP.Excluded, is) || h.MCP.Allowed != nil && !slices.ContainsFunc(h.MCP.Allowed, is))
}

// ofExtension reports whether an extension of Zed knows what the server runs, and the file does
// not.
func (h *hostServer) ofExtension(in section) bool {
	return in.name == "context_servers" && h.Command.value == "" && h.URL.value == ""
}

// ignore notes that something of a server is not used.
func (r *reader) ignore(at int, member string) {
	line, column := r.place(at)
	r.ignored = append(r.ignored, Ignored{line, column, member})
}

// hostSettings returns the settings that a host has for a server. Where it has none, they are
// those for all servers.
func (r *reader) hostSettings(s *member[hostServer], in section) defaults {
	h, d := &s.Value, r.host.Holdfast.defaults
	if t := h.Timeout; t.at > 0 {
		if within := t.number * float64(in.unit); in.unit == 0 {
			r.ignore(t.at, join(join(in.name, s.Name), "timeout"))
		} else if within >= 1 && within < math.MaxInt64 {
			d.Timeout = &duration{t.at, time.Duration(within)}
		}
	}
	if h.Include == nil && h.Exclude == nil {
		return d
	}
	if h.Holdfast != nil && h.Holdfast.Tools != nil {
		r.failf(s.At, "the server %q has tools in includeTools or excludeTools, and in the settings of holdfast: put them in one place", s.Name)
	}
	tools := &toolList{Allow: h.Include, Deny: h.Exclude}
	if all := d.Tools; all != nil { // what is denied for all servers stays so
		tools.Deny = slices.Concat(all.Deny, h.Exclude)
		if h.Include == nil {
			tools.Allow = all.Allow
		}
	}
	d.Tools = tools
	return d
}

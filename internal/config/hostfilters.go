package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// hostTools says which tools of a server a host uses: a list of names, in which "*" stands for all
// (Copilot CLI), one name, or an object with true or false for names.
type hostTools struct {
	at          int // 0: there is none
	allow, deny []text
}

// hostRule is a rule of amp.mcpPermissions: it allows or rejects servers that match.
type hostRule struct {
	Matches named[text] `json:"matches"`
	Action  text        `json:"action"`
	Allow   *bool       `json:"allow"`
}

// tools reads a [hostTools].
func (d *decoder) tools(from *hujson.Value, to *hostTools, path string) {
	to.at = from.StartOffset
	name := func(v *hujson.Value, s string) text { return text{v.StartOffset, s} }
	switch v := from.Value.(type) {
	case hujson.Literal:
		if v.Kind() != '"' {
			break
		}
		for one := range strings.SplitSeq(v.String(), ",") {
			to.allow = append(to.allow, name(from, strings.TrimSpace(one)))
		}
		return
	case *hujson.Array:
		to.allow = make([]text, len(v.Elements))
		for i := range v.Elements {
			l, ok := literal(&v.Elements[i], '"')
			if !ok {
				d.wrong(&v.Elements[i], path, "names of tools")
			}
			to.allow[i] = name(&v.Elements[i], l.String())
		}
		return
	case *hujson.Object:
		for i := range v.Members {
			m := &v.Members[i]
			l, ok := m.Value.Value.(hujson.Literal)
			if !ok || l.Kind() != 't' && l.Kind() != 'f' {
				d.failf(m.Name.StartOffset, `%s has a form that is not known: say which tools are served with "holdfast": {"tools": {"allow": […], "deny": […]}} in its place`, path)
				return
			}
			if !l.Bool() {
				to.deny = append(to.deny, name(&m.Name, m.Name.Value.(hujson.Literal).String()))
			}
		}
		return
	}
	d.wrong(from, path, `names of tools, as ["*"]`)
}

// hostSwitches switch tools of all servers on or off, by names that have the server's in them. They stand
// in objects with members for other things, too.
type hostSwitches struct {
	rules   []hostSwitch // the last that matches counts
	exclude []text       // a list in the object (Gemini CLI)
}

type hostSwitch struct {
	text
	on bool
}

// switches reads a [hostSwitches].
func (d *decoder) switches(from *hujson.Value, to *hostSwitches) {
	all, ok := from.Value.(*hujson.Object)
	if !ok {
		return
	}
	for i := range all.Members {
		m := &all.Members[i]
		name := text{m.Name.StartOffset, m.Name.Value.(hujson.Literal).String()}
		switch v := m.Value.Value.(type) {
		case hujson.Literal:
			off := v.Kind() == 'f' || v.Kind() == '"' && v.String() == "deny"
			if off || v.Kind() == 't' || v.Kind() == '"' { // "ask" is on
				to.rules = append(to.rules, hostSwitch{name, !off})
			}
		case *hujson.Array:
			if name.value != "exclude" {
				continue
			}
			for j := range v.Elements {
				if l, ok := literal(&v.Elements[j], '"'); ok {
					to.exclude = append(to.exclude, text{v.Elements[j].StartOffset, l.String()})
				}
			}
		}
	}
}

// of returns the tools of a server that are off, and those that are on if all others are off.
func (h *hostSwitches) of(prefix string) (off, on []string) {
	all := func(pattern string) bool { return pattern != "" && strings.Trim(pattern, "*") == "" }
	for _, rule := range h.rules {
		for _, p := range ofServer([]text{rule.text}, prefix) {
			switch {
			case all(p):
				off, on = nil, nil
				if !rule.on {
					off = []string{p}
				}
			case !rule.on:
				off = append(off, p)
				on = slices.DeleteFunc(on, func(o string) bool { return globs(p, o) })
			default:
				off = slices.DeleteFunc(off, func(o string) bool { return !all(o) && globs(p, o) })
				on = append(on, p)
			}
		}
	}
	if !slices.ContainsFunc(off, all) {
		return off, nil
	}
	if off = slices.DeleteFunc(off, all); len(on) == 0 {
		on = []string{""} // none
	}
	return off, on
}

// after returns patterns for the texts that may follow a prefix in texts that a pattern matches. "*" stands
// for any text in patterns.
func after(pattern, prefix string) (rest []string) {
	at := []int{0}
	for i := range len(prefix) {
		var next []int
		for _, p := range at {
			for ; p < len(pattern) && pattern[p] == '*'; p++ {
				next = append(next, p)
			}
			if p < len(pattern) && (pattern[p] == prefix[i] || pattern[p] == '?') {
				next = append(next, p+1)
			}
		}
		slices.Sort(next)
		at = slices.Compact(next)
	}
	for _, p := range at {
		rest = append(rest, strings.ReplaceAll(pattern[p:], "?", "*"))
	}
	return rest
}

// globs reports whether a pattern matches a text.
func globs(pattern, s string) bool {
	return slices.ContainsFunc(after(pattern, s), func(rest string) bool { return strings.Trim(rest, "*") == "" })
}

// unfitHost matches characters that hosts replace in the names of servers.
var unfitHost = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// ofServer returns the patterns for a server's own tools, from patterns for names that hosts make of
// the server's name and the tool's.
func ofServer(patterns []text, prefixes ...string) (own []string) {
	for _, p := range patterns {
		for _, prefix := range prefixes {
			for _, rest := range after(p.value, prefix) {
				if rest != "" && !slices.Contains(own, rest) {
					own = append(own, rest)
				}
			}
		}
	}
	return own
}

// switched returns the tools of a server that its host has off, beside those of excludeTools, and those
// that it has on if it has all other tools of all servers off.
func (r *reader) switched(s *member[hostServer], in section) (off, on []string) {
	off, on = r.switchedForAll(s.Name, in)
	return slices.Concat(off, values(s.Value.Tools.deny), values(s.Value.Off), values(s.Value.Off2)), on
}

func (r *reader) switchedForAll(name string, in section) (off, on []string) {
	h, fit := r.host, unfitHost.ReplaceAllString(name, "_")
	switch in.kind {
	case ofOpencode:
		both := hostSwitches{rules: slices.Concat(h.Tools.rules, h.Permission.rules)}
		off, on = both.of(fit + "_")
	case ofAmp:
		prefixes := []string{"", "mcp__" + fit + "__", "mcp__" + name + "__", "mcp__" + strings.ReplaceAll(fit, "-", "_") + "__"}
		off = ofServer(h.AmpDisable, prefixes...)
		if h.AmpEnable != nil {
			on = append(ofServer(h.AmpEnable, prefixes...), "") // "": none
		}
	case ofGemini:
		off = ofServer(slices.Concat(h.Exclude, h.Tools.exclude), "", name+"__", fit+"__", "mcp_"+fit+"_", "mcp__"+fit+"__")
	}
	return off, on
}

// rejected reports whether rules of Amp reject a server. The first rule that matches counts.
func (r *reader) rejected(s *hostServer) bool {
	has := map[string]string{"command": s.Command.value, "url": s.URL.value}
	var args []string
	for _, a := range slices.Concat(s.Command.Args, s.Args) {
		args = append(args, a.value)
	}
	has["args"] = strings.Join(args, " ")
	for _, rule := range r.host.AmpPermissions {
		allows := rule.Action.value == "allow" || rule.Action.value == "" && rule.Allow != nil && *rule.Allow
		matches := true
		for _, m := range rule.Matches {
			value, known := has[m.Name]
			if !known && !allows {
				r.failf(m.At, `amp.mcpPermissions has a rule for %q, which is not known: set "disabled": true at the servers that it rejects, and remove it`, m.Name)
			}
			matches = matches && known && value != "" && globs(m.Value.value, value)
		}
		if matches {
			return !allows
		}
	}
	return false
}

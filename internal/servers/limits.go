package servers

import (
	"golang.org/x/text/unicode/norm"

	"holdfast/internal/config"
	"holdfast/internal/limit"
	"holdfast/internal/merge"
)

// isLimited reports whether a server has limits.
func isLimited(conf *config.Server) bool {
	return conf.MaxCalls > 0 || len(conf.ToolCalls) > 0 || conf.Rate.PerSecond > 0
}

// Limited implements [limit.Servers].
func (s *Set) Limited() bool { return s.table.Load().limited }

// Limits implements [limit.Servers]. A call of all servers as one counts for the server of its
// tool.
func (s *Set) Limits(name, tool string) limit.Own {
	t := s.table.Load()
	if name == config.MergedName && tool != "" && t.limited {
		members := s.membersOf(t)
		if i, own, ok := merge.Route(members, tool); ok {
			name, tool = members[i].Name, own
		}
	}
	own := limit.Own{Server: name, Tool: tool}
	one := t.byName[name]
	if one == nil {
		return own
	}
	conf := one.conf.Load()
	own.Calls, own.Rate = conf.MaxCalls, conf.Rate
	if tool == "" {
		return own
	}
	if own.Tool, _ = unprefixed(conf, tool); !isASCII(own.Tool) {
		own.Tool = norm.NFKC.String(own.Tool) // all spellings are counted as one
	}
	for _, p := range conf.ToolCalls {
		if restricts(p.Pattern, own.Tool) {
			own.ToolCalls = p.Most
			break
		}
	}
	return own
}

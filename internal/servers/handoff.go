package servers

import (
	"time"

	"holdfast/internal/config"
	"holdfast/internal/feature/handofftext"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/merge"
)

// HandOffAfter returns the time after which calls of a tool of a server are handed off; 0: never. It is the
// time in the configuration, or else after.
func (s *Set) HandOffAfter(name, tool string, after time.Duration) time.Duration {
	t := s.table.Load()
	if name == config.MergedName && handofftext.IsTool(tool) {
		shortest := after
		for _, one := range t.order {
			shortest = shorter(shortest, one.handOffAfter(tool, after))
		}
		return shortest
	}
	if name == config.MergedName {
		members := s.membersOf(t)
		if i, own, ok := merge.Route(members, tool); ok {
			name, tool = members[i].Name, own
		}
	}
	if one := t.byName[name]; one != nil {
		return one.handOffAfter(tool, after)
	}
	return after
}

// Host returns the behaviour of a host, by the name in its clientInfo and its User-Agent: as the configuration says, or else
// as hosts were observed.
func (s *Set) Host(name, agent string) hosts.Host { return hosts.Of(name, agent, s.table.Load().hosts) }

// handOffAfter returns the time for a tool of the server. For Holdfast's own tools, which belong
// to hand-off, it is the shortest of the server's: a host has no more patience with them.
func (s *server) handOffAfter(tool string, after time.Duration) time.Duration {
	conf := s.conf.Load()
	own, _ := unprefixed(conf, tool)
	shortest := after
	for _, p := range conf.HandoffAfter {
		if shortest = shorter(shortest, p.For); !handofftext.IsTool(tool) && matchesOne(p.Pattern, own) {
			return p.For
		}
	}
	if handofftext.IsTool(tool) {
		return shortest
	}
	return after
}

// shorter returns the shorter of two times; 0 stands for none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Package hosts knows how long hosts wait for a call, by their names.
package hosts

import (
	"strings"
	"time"
)

// A Host describes the host that a request comes from.
type Host struct {
	// Limit is how long the host waits for a silent call; 0: for ever.
	Limit time.Duration `json:"limit,omitempty"`
	// Extends says that after progress the host waits for as long again.
	Extends bool `json:"extends,omitempty"`
	// Known says that a rule matches the host. The limit of any other host is a guess.
	Known bool `json:"known,omitempty"`
	// Heard says that the host has listed the tools that ask for a call which was handed off.
	Heard bool `json:"heard,omitempty"`
	// Kept says that progress for this request keeps the host waiting.
	Kept bool `json:"kept,omitempty"`
}

// Spare is how long before the limit of its host a call is handed off.
const Spare = 10 * time.Second

// unknown is the limit of a host that no rule matches. Clients made with the SDKs wait for 60 s by default.
const unknown = 50 * time.Second

// MayAsk returns the host as a host that asks for a call which was handed off. A host without a limit waits as long as
// an unknown one.
func (h Host) MayAsk() Host {
	if h.Limit <= 0 {
		h = Host{Limit: unknown}
	}
	h.Heard, h.Kept = true, false
	return h
}

// Patience returns after which time a call is handed off; 0: never. An unknown host that never listed the tools to
// ask with may be a script that waits for as long as it takes: it gets its result.
func (h Host) Patience() time.Duration {
	if h.Kept || h.Limit <= 0 || !h.Known && !h.Heard {
		return 0
	}
	return max(h.Limit-Spare, h.Limit/2)
}

// IsKept reports whether progress in an interval keeps the host waiting.
func (h Host) IsKept(every time.Duration) bool {
	return h.Extends && every > 0 && (h.Limit <= 0 || every < h.Limit)
}

// A Rule describes the hosts with names that match a pattern, in which * stands for any text. Case does not
// matter.
type Rule struct {
	Pattern string
	Limit   time.Duration
	Extends bool
}

// measured are the hosts as measured in the versions of 2026, with default settings. Extends is false where it was
// not seen that progress extends the limit.
var measured = []Rule{
	{"claude-code*", 300 * time.Second, false},
	{"*copilot*", 180 * time.Second, true},
	{"opencode*", 60 * time.Second, true},
	{"gemini-cli*", 400 * time.Second, false},
	{"codex*", 300 * time.Second, false},
	{"goose*", 300 * time.Second, false},
	{"qwen*", 300 * time.Second, false},
	{"cline", 60 * time.Second, false},
	{"@cline/*", 60 * time.Second, false},
	{"continue*", 60 * time.Second, false},
	{"holdfast", 0, false}, // our own commands
}

// Of returns the host with a name in its clientInfo, or else with the first product of its User-Agent. The given
// rules come before the rules of this package.
func Of(name, agent string, rules []Rule) Host {
	product, _, _ := strings.Cut(strings.TrimSpace(agent), "/")
	for _, as := range []string{name, product} {
		as = strings.ToLower(strings.TrimSpace(as))
		if as == "" {
			continue
		}
		for _, all := range [][]Rule{rules, measured} {
			for i := range all {
				if r := &all[i]; matches(strings.ToLower(r.Pattern), as) {
					return Host{Limit: r.Limit, Extends: r.Extends, Known: true}
				}
			}
		}
	}
	return Host{Limit: unknown}
}

// matches reports whether a name matches a pattern.
func matches(pattern, name string) bool {
	first, rest, open := strings.Cut(pattern, "*")
	if !open {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	for ok {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, part)
		}
		var i int
		if i = strings.Index(name, part); i < 0 {
			return false
		}
		name, rest = name[i+len(part):], after
	}
	return false
}

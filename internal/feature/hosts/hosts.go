// Package hosts knows how long hosts wait for a call, by what they say of themselves.
package hosts

import (
	"strings"
	"time"
)

// A Host is what is known of the host that a request comes from.
type Host struct {
	// Limit is how long it waits for a call that says nothing; 0: for ever.
	Limit time.Duration `json:"limit,omitempty"`
	// Extends: progress has it wait for as long again.
	Extends bool `json:"extends,omitempty"`
	// Known: a rule is for it. Of any other host the limit is a guess.
	Known bool `json:"known,omitempty"`
	// Heard: it was shown the tools that ask for a call which was handed off.
	Heard bool `json:"heard,omitempty"`
	// Kept: it is sent progress for this request so often that it goes on waiting.
	Kept bool `json:"kept,omitempty"`
}

// Spare is how long before the limit of its host a call is handed off.
const Spare = 10 * time.Second

// unknown is the limit of a host that no rule is for. Clients made with the SDKs wait for 60 s by default.
const unknown = 50 * time.Second

// MayAsk returns the host as one that asks for a call which was handed off. If nothing is known of it, it waits as any.
func (h Host) MayAsk() Host {
	if h.Limit <= 0 {
		h = Host{Limit: unknown}
	}
	h.Heard, h.Kept = true, false
	return h
}

// Patience returns after which time a call is to be handed off; 0: never. A host that was never shown the tools to
// ask with may be a script that waits for as long as it takes: it gets its result.
func (h Host) Patience() time.Duration {
	if h.Kept || h.Limit <= 0 || !h.Known && !h.Heard {
		return 0
	}
	return max(h.Limit-Spare, h.Limit/2)
}

// IsKept reports whether progress in an interval has the host go on waiting.
func (h Host) IsKept(every time.Duration) bool {
	return h.Extends && every > 0 && (h.Limit <= 0 || every < h.Limit)
}

// A Rule is what is known of the hosts whose name matches a pattern, in which * stands for any text. Case does not
// matter.
type Rule struct {
	Pattern string
	Limit   time.Duration
	Extends bool
}

// measured are hosts as they were seen to be, without settings of their own, in the versions of 2026. That progress
// extends an idle limit was not seen, and is not relied on.
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

// Of returns what is known of a host by the name in its clientInfo, or else by the first product of its User-Agent.
// The rules that are given count before those of this package.
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

// matches reports whether a name is as a pattern has it.
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

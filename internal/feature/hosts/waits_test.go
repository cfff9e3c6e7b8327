package hosts

import (
	"testing"
	"time"
)

// A host is known by its client's name, or else by its User-Agent.
func TestOf(t *testing.T) {
	t.Parallel()
	rules := []Rule{{"my-*", 2 * time.Minute, true}, {"codex*", 20 * time.Second, false}, {"Ever", 0, false}}
	const s = time.Second
	for _, c := range []struct {
		name, agent string
		limit       time.Duration
		extends     bool
		patience    time.Duration
	}{
		{"claude-code", "", 300 * s, false, 290 * s},
		{"Claude-Code", "", 300 * s, false, 290 * s},
		{"mcp", "claude-code/2.1.332 (cli)", 300 * s, false, 290 * s},
		{"", "opencode/1.18.33", 60 * s, true, 50 * s},
		{"opencode", "Bun/1.3", 60 * s, true, 50 * s},
		{"github-copilot-developer", "", 180 * s, true, 170 * s},
		{"gemini-cli-mcp-client", "", 400 * s, false, 390 * s},
		{"qwen-code-mcp-client-files", "", 300 * s, false, 290 * s},
		{"continue-cli-client", "", 60 * s, false, 50 * s},
		{"@cline/core", "", 60 * s, false, 50 * s},
		{"Cline", "", 60 * s, false, 50 * s},
		{"goose-desktop", "", 300 * s, false, 290 * s},
		{"decline", "", 50 * s, false, 40 * s},
		{"", "", 50 * s, false, 40 * s},
		{"curl", "curl/8.1", 50 * s, false, 40 * s},
		{"my-agent", "", 120 * s, true, 110 * s},
		{"codex-mcp-client", "", 20 * s, false, 10 * s},
		{"ever", "", 0, false, 0},
	} {
		h := Of(c.name, c.agent, rules)
		h.Heard = true
		if h.Limit != c.limit || h.Extends != c.extends || h.Patience() != c.patience {
			t.Errorf("%q, %q: %+v, %v; want %v, %v, %v", c.name, c.agent, h, h.Patience(), c.limit, c.extends, c.patience)
		}
	}
}

// A host that cannot see Holdfast's own tools gets a handle only if it is known to give up on calls.
func TestPatience(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host Host
		want time.Duration
	}{
		{Of("script", "", nil), 0},
		{Of("codex-mcp-client", "", nil), 290 * time.Second},
		{Host{Limit: time.Minute, Known: true, Kept: true}, 0},
		{Host{Limit: 12 * time.Second, Known: true}, 6 * time.Second},
	} {
		if got := c.host.Patience(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.host, got, c.want)
		}
	}
	if h := Of("opencode", "", nil); !h.IsKept(15*time.Second) || h.IsKept(time.Minute) || h.IsKept(0) {
		t.Errorf("%+v is kept wrongly", h)
	}
	if h := Of("holdfast", "", nil); h.Patience() != 0 || h.MayAsk().Patience() != 40*time.Second {
		t.Errorf("our own commands: %+v", h)
	}
	if Of("codex", "", nil).IsKept(time.Second) {
		t.Error("a host is kept that progress does not keep")
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for pattern, names := range map[string]map[string]bool{
		"a":    {"a": true, "ab": false, "": false},
		"*":    {"": true, "x": true},
		"a*":   {"a": true, "ab": true, "ba": false},
		"*b":   {"ab": true, "b": true, "bc": false},
		"a*b*": {"ab": true, "axbx": true, "ba": false},
		"a*a":  {"aa": true, "a": false, "aba": true},
	} {
		for name, want := range names {
			if matches(pattern, name) != want {
				t.Errorf("%q, %q: %v", pattern, name, !want)
			}
		}
	}
}

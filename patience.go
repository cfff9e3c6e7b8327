package holdfast

import (
	"math"
	"time"

	"holdfast/backend"
	"holdfast/internal/feature/handoff"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/session"
)

// Auto is a time for Options.HandoffAfter and Options.ProgressEvery: the time that suits the host that makes a call.
const Auto time.Duration = math.MinInt64

// autoProgress is the interval of progress for hosts that are known to wait longer for a call with progress.
const autoProgress = 15 * time.Second

// A patient backend overrules the options: it says after which time calls of a tool are handed off, and how long hosts
// wait.
type patient interface {
	HandOffAfter(server, tool string, after time.Duration) time.Duration
	Host(name, agent string) hosts.Host
}

// setPatience sets after which time calls are handed off, and which calls are sent progress.
func setPatience(to *session.Options, o *Options, b backend.Backend) {
	var late handoff.After
	by, ok := b.(patient)
	after := func(hosts.Host) time.Duration { return max(o.HandoffAfter, 0) }
	if o.HandoffAfter == Auto {
		after = hosts.Host.Patience
	}
	to.Host = func(name, agent string) hosts.Host { return hosts.Of(name, agent, nil) }
	switch {
	case ok:
		to.Host = by.Host
		late = func(server, tool string, host hosts.Host) time.Duration {
			return by.HandOffAfter(server, tool, after(host))
		}
	case o.HandoffAfter > 0 || o.HandoffAfter == Auto:
		late = func(_, _ string, host hosts.Host) time.Duration { return after(host) }
	}
	to.Addition = handoff.New(late)
	switch {
	case o.ProgressEvery == Auto:
		to.ProgressEvery = func(host hosts.Host) time.Duration {
			if !host.Extends {
				return 0
			}
			if host.Limit > 0 {
				return min(autoProgress, host.Limit/3)
			}
			return autoProgress
		}
	case o.ProgressEvery > 0:
		to.ProgressEvery = func(hosts.Host) time.Duration { return o.ProgressEvery }
	}
}

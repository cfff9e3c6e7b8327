package session

import (
	"cmp"
	"log/slog"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/defaults"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/feature/webhook"
	"holdfast/internal/limit"
	"holdfast/internal/observe"
	"holdfast/internal/outagelog"
	"holdfast/internal/revival"
)

// Shared are the options that a manager and the handler on it have in common.
type Shared struct {
	Stateless bool              // no sessions: each POST stands alone, and no request of a backend can be answered
	Flight    *budget.Flight    // counts the bytes of requests in flight, and of messages that wait to be stored; nil: they are not counted
	Limits    *limit.Limiter    // bounds the calls that clients begin; nil: no bound
	Observers observe.Observers // are told of sessions, calls, readers and refused requests; nil: there are none
	Outage    *outagelog.Outage // counts the sessions and calls that are lost or refused while the store is away; may be nil
	Logger    *slog.Logger      // slog.Default()
}

// Options are those of a [Manager]. The zero value of each field stands for the default given with it.
type Options struct {
	Shared

	TTL time.Duration // how long an idle session lives; 30 minutes
	// SleepAfter is how long a session is idle before it falls asleep, if nothing is lost by that; 0: sessions stay awake.
	SleepAfter time.Duration
	// Forgets says that nothing is lost when servers forget a session.
	Forgets     bool
	MaxSessions int // 250,000
	MaxCalls    int // requests in flight, in all; 1,000,000
	SessionMax  int // requests in flight in one session; 1,000
	// MaxProcesses bounds how many conversations are open at a time, for a backend
	// that has a process for each; 0: no bound.
	MaxProcesses int
	// MaxShare is how much of MaxSessions, MaxCalls and MaxProcesses one tenant
	// ([caller.TenantOf]) may have, as a part of 1; 1. It is at least one.
	MaxShare float64
	// Unused is how long an unused session keeps its conversation: nothing was done in it since its
	// initialize, and its client is not connected; 0: as long as the session lives.
	Unused time.Duration
	Polls  bool // clients that can poll for an outcome are answered before their calls have ended
	// MaxWait is how long a client of SEP-975 may stay away from a call, without
	// asking for its status, before it is cancelled; 1 h; negative: for ever. Such
	// clients are told no more than TTL and Keep, as outcomes are kept no longer,
	// and to wait for at least MinWait before they come back.
	MaxWait, MinWait time.Duration
	Keep             time.Duration // how long the store keeps a finished call; 0: not known
	// Safe says which tools may be called again without harm, beside those that
	// say so themselves (readOnlyHint, idempotentHint).
	Safe func(tool string) bool
	// Addition returns the feature that is added to the calls of a manager with these options; nil: no feature is.
	Addition func(*Manager, *Options) Addition
	// Services return the features that a manager with these options offers where the backend does not have them, if Polls is set.
	Services []func(*Manager, *Options) Service
	// Host describes a host to the addition and to ProgressEvery, by the name in its clientInfo and its
	// User-Agent; nil: no host is known. It returns at once.
	Host func(name, agent string) hosts.Host
	// ProgressEvery returns after how much silence a host is sent progress of a request with a progress token; 0:
	// never. nil: no host is sent any. It returns at once.
	ProgressEvery func(host hosts.Host) time.Duration
	// AttachWithin is for how long, after the connection of a call has broken, the same request of the client's model is attached to
	// the call; 0 or less: never.
	AttachWithin time.Duration
	// CallIDs are members of _meta in which hosts give a call an id of their own, besides the known ones.
	CallIDs []string
	// OnEnded is called for each request that named a webhook, when its call has ended with no client connected.
	// told says that the outcome is not lost with this node; else the next owner of the session calls OnEnded
	// again, with the same Key. With a store that nodes share it may wait until that is known; else it must not
	// wait, as the goroutine that ends the call calls it. No lock is held. nil: webhooks are ignored.
	OnEnded func(webhook.Ended) (told bool)
	// Revival has the keys of session ids, to revive sessions that no node has any more; nil: no session is revived.
	Revival *revival.Keeper
}

func (o *Options) setDefaults() {
	if o.TTL <= 0 {
		o.TTL = defaults.SessionTTL
	}
	if o.MaxSessions <= 0 {
		o.MaxSessions = defaults.MaxSessions
	}
	if o.MaxCalls <= 0 {
		o.MaxCalls = defaults.MaxCalls
	}
	if o.MaxShare <= 0 || o.MaxShare > 1 {
		o.MaxShare = 1
	}
	if o.SessionMax <= 0 {
		o.SessionMax = 1_000
	}
	o.MaxWait = cmp.Or(o.MaxWait, defaults.MaxWait)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

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
	"holdfast/internal/outage"
	"holdfast/internal/revival"
)

// Shared are the options that a manager and the handler on it have in common.
type Shared struct {
	Stateless bool              // no sessions: each POST stands alone, and no request of a backend can be answered
	Flight    *budget.Flight    // counts the bytes of requests in flight, and of messages that wait to be stored; nil: nobody does
	Limits    *limit.Limiter    // bounds the calls that clients begin; nil: nothing does
	Observers observe.Observers // are told of sessions, calls, readers and refused requests; nil: there are none
	Outage    *outage.Outage    // told of what is lost or refused while the store is away; may be nil
	Logger    *slog.Logger      // slog.Default()
}

// Options bound what a Manager takes on. The zero value of each field stands for
// the default given with it.
type Options struct {
	Shared

	TTL time.Duration // how long an idle session lives; 30 minutes
	// SleepAfter is how long a session is idle before it falls asleep, if nothing is lost with that; 0: none does.
	SleepAfter time.Duration
	// Forgets says that nothing is lost with what servers keep of a session in their memory.
	Forgets     bool
	MaxSessions int // 250,000
	MaxCalls    int // requests in flight, in all; 1,000,000
	SessionMax  int // requests in flight in one session; 1,000
	// MaxProcesses bounds how many conversations with the backend are open at a time,
	// for one whose conversations are processes: 0: no bound.
	MaxProcesses int
	// MaxShare is how much of MaxSessions, MaxCalls and MaxProcesses one tenant
	// ([caller.TenantOf]) may have, as a part of 1; 1. It is at least one.
	MaxShare float64
	// Unused is how long the conversation of a session is kept in which nothing was done
	// since its initialize, and whose client is not connected; 0: as long as the session.
	Unused time.Duration
	Polls  bool // clients that know how are answered before their calls have ended, and poll for the outcome
	// MaxWait is how long a client of SEP-975 may stay away from a call, without
	// asking for its status, before it is cancelled; 1 h; negative: for ever. Such
	// clients are told of no more than TTL and Keep, as the outcome is kept no
	// longer, and to wait for at least MinWait before they come back.
	MaxWait, MinWait time.Duration
	Keep             time.Duration // how long the store keeps a finished call; 0: not known
	// Safe says which tools may be called again without harm, beside those that
	// say so themselves (readOnlyHint, idempotentHint).
	Safe func(tool string) bool
	// Addition returns the feature that is added to the calls of a manager, which has these options; nil: none is.
	Addition func(*Manager, *Options) Addition
	// Services return the features that are offered in the place of a backend which has none, for a manager with these options, if Polls
	// is set.
	Services []func(*Manager, *Options) Service
	// Host returns what is known of a host, by the name in its clientInfo and its User-Agent, as the addition and
	// ProgressEvery get it; nil: nothing is. It returns at once, too.
	Host func(name, agent string) hosts.Host
	// ProgressEvery returns after which silence the requests of a host that gave a token are sent progress; 0: they
	// are not. nil: none is. It returns at once, too.
	ProgressEvery func(host hosts.Host) time.Duration
	// AttachWithin is for how long after its connection has broken a call is attached to that its client's model asks for again; 0 or
	// less: never.
	AttachWithin time.Duration
	// CallIDs are members of _meta in which hosts give a call an id of their own, besides those that are known.
	CallIDs []string
	// OnEnded is told of each request that named a webhook and whose call has ended
	// with no client connected. told says that it is not lost with this node: else the next owner of
	// the session tells of it again, under the same Key. With a store that nodes share it may wait for that;
	// else it must not, as it is called on the goroutine that ends the call. No lock is held. Where it is nil,
	// webhooks are ignored.
	OnEnded func(webhook.Ended) (told bool)
	// Revival has what sessions are revived with that nobody has any more; nil: none is.
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

package idempotency

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// Errors of [Keys.Begin].
var (
	// ErrReused refuses a key under which another request was made.
	ErrReused = errors.New("the idempotency key was used for another request")
	// ErrGone says that a call began under its key, and is no longer kept.
	ErrGone = errors.New("the call of this idempotency key began, and what became of it is no longer kept")
	// ErrOtherCredential refuses a request that was made under its key before, from the same address
	// and with another Authorization. That may have been the same client with a renewed token, or
	// another client: so the request must not run twice, and its result must not be shown.
	ErrOtherCredential = errors.New("this request may have run: it came under this idempotency key before, with another Authorization")
	// ErrLookedUp refuses a call under a key that is being looked up, by a client that cancels the key's call.
	ErrLookedUp = errors.New("a call of this idempotency key is being cancelled, and none has begun")
	// ErrAgain is the error of [Sessions.Locate] for a session that has moved here meanwhile.
	ErrAgain = errors.New("the session has come here")
)

// Sessions are the sessions of a node, as far as keys need to know them.
type Sessions interface {
	// Holder returns the principal of the session of a stream, if the stream is kept, or is still written to.
	Holder(session stream.SessionKey, number uint64) (of caller.Principal, ok bool)
	// Locate returns nil if a session of the principal is on this node. Otherwise the error is [ErrAgain], [ErrGone] if
	// there is no such session, names the node that has it, or is the store's.
	Locate(session stream.SessionKey, of caller.Principal) error
	// Has reports whether a session is on this node, and whether it has ended here but is not deleted from the store yet.
	Has(session stream.SessionKey) (here, ending bool)
	// Tenant returns the name of the tenant of a session on this node that has not been closed.
	Tenant(session stream.SessionKey) (name string, ok bool)
	// Work runs do for each id, several at once. It does not wait.
	Work(all []ID, do func(ID))
}

// Options configure the keys of a node: see [New].
type Options struct {
	Sessions Sessions
	Store    shared.Store    // the store that nodes share; nil: there are no other nodes
	Context  context.Context // of requests to the store
	Timeout  time.Duration   // of each request to the store
	Keep     time.Duration   // how long ended calls are kept; 0: as long as their sessions
	// KeepNames is how long a claim stays after its call is no longer kept.
	KeepNames time.Duration
	Logger    *slog.Logger
}

// Keys are the keys that a node knows, with their claims in the store that it shares with other nodes. The methods may
// be called concurrently.
type Keys struct {
	o      Options
	known  Registry
	claims Claims // of calls that are over, in a store that nodes share
}

// New returns the keys of a node.
func New(o Options) *Keys { return &Keys{o: o} }

// A Beginner describes the session in which a call is begun under a key.
type Beginner struct {
	Session   stream.SessionKey
	Principal caller.Principal
	Scoped    bool        // the keys are the session's own
	Single    bool        // its calls have no streams of their own
	Moved     func() bool // whether another node has taken the session over
}

// An At is the call that was begun under a key before.
type At struct {
	Session stream.SessionKey // "": there is no call
	Number  uint64            // of its stream, which may have ended
}

// Begin calls start, which begins the call of a key, unless the call was begun before: then Begin returns that call,
// running or ended. Of several requests that come at the same time, only one begins the call. start returns the number
// of the call's stream. left says, with an error, that the call is left to the next owner of its session.
//
// The errors are those of start, after which the key is free again, [ErrReused], [ErrGone], [ErrOtherCredential],
// [ErrLookedUp], those of [Sessions.Locate] for the session in which the call was begun, and those of the store.
func (k *Keys) Begin(r *Record, in Beginner, start func() (number uint64, left bool, err error)) (At, error) {
	for {
		known, mine := k.known.Claim(r.id, r.sum, in.Session, in.Scoped, r.forward)
		if mine {
			err := k.claim(r, &in)
			if err == nil {
				return At{}, k.start(r, in, start)
			}
			k.known.Free(r.id)
			if !errors.Is(err, ErrAgain) {
				return At{}, err
			}
			continue
		}
		if known.State == Claimed {
			<-known.Settled // beginning does not take long
			continue
		}
		at, err := k.begun(r, &in, known)
		if !errors.Is(err, ErrAgain) {
			return at, err
		}
	}
}

// start begins the call of a claimed key, or gives the key up.
func (k *Keys) start(r *Record, in Beginner, start func() (number uint64, left bool, err error)) error {
	number, left, err := start()
	if err != nil {
		if !left {
			k.unclaim(r, &in)
		}
		k.free(r)
		return err
	}
	if r.twinned {
		k.known.Begin(r.twin, number)
	}
	if k.known.Begin(r.id, number) {
		k.Sweep()
	}
	return nil
}

// begun returns the call that was begun under a key. The error is [ErrAgain] if the key must be looked up again.
func (k *Keys) begun(r *Record, in *Beginner, known Entry) (At, error) {
	switch {
	case known.Sum != r.sum:
		return At{}, ErrReused
	case known.State == Expired:
		return At{}, ErrGone
	}
	of, ok := k.o.Sessions.Holder(known.Session, known.Number)
	switch {
	case ok && of == in.Principal, r.forward && in.Single:
		return At{known.Session, known.Number}, nil
	case r.forward:
		return At{}, ErrGone
	}
	if err := k.o.Sessions.Locate(known.Session, in.Principal); err != nil && !errors.Is(err, ErrGone) {
		return At{}, err
	}
	k.known.Expire(r.id, time.Now())
	return At{}, ErrGone
}

// Find returns the call of a principal that began under a key, which may have ended. The errors are those of
// [Sessions.Locate] for its session but [ErrGone].
func (k *Keys) Find(id ID, of caller.Principal) (At, error) {
	for {
		known, ok := k.known.Find(id)
		if !ok {
			at, err := k.claimant(id)
			if err != nil || at == "" {
				return At{}, err
			}
			switch err = k.o.Sessions.Locate(at, of); {
			case errors.Is(err, ErrGone):
				return At{}, nil // the call has ended with its session
			case err != nil && !errors.Is(err, ErrAgain):
				return At{}, err
			}
			if known, ok = k.known.Find(id); !ok {
				return At{}, nil // the call has not begun, or is no longer kept
			}
		}
		if known.State == Claimed {
			<-known.Settled // beginning does not take long
			continue
		}
		switch err := k.o.Sessions.Locate(known.Session, of); {
		case err == nil:
			return At{known.Session, known.Number}, nil
		case errors.Is(err, ErrGone):
			return At{}, nil
		case !errors.Is(err, ErrAgain):
			return At{}, err
		}
	}
}

// Knows reports whether a call is known on this node by its key.
func (k *Keys) Knows(id ID) bool {
	_, known := k.known.Find(id)
	return known
}

// Restore notes the key of a call in a session that this node has taken over.
func (k *Keys) Restore(r *Record, in Beginner, number uint64) {
	k.known.Restore(r.id, r.sum, in.Session, number, in.Scoped, r.forward)
}

// GiveUp frees the key of a call that will not be delivered.
func (k *Keys) GiveUp(r *Record, in Beginner) {
	k.unclaim(r, &in)
	k.free(r)
}

// free forgets a key on this node: its call has not begun, or will not be delivered.
func (k *Keys) free(r *Record) {
	if r.twinned {
		k.known.Free(r.twin) // first: a request that finds the key free finds its twin free, too
	}
	k.known.Free(r.id)
}

// Len returns how many keys are known, and how many of them are tombstones.
func (k *Keys) Len() (known, tombstones int) { return k.known.Len() }

// End notes that a session has ended with calls under keys that are not the session's own.
func (k *Keys) End(session stream.SessionKey, tenant string) {
	if known, _ := k.known.Len(); known > 0 { // else no sweep asks for the session, and none would forget it
		k.claims.End(session, tenant)
	}
}

// Tend forgets keys and claims that are due. It is called from time to time.
func (k *Keys) Tend(now time.Time) {
	if k.known.Due(now) || k.o.Store != nil && k.known.SweptBefore(now.Add(-k.o.KeepNames/2)) {
		k.Sweep()
	}
	k.drop(k.claims.Due(now.Add(-k.o.KeepNames)))
}

// Sweep forgets the keys of calls that are no longer kept.
func (k *Keys) Sweep() {
	ended := k.claims.Ended()
	left := k.known.Sweep(func(session stream.SessionKey, number uint64) bool {
		if _, ok := k.o.Sessions.Holder(session, number); ok || k.o.Store == nil {
			return ok
		}
		_, ending := k.o.Sessions.Has(session)
		return ending
	}, func(session stream.SessionKey, scoped bool) bool {
		_, over := ended[session]
		if !scoped && (k.o.Store == nil || over) {
			return false
		}
		here, _ := k.o.Sessions.Has(session)
		return !here // no client could use the key, or the store knows it
	})
	if k.o.Store != nil {
		k.leave(left, ended)
	}
}

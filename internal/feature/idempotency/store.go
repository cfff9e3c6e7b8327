package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// This file has the claims to keys in a store that nodes share. A claim stays as long as its call is in flight or kept,
// and for [Options.KeepNames] after that; then it is dropped from the store. The claims of a lost node stay until the
// store forgets them.

// newClaim is the age below which a claim without a call is taken for the claim of a node that was
// lost before the call began. The call of an older claim may have run, and be no longer kept.
const newClaim = time.Minute

// nobody is the value of a claim that only looks a key up.
var nobody Sum

// claimOf returns the value of a claim: the sum of the request, and the session that begins the call.
func claimOf(sum Sum, session stream.SessionKey) []byte { return append(sum[:], session...) }

// context returns a context for a request to the store.
func (k *Keys) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(k.o.Context, k.o.Timeout)
}

// claim takes a key and its twin for a call, on all nodes. The error is [ErrAgain] if the call, or its session, has
// moved here meanwhile.
func (k *Keys) claim(r *Record, in *Beginner) error {
	if r.forward {
		return nil
	}
	err := k.claimKey(r, in)
	if err == nil && r.hasTwin() {
		if err = k.claimTwin(r, in); err != nil {
			k.unclaim(r, in)
		}
	}
	return err
}

func (k *Keys) claimKey(r *Record, in *Beginner) error {
	if k.o.Store == nil || in.Scoped {
		return nil // only calls of this session use the key, and its notes have it
	}
	ctx, stop := k.context()
	defer stop()
	id, mine := shared.ClaimID(r.id), claimOf(r.sum, in.Session)
	was, age, err := k.o.Store.Claim(ctx, id, mine)
	if err == nil && age > k.o.Timeout && bytes.Equal(was, nobody[:]) {
		// The node that looked the key up was lost then, or could not undo its claim. Of the nodes
		// that find such a claim, the first to claim the key has it.
		if err = k.o.Store.Unclaim(ctx, id, was); err == nil {
			was, age, err = k.o.Store.Claim(ctx, id, mine)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("idempotency key not claimed: %w", err)
	case was == nil:
		return nil
	case bytes.Equal(was, nobody[:]):
		return ErrLookedUp
	case len(was) <= len(r.sum):
		return ErrGone
	case Sum(was[:len(r.sum)]) != r.sum:
		return ErrReused
	}
	session := stream.SessionKey(was[len(r.sum):])
	if err := k.o.Sessions.Locate(session, in.Principal); err != nil {
		return err
	}
	switch {
	case k.known.Found(r.id):
		return ErrAgain
	case age >= newClaim || k.o.Keep > 0 && age >= k.o.Keep:
		return ErrGone
	case session == in.Session:
		return nil
	}
	if err := k.o.Store.Unclaim(ctx, id, was); err != nil {
		return fmt.Errorf("idempotency key not claimed: %w", err)
	}
	return ErrAgain
}

// claimTwin takes the twin of a claimed key, on all nodes. The error is [ErrOtherCredential] if another credential has
// claimed the twin.
func (k *Keys) claimTwin(r *Record, in *Beginner) error {
	of := SumOf(r.id[:])
	for {
		known, mine := k.known.Claim(r.twin, of, in.Session, false, false)
		switch {
		case mine:
			r.twinned = true
		case known.Sum == of: // of this key, which was forgotten meanwhile
		case known.State == Claimed:
			<-known.Settled // another credential's call is about to begin
			continue
		default:
			return ErrOtherCredential
		}
		break
	}
	if k.o.Store == nil {
		return nil
	}
	ctx, stop := k.context()
	defer stop()
	was, _, err := k.o.Store.Claim(ctx, shared.ClaimID(r.twin), r.id[:])
	switch {
	case err != nil:
		err = fmt.Errorf("idempotency key not claimed: %w", err)
	case was != nil && !bytes.Equal(was, r.id[:]):
		err = ErrOtherCredential
	default:
		return nil
	}
	if r.twinned {
		k.known.Free(r.twin)
		r.twinned = false
	}
	return err
}

// unclaim gives up a key of a call that has not begun. If that fails, the claim's age shows that it
// was given up.
func (k *Keys) unclaim(r *Record, in *Beginner) {
	if r.forward || k.o.Store == nil || in.Scoped || in.Moved() {
		return
	}
	ctx, stop := k.context()
	defer stop()
	err := k.o.Store.Unclaim(ctx, shared.ClaimID(r.id), claimOf(r.sum, in.Session))
	if r.hasTwin() {
		err = errors.Join(err, k.o.Store.Unclaim(ctx, shared.ClaimID(r.twin), r.id[:]))
	}
	if err != nil {
		k.o.Logger.Warn("idempotency key not given up", "session", string(in.Session), "error", err)
	}
}

// claimant returns the session that has claimed a key, as the nodes' store knows it, or "".
func (k *Keys) claimant(id ID) (stream.SessionKey, error) {
	if k.o.Store == nil {
		return "", nil
	}
	ctx, stop := k.context()
	defer stop()
	// The store shows a claim only to a caller that claims the key too. Until this claim is undone,
	// the cancelled call is refused if it comes only now.
	was, _, err := k.o.Store.Claim(ctx, shared.ClaimID(id), nobody[:])
	if err == nil && was == nil {
		err = k.o.Store.Unclaim(ctx, shared.ClaimID(id), nobody[:])
	}
	if err != nil {
		return "", fmt.Errorf("idempotency key not looked up: %w", err)
	}
	if len(was) <= len(nobody) {
		return "", nil
	}
	return stream.SessionKey(was[len(nobody):]), nil
}

// leave notes the claims to keys that have outlived their calls, in sessions that are here or have ended
// here. The claims of a session that another node has taken belong to that node.
func (k *Keys) leave(left []Left, ended map[stream.SessionKey]string) {
	var over []ID
	now := time.Now()
	for _, key := range left {
		tenant, ok := ended[key.Session]
		if !ok {
			if tenant, ok = k.o.Sessions.Tenant(key.Session); !ok { // the session may be on its way to another node
				continue
			}
		}
		over = append(over, k.claims.Add(tenant, key.ID, now)...)
	}
	k.drop(over)
}

// A dropper is a store that can drop claims.
type dropper interface {
	// DropClaim removes the claim of id, whatever its value is.
	DropClaim(ctx context.Context, id shared.ClaimID) error
}

// drop drops claims. It does not wait.
func (k *Keys) drop(all []ID) {
	store, ok := k.o.Store.(dropper)
	if !ok || len(all) == 0 {
		return
	}
	k.o.Sessions.Work(all, func(id ID) {
		ctx, stop := k.context()
		defer stop()
		if err := store.DropClaim(ctx, shared.ClaimID(id)); err != nil {
			k.o.Logger.Debug("claim not dropped", "error", err) // the claim expires
		}
	})
}

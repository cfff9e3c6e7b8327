package durable

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"

	"holdfast/internal/engine/shared"
	"holdfast/stream"
)

// claimTTL is how long a claim is kept.
const claimTTL = 24 * time.Hour

// A claim is kept as a version, a random number by which its maker recognizes it,
// and the value. A claim that was taken back is only the byte claimFree, for a
// while: an attempt to claim that is still under way must fail.
const (
	claimFree    = 0
	claimVersion = 1
	claimHead    = 1 + 8
	freeTTL      = time.Minute
)

// ahead is how far a claim may seem to be from the future: servers of an engine
// don't agree to the moment. A claim that seems to be from later was made before a
// clock was set back: its age is not known, and counts as claimTTL.
const ahead = time.Minute

func claimKey(id shared.ClaimID) string { return "k." + base64.RawURLEncoding.EncodeToString(id[:]) }

// Claim implements [shared.Store].
func (st *Store) Claim(ctx context.Context, id shared.ClaimID, value []byte) (was []byte, age time.Duration, err error) {
	key := claimKey(id)
	mine := append(binary.BigEndian.AppendUint64([]byte{claimVersion}, stamp()), value...)
	free := uint64(0) // the version of a value that may be replaced
	err = st.ask(ctx, func(ctx context.Context) error {
		for {
			_, err := st.log.Put(ctx, key, free, mine, claimTTL)
			if !errors.Is(err, stream.ErrConflict) {
				return err
			}
			got, version, since, err := st.log.Get(ctx, key)
			switch {
			case errors.Is(err, stream.ErrNotFound):
				free = 0 // the claim was taken back, and claimFree has expired
				continue
			case err != nil:
				return err
			case len(got) == 1 && got[0] == claimFree:
				free = version
				continue
			case bytes.Equal(got, mine):
				return nil // put by an attempt that seemed to fail
			case len(got) < claimHead || got[0] != claimVersion:
				return errEncoding
			}
			if was, age = got[claimHead:], max(since, 0); since < -ahead {
				age = claimTTL
			}
			return nil
		}
	})
	if err == nil && was == nil {
		// The caller now does the work that it has claimed. If the claim were lost,
		// it would be done twice.
		err = st.Sync(ctx)
	}
	return was, age, err
}

// Unclaim implements [shared.Store].
func (st *Store) Unclaim(ctx context.Context, id shared.ClaimID, value []byte) error {
	key := claimKey(id)
	return st.ask(ctx, func(ctx context.Context) error {
		got, version, _, err := st.log.Get(ctx, key)
		if err == nil && len(got) >= claimHead && bytes.Equal(got[claimHead:], value) {
			_, err = st.log.Put(ctx, key, version, []byte{claimFree}, freeTTL)
		}
		if errors.Is(err, stream.ErrNotFound) || errors.Is(err, stream.ErrConflict) {
			return nil // the claim has another value, or is gone
		}
		return err
	})
}

// DropClaim removes a claim, whichever value it has. It is for claims that no node
// needs any more.
func (st *Store) DropClaim(ctx context.Context, id shared.ClaimID) error {
	return st.ask(ctx, func(ctx context.Context) error { return st.log.Remove(ctx, claimKey(id), 0) })
}

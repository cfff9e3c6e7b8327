package idempotency

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/stream"
)

var (
	sum  = SumOf([]byte("body"))
	none = func(stream.SessionKey, uint64) bool { return false }
	all  = func(stream.SessionKey, uint64) bool { return true }
	used = func(stream.SessionKey, bool) bool { return false }
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// An entry changes its state as intended, and in no other way.
func TestStates(t *testing.T) {
	t.Parallel()
	var r Registry
	id := KeyID(OfPrincipal("alice"), "k")
	state := func(what string, want State) Entry {
		t.Helper()
		e, mine := r.Claim(id, sum, "s", false, false)
		if mine || e.State != want || e.Sum != sum || e.Session != "s" {
			t.Fatalf("%s: %+v, mine %v", what, e, mine)
		}
		return e
	}
	claim := func() {
		t.Helper()
		if _, mine := r.Claim(id, sum, "s", false, false); !mine {
			t.Fatal("the key is not free")
		}
	}
	claim()
	waits := state("claimed", Claimed)
	r.Expire(id, time.Now())
	state("claimed, and not expired", Claimed)
	r.Free(id)
	if !isClosed(waits.Settled) {
		t.Error("who waits for a freed key is not told")
	}
	claim()
	waits = state("claimed again", Claimed)
	if r.Begin(id, 7) || !isClosed(waits.Settled) {
		t.Error("crowded, or who waits is not told")
	}
	if e := state("begun", Begun); e.Number != 7 {
		t.Errorf("stream %d", e.Number)
	}
	r.Sweep(all, used)
	state("begun and kept", Begun)
	r.Free(id) // the call was not delivered
	claim()
	r.Begin(id, 8)
	r.Sweep(none, used)
	state("expired", Expired)
	r.Free(id)
	r.Expire(id, time.Now())
	if known, tombstones := r.Len(); known != 1 || tombstones != 1 {
		t.Errorf("%d keys, %d tombstones", known, tombstones)
	}
}

// If a call is found at another node while its key is claimed here, it is known once
// the claim is freed.
func TestFound(t *testing.T) {
	t.Parallel()
	var r Registry
	id := KeyID(OfPrincipal("alice"), "k")
	r.Claim(id, sum, "s", false, false)
	if r.Found(id) {
		t.Error("found too early")
	}
	r.Restore(id, sum, "other", 3, false, false)
	if e, _ := r.Claim(id, sum, "s", false, false); e.State != Claimed || !r.Found(id) {
		t.Errorf("%+v", e)
	}
	r.Free(id)
	if e, mine := r.Claim(id, sum, "s", false, false); mine || e.State != Begun || e.Session != "other" || e.Number != 3 {
		t.Errorf("%+v", e)
	}
}

// The name of a forwarded POST is remembered for a while, and leaves no tombstone.
func TestForward(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Registry
		id := ForwardID("s", "n")
		r.Claim(id, sum, "s", false, true)
		r.Begin(id, 1)
		r.Sweep(none, used)
		if known, _ := r.Len(); known != 1 {
			t.Error("forgotten while it may come again")
		}
		time.Sleep(2 * time.Minute)
		r.Sweep(none, used)
		if known, tombstones := r.Len(); known+tombstones != 0 {
			t.Errorf("%d keys, %d tombstones", known, tombstones)
		}
	})
}

// Tombstones are bounded in age and in number.
func TestTombstones(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Registry
		for i := range mostTombstones + 10 {
			id := KeyID(OfPrincipal("alice"), fmt.Sprint(i))
			r.Claim(id, sum, "s", false, false)
			r.Begin(id, 1)
			r.Expire(id, time.Now())
		}
		if known, tombstones := r.Len(); known != mostTombstones || tombstones != mostTombstones {
			t.Errorf("%d keys, %d tombstones", known, tombstones)
		}
		if r.Due(time.Now()) {
			t.Error("swept too often")
		}
		time.Sleep(tombstoneFor + time.Second)
		if !r.Due(time.Now()) {
			t.Error("not swept")
		}
		r.Sweep(none, used)
		if known, tombstones := r.Len(); known+tombstones != 0 {
			t.Errorf("%d keys, %d tombstones", known, tombstones)
		}
	})
}

// Equal keys of different scopes have different ids, and so do a client's key, a node's name for a POST, and a twin.
func TestScope(t *testing.T) {
	t.Parallel()
	credential := []byte("s")
	all := []ID{
		KeyID(OfPrincipal("s"), "k"), KeyID(OfSession("s"), "k"), KeyID(OfSession("other"), "k"),
		KeyID(OfCredential("", credential), "k"), KeyID(OfCredential("s", credential), "k"), KeyID(OfTenant("", "s"), "k"), KeyID(OfTenant("s", "s"), "k"),
		KeyID(OfTenant("s", ""), "k"), ForwardID("s", "k"),
		TwinID(OfTenant("", "s"), "k", Sum{}), TwinID(OfTenant("", "s"), "k", Sum{1}), TwinID(OfTenant("", "s"), "l", Sum{}), TwinID(OfTenant("", "t"), "k", Sum{}),
	}
	ids := make(map[ID]bool)
	for _, id := range all {
		ids[id] = true
	}
	if len(ids) != len(all) {
		t.Errorf("%d ids of %d keys", len(ids), len(all))
	}
}

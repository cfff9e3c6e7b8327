package memory

import (
	"fmt"
	"testing"

	"holdfast/stream"
)

// The bytes that sessions hold are bounded, in all, for a tenant and for a session, and leave room for messages.
func TestHold(t *testing.T) {
	t.Parallel()
	const total = 512 << 10
	for _, c := range []struct {
		what            string
		tenants, each   int   // sessions of each tenant
		most            int64 // the bytes that are then held
		session, tenant int64
	}{
		{"all", 4, 8, total / 4 * 3, total, total},
		{"a tenant", 1, 8, total / 2 / 4 * 3, total, total / 2},
		{"a session", 1, 1, total / 8, total / 4, total},
	} {
		st := open(t, Options{SessionBytes: c.session, TotalBytes: total, TenantBytes: c.tenant})
		leases := make([]stream.Lease, 0, c.tenants*c.each)
		for i := range c.tenants * c.each {
			l := create(t, st, stream.SessionKey(fmt.Sprint(i)))
			st.Count(l, fmt.Sprint("tenant ", i%c.tenants))
			leases = append(leases, l)
		}
		refused := false
		for range 100 {
			for _, l := range leases {
				refused = !st.Hold(l, 1<<10) || refused
			}
		}
		if held := st.Held(); held != c.most || !refused {
			t.Errorf("%s: %d bytes are held, want %d", c.what, held, c.most)
		}
		if c.what == "all" { // there is still room for a call
			if err := add(st, leases[0], 1, 1, 4000, true); err != nil {
				t.Errorf("a message beside what is held: %v", err)
			}
		}
		if !st.Hold(leases[0], -1<<10) || !st.Hold(leases[0], 1<<10) {
			t.Errorf("%s: what was given back cannot be had again", c.what)
		}
		consistent(t, st)
		for _, l := range leases {
			if err := st.Delete(t.Context(), l.Session); err != nil {
				t.Fatal(err)
			}
		}
		if bytes, held := st.Bytes(), st.Held(); bytes != 0 || held != 0 {
			t.Errorf("%s: without sessions %d bytes are kept, %d held", c.what, bytes, held)
		}
	}
}

// Held bytes take the room of messages that may be dropped, and of no others.
func TestHoldMakesWay(t *testing.T) {
	t.Parallel()
	st := open(t, Options{SessionBytes: 16 << 10, TotalBytes: 16 << 10, TenantBytes: 16 << 10})
	a, b := create(t, st, "a"), create(t, st, "b")
	if err := add(st, a, 1, 1, 6000, true); err != nil {
		t.Fatal(err)
	}
	if err := add(st, a, 2, 1, 6000, false); err != nil {
		t.Fatal(err)
	}
	if !st.Hold(b, 8<<10) {
		t.Error("what has ended made no way")
	}
	if st.Hold(b, 4<<10) || st.Hold(a, 4<<10) {
		t.Error("what runs made way")
	}
	if _, _, err := st.Bounds(t.Context(), stream.ID{Session: "a", Number: 2}); err != nil {
		t.Errorf("the call that runs: %v", err)
	}
	st.MustHold(b, 4<<10)
	st.MustHold(stream.Lease{Session: "b", Epoch: 7}, 1<<20) // another node's
	if held := st.Held(); held != 12<<10 {
		t.Errorf("%d bytes are held", held)
	}
	consistent(t, st)
}

package idempotency

import (
	"encoding/binary"
	"testing"
	"time"
)

// TestClaimsBounded has more claims of one client, and of all clients, than are kept.
func TestClaimsBounded(t *testing.T) {
	t.Parallel()
	var c Claims
	id := func(i int) (id ID) {
		binary.BigEndian.PutUint64(id[:], uint64(i))
		return id
	}
	now := time.Now()
	for i := range mostClaims + 10 {
		over := c.Add("ann", id(i), now.Add(time.Duration(i)))
		if i < mostClaims && len(over) > 0 || i >= mostClaims && (len(over) != 1 || over[0] != id(i-mostClaims)) {
			t.Fatalf("claim %d drops %x", i, over)
		}
	}
	if due := c.Due(now.Add(12)); len(due) != 2 || due[0] != id(10) || due[1] != id(11) {
		t.Errorf("due: %x", due)
	}
	for i := range 2 * claimsInAll {
		c.Add(string(rune('A'+i%40)), id(i), now)
	}
	if c.n > claimsInAll {
		t.Errorf("%d claims of all", c.n)
	}
	if n := len(c.Due(now.Add(time.Hour))); n > claimsInAll || c.n != 0 || len(c.of) != 0 {
		t.Errorf("%d were due, and %d stay", n, c.n)
	}
}

// A node that knows no keys keeps nothing of sessions that have ended: it does not sweep.
func TestEndWithoutKeys(t *testing.T) {
	t.Parallel()
	var k Keys
	k.End("a", "tenant")
	if ended := k.claims.Ended(); len(ended) != 0 {
		t.Errorf("sessions that have ended are kept: %v", ended)
	}
	id := KeyID(OfPrincipal("alice"), "key")
	k.known.Claim(id, Sum{}, "b", false, false)
	k.known.Begin(id, 1)
	k.End("b", "tenant")
	if ended := k.claims.Ended(); len(ended) != 1 || ended["b"] != "tenant" {
		t.Errorf("sessions with keys that have ended: %v", ended)
	}
}

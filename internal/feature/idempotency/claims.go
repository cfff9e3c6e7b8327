package idempotency

import (
	"maps"
	"sync"
	"time"

	"holdfast/stream"
)

// mostClaims bounds how many claims to keys stay, of one tenant, after their calls are no longer kept; claimsInAll
// bounds the claims of all tenants. Beyond that, the oldest claim is dropped: its key counts as new at other nodes.
const (
	mostClaims  = 1 << 12
	claimsInAll = 1 << 16
)

// Claims are the claims that outlive their calls, oldest first, by the tenants of their keys. The zero value is
// ready.
type Claims struct {
	mu    sync.Mutex
	of    map[string][]leftClaim
	n     int                          // claims in all
	ended map[stream.SessionKey]string // sessions with keys that have ended here since the last sweep, and their tenants
}

type leftClaim struct {
	id ID
	at time.Time // when its call was found to be no longer kept
}

// End notes that a session with calls under keys has ended.
func (c *Claims) End(session stream.SessionKey, tenant string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = make(map[stream.SessionKey]string)
	}
	c.ended[session] = tenant
}

// Ended returns the sessions that have ended here since Ended was last called.
func (c *Claims) Ended() map[stream.SessionKey]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := c.ended
	c.ended = nil
	return ended
}

// Add notes a claim of a tenant, and returns the claims that there is no room for.
func (c *Claims) Add(tenant string, id ID, now time.Time) (over []ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[string][]leftClaim)
	}
	c.of[tenant] = append(c.of[tenant], leftClaim{id, now})
	all := c.of[tenant]
	c.n++
	for len(all) > mostClaims || len(all) > 0 && c.n > claimsInAll {
		over = append(over, all[0].id)
		all = all[1:]
		c.n--
	}
	c.of[tenant] = all
	if len(all) == 0 {
		delete(c.of, tenant)
	}
	return over
}

// Due returns the claims that were noted before a time, and forgets them.
func (c *Claims) Due(before time.Time) (all []ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for tenant, left := range maps.All(c.of) {
		for len(left) > 0 && left[0].at.Before(before) {
			all = append(all, left[0].id)
			left = left[1:]
			c.n--
		}
		if c.of[tenant] = left; len(left) == 0 {
			delete(c.of, tenant)
		}
	}
	return all
}

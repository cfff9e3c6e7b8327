package budget

import (
	"errors"
	"math"
	"sync"
)

// Connections counts the bytes that open connections of clients take, against a bound of its own beside the two parts
// of the budget. The count is an estimate of the memory of net/http and of the goroutines of requests. Its methods may
// be called concurrently; those of a nil Connections bound nothing.
//
// A tenant's part shrinks with the free bytes: it is at most share/(1-share) times these. So a tenant alone gets its
// share of all, and each of several gets less, and leaves room for the next one.
type Connections struct {
	most   int64
	factor float64 // of the free bytes, for one tenant; infinite: it may have all

	mu      sync.Mutex
	used    int64
	tenants map[string]int64
}

// ErrConnections says that there is no room for a connection, or for its exchanges.
var ErrConnections = errors.New("open connections take up what --memory has room for, in all or for one address (--max-share): close some")

// NewConnections returns a count for a budget: connections may take one and a half times its bytes. share is the part of
// these that one tenant may have, of 1.
func NewConnections(budget int64, share float64) *Connections {
	c := &Connections{most: budget + budget/2, factor: math.Inf(1), tenants: make(map[string]int64)}
	if share > 0 && share < 1 {
		c.factor = share / (1 - share)
	}
	return c
}

// Take counts n bytes more of a tenant, if there is room for them. The share does not bound a tenant without a name.
func (c *Connections) Take(tenant string, n int64) bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	free, has := c.most-c.used-n, int64(0)
	if tenant != "" {
		has = c.tenants[tenant] + n
	}
	if free < 0 || float64(has) > c.factor*float64(free) && !math.IsInf(c.factor, 1) {
		return false
	}
	c.add(tenant, n)
	return true
}

// Add counts n bytes whether there is room or not; a negative n gives bytes back.
func (c *Connections) Add(tenant string, n int64) {
	if c == nil || n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(tenant, n)
}

// add counts n bytes. c.mu is held.
func (c *Connections) add(tenant string, n int64) {
	c.used += n
	if tenant == "" {
		return
	}
	if c.tenants[tenant] += n; c.tenants[tenant] <= 0 {
		delete(c.tenants, tenant)
	}
}

// Used returns how many bytes connections take.
func (c *Connections) Used() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// Most returns the bound, in bytes.
func (c *Connections) Most() int64 {
	if c == nil {
		return 1 << 62
	}
	return c.most
}

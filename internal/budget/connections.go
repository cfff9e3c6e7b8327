package budget

import (
	"errors"
	"math"
	"sync"
)

// Connections counts what open connections of clients take, against a bound of its own beside the two parts of the
// budget. The count is an estimate: connections cost what net/http and the goroutines of a request do. Its methods may
// be called concurrently; those of a nil Connections bound nothing.
//
// What one tenant may have shrinks with what is free: at most share/(1-share) times that. So one alone gets its share
// of all, and each of several gets less, and leaves room for the next one.
type Connections struct {
	most   int64
	factor float64 // of what is free; infinite: one tenant may have all

	mu      sync.Mutex
	used    int64
	tenants map[string]int64
}

// ErrConnections says that there is no room for a connection, or for what it carries.
var ErrConnections = errors.New("open connections take up what --memory has room for, in all or for one address (--max-share): close some")

// NewConnections returns a count for a budget: connections may take half as much again as all of that. share is what one
// tenant may have of it, as a part of 1.
func NewConnections(budget int64, share float64) *Connections {
	c := &Connections{most: budget + budget/2, factor: math.Inf(1), tenants: make(map[string]int64)}
	if share > 0 && share < 1 {
		c.factor = share / (1 - share)
	}
	return c
}

// Take counts n bytes more of a tenant, if there is room for them. A tenant without a name has no share: all that is
// free is for it.
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

// Add counts n bytes that are there in any case; less than nothing: they are no longer.
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

// Used is how many bytes connections take.
func (c *Connections) Used() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// Most is the bound, in bytes.
func (c *Connections) Most() int64 {
	if c == nil {
		return 1 << 62
	}
	return c.most
}

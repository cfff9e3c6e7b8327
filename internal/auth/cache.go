package auth

import (
	"crypto/sha256"
	"sync"
	"time"
)

// cacheSize bounds the values of a cache.
const cacheSize = 10_000

// A cache has values by tokens, of which it keeps only hashes. It has two halves: when the new one
// has half of [cacheSize] values it becomes the old one, and the values of the old one are dropped.
// Its methods may be called concurrently.
type cache[V any] struct {
	mu       sync.Mutex
	now, old map[[sha256.Size]byte]cached[V]
}

type cached[V any] struct {
	value V
	until time.Time
}

// get returns the value for a token, unless it is missing or too old.
func (c *cache[V]) get(token string) (v V, ok bool) {
	key := sha256.Sum256([]byte(token))
	c.mu.Lock()
	defer c.mu.Unlock()
	one, ok := c.now[key]
	if !ok {
		one, ok = c.old[key]
	}
	if !ok || time.Now().After(one.until) {
		return v, false
	}
	return one.value, true
}

// has reports whether the cache has a value for a token, however old.
func (c *cache[V]) has(token string) bool {
	key := sha256.Sum256([]byte(token))
	c.mu.Lock()
	defer c.mu.Unlock()
	_, now := c.now[key]
	_, old := c.old[key]
	return now || old
}

// put keeps a value for a token until a time.
func (c *cache[V]) put(token string, value V, until time.Time) {
	key := sha256.Sum256([]byte(token))
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.now) >= cacheSize/2 {
		c.old, c.now = c.now, nil
	}
	if c.now == nil {
		c.now = make(map[[sha256.Size]byte]cached[V])
	}
	c.now[key] = cached[V]{value, until}
}

// drop forgets the value for a token.
func (c *cache[V]) drop(token string) {
	key := sha256.Sum256([]byte(token))
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.now, key)
	delete(c.old, key)
}

package state

import (
	"sync"
	"time"
)

// cache remembers values for a while. It holds at most max of them; the oldest
// make room. Safe for concurrent use.
type cache[K comparable, V any] struct {
	ttl time.Duration
	max int

	mu    sync.Mutex
	all   map[K]*cached[V]
	order []cacheKey[K] // as put; stale ones are skipped
}

type cached[V any] struct {
	v     V
	until time.Time
}

type cacheKey[K comparable] struct {
	k     K
	until time.Time
}

func newCache[K comparable, V any](ttl time.Duration, max int) *cache[K, V] {
	return &cache[K, V]{ttl: ttl, max: max, all: map[K]*cached[V]{}}
}

// get finds a value that still holds at now.
func (c *cache[K, V]) get(k K, now time.Time) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.all[k]; e != nil && now.Before(e.until) {
		return e.v, true
	}
	return v, false
}

// put remembers v from now on.
func (c *cache[K, V]) put(k K, v V, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := now.Add(c.ttl)
	c.all[k] = &cached[V]{v, until}
	c.order = append(c.order, cacheKey[K]{k, until})
	for len(c.order) > 0 {
		old := c.order[0]
		e := c.all[old.k]
		current := e != nil && e.until.Equal(old.until)
		if current && len(c.all) <= c.max && len(c.order) <= 2*c.max && now.Before(old.until) {
			return
		}
		if current {
			delete(c.all, old.k)
		}
		c.order = c.order[1:]
	}
}

// drop forgets the keys that match.
func (c *cache[K, V]) drop(match func(K) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.all {
		if match(k) {
			delete(c.all, k)
		}
	}
}

// forget forgets one key.
func (c *cache[K, V]) forget(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, k)
}

// Package memory is the dedup cache of one process. It answers repeats that
// come to the same process and forgets everything when that ends.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/dedup"
)

// maxEntries is how many sends are remembered; the oldest make room. At about
// 400 bytes each that is 13 MiB.
const maxEntries = 32_768

// Cache is a dedup.Cache in memory.
type Cache struct {
	o     dedup.Options
	max   int
	begun time.Time

	mu   sync.Mutex
	at   map[dedup.Key]int // the place of each key in ring
	ring []entry           // as first written; grows to max, then the oldest are overwritten
	next int               // the place to be written once it has grown
}

type entry struct {
	key    dedup.Key
	owner  string        // of a try
	known  bool          // confirmed; else a try
	until  time.Duration // since begun; 0 = the place is free
	answer dedup.Answer
}

// New makes an empty cache.
func New(o dedup.Options) *Cache {
	return &Cache{o: o.WithDefaults(), max: maxEntries, begun: time.Now(), at: map[dedup.Key]int{}}
}

// Try is dedup.Cache's.
func (c *Cache) Try(_ context.Context, owner string, keys []dedup.Key) ([]dedup.Found, error) {
	now := time.Since(c.begun)
	c.mu.Lock()
	defer c.mu.Unlock()
	found := make([]dedup.Found, len(keys))
	for i, k := range keys {
		e := c.get(k, now)
		switch {
		case e != nil && e.known:
			found[i] = dedup.Found{State: dedup.Known, Answer: e.answer}
		case e != nil && e.owner != owner:
			found[i].State = dedup.InFlight
		default:
			*c.place(k) = entry{key: k, owner: owner, until: now + c.o.TryTTL}
		}
	}
	return found, nil
}

// Confirm is dedup.Cache's.
func (c *Cache) Confirm(_ context.Context, done []dedup.Confirmed) error {
	until := time.Since(c.begun) + c.o.TTL
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range done {
		d := &done[i]
		*c.place(d.Key) = entry{key: d.Key, known: true, answer: d.Answer, until: until}
	}
	return nil
}

// Cancel is dedup.Cache's.
func (c *Cache) Cancel(_ context.Context, owner string, keys []dedup.Key) error {
	now := time.Since(c.begun)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		if e := c.get(k, now); e != nil && !e.known && e.owner == owner {
			c.free(e)
		}
	}
	return nil
}

// Open is dedup.Cache's: memory always answers.
func (c *Cache) Open() bool { return false }

// Close is dedup.Cache's.
func (c *Cache) Close() error { return nil }

// get is the entry that still holds; nil if there is none.
func (c *Cache) get(k dedup.Key, now time.Duration) *entry {
	at, ok := c.at[k]
	if !ok {
		return nil
	}
	e := &c.ring[at]
	if now >= e.until {
		c.free(e)
		return nil
	}
	return e
}

// place is where the entry of a key goes: where it is, or in place of the oldest.
func (c *Cache) place(k dedup.Key) *entry {
	at, ok := c.at[k]
	switch {
	case ok:
		return &c.ring[at]
	case len(c.ring) < c.max:
		at = len(c.ring)
		c.ring = append(c.ring, entry{})
	default:
		at = c.next
		c.next = (c.next + 1) % c.max
		if e := &c.ring[at]; e.until != 0 {
			c.free(e)
		}
	}
	c.at[k] = at
	return &c.ring[at]
}

// free forgets an entry; its place is written again when its turn comes.
func (c *Cache) free(e *entry) {
	delete(c.at, e.key)
	*e = entry{}
}

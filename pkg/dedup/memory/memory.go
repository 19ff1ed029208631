// Package memory is the dedup cache of one process. It answers repeats that
// come to the same process and forgets everything when that ends.
package memory

import (
	"container/list"
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
	o   dedup.Options
	max int

	mu    sync.Mutex
	all   map[dedup.Key]*list.Element // of *entry
	order list.List                   // as last written, the oldest first
}

type entry struct {
	key    dedup.Key
	known  bool   // confirmed; else a try
	owner  string // of a try
	answer dedup.Answer
	until  time.Time
}

// New makes an empty cache.
func New(o dedup.Options) *Cache {
	return &Cache{o: o.WithDefaults(), max: maxEntries, all: map[dedup.Key]*list.Element{}}
}

// Try is dedup.Cache's.
func (c *Cache) Try(_ context.Context, owner string, keys []dedup.Key) ([]dedup.Found, error) {
	now := time.Now()
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
			c.put(entry{key: k, owner: owner, until: now.Add(c.o.TryTTL)})
		}
	}
	return found, nil
}

// Confirm is dedup.Cache's.
func (c *Cache) Confirm(_ context.Context, done []dedup.Confirmed) error {
	until := time.Now().Add(c.o.TTL)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range done {
		c.put(entry{key: d.Key, known: true, answer: d.Answer, until: until})
	}
	return nil
}

// Cancel is dedup.Cache's.
func (c *Cache) Cancel(_ context.Context, owner string, keys []dedup.Key) error {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		if e := c.get(k, now); e != nil && !e.known && e.owner == owner {
			c.drop(c.all[k])
		}
	}
	return nil
}

// Open is dedup.Cache's: memory always answers.
func (c *Cache) Open() bool { return false }

// Close is dedup.Cache's.
func (c *Cache) Close() error { return nil }

// get is the entry that still holds; nil if there is none.
func (c *Cache) get(k dedup.Key, now time.Time) *entry {
	el := c.all[k]
	if el == nil {
		return nil
	}
	e := el.Value.(*entry)
	if !now.Before(e.until) {
		c.drop(el)
		return nil
	}
	return e
}

func (c *Cache) put(e entry) {
	if el := c.all[e.key]; el != nil {
		*el.Value.(*entry) = e
		c.order.MoveToBack(el)
		return
	}
	c.all[e.key] = c.order.PushBack(&e)
	if len(c.all) > c.max {
		c.drop(c.order.Front())
	}
}

func (c *Cache) drop(el *list.Element) {
	delete(c.all, c.order.Remove(el).(*entry).key)
}

package rate

import (
	"sync"
	"time"
)

// look is how many entries each new one makes us look at; more than one, so
// that a map shrinks while it is used.
const look = 4

// Keyed is a bucket for each key. It holds at most max of them: full ones are
// forgotten as new keys come, and if all are in use an arbitrary one is. Safe
// for concurrent use.
type Keyed[K comparable] struct {
	max int

	mu sync.Mutex
	m  map[K]Bucket
}

// NewKeyed makes an empty set of at most max buckets; max is at least 1.
func NewKeyed[K comparable](max int) *Keyed[K] {
	return &Keyed[K]{max: max, m: make(map[K]Bucket)}
}

// Take takes a token from the bucket of key; see Bucket.Take.
func (k *Keyed[K]) Take(now time.Time, key K, l Limit) (ok bool, wait time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b, known := k.m[key]
	if !known {
		k.tidy(now, l)
	}
	ok, wait = b.Take(now, l)
	k.m[key] = b
	return ok, wait
}

// Give puts a token back into the bucket of key.
func (k *Keyed[K]) Give(key K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b, known := k.m[key]; known {
		b.Give()
		k.m[key] = b
	}
}

// Len is how many buckets are kept now.
func (k *Keyed[K]) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.m)
}

// tidy makes room for one more. Maps are walked from a random place, so that a
// few entries a time reach all of them.
func (k *Keyed[K]) tidy(now time.Time, l Limit) {
	n := 0
	for key, b := range k.m {
		if b.full(now, l) {
			delete(k.m, key)
		}
		if n++; n == look {
			break
		}
	}
	if len(k.m) < k.max {
		return
	}
	for key := range k.m {
		delete(k.m, key)
		return
	}
}

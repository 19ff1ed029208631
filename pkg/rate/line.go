package rate

import (
	"sync"
	"time"
)

// Line is one bucket whose tokens may be taken ahead of time: who finds none is
// told how long to wait for its own. The zero value is ready. Safe for concurrent
// use.
type Line struct {
	mu sync.Mutex
	b  Bucket
}

// Join takes a token, which is there after wait. If wait would be longer than most,
// nothing is taken and ok is false.
func (r *Line) Join(now time.Time, l Limit, most time.Duration) (wait time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ok, wait = r.b.Take(now, l); ok {
		return 0, true
	}
	if wait > most {
		return wait, false
	}
	r.b.used++
	return wait, true
}

package rate

import (
	"sync"
	"time"
)

// Strikes counts failures by key: more than Most within Window, and the key is
// blocked for Pause. Safe for concurrent use.
type Strikes[K comparable] struct {
	most          int
	window, pause time.Duration
	max           int

	mu sync.Mutex
	m  map[K]strike
}

type strike struct {
	n       int
	since   time.Time // of the first failure of the window
	blocked time.Time // until then; zero = not
}

// NewStrikes blocks a key for pause at the most-th failure within window. It
// keeps at most max keys.
func NewStrikes[K comparable](most int, window, pause time.Duration, max int) *Strikes[K] {
	return &Strikes[K]{most: most, window: window, pause: pause, max: max, m: make(map[K]strike)}
}

// Blocked tells how much longer the key is blocked; 0 = it is not.
func (s *Strikes[K]) Blocked(now time.Time, key K) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, s.m[key].blocked.Sub(now))
}

// Fail counts one failure.
func (s *Strikes[K]) Fail(now time.Time, key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, known := s.m[key]
	if !known {
		s.tidy(now)
	}
	if x.n == 0 || now.Sub(x.since) >= s.window {
		x.n, x.since = 0, now
	}
	if x.n++; x.n >= s.most {
		x.n, x.blocked = 0, now.Add(s.pause)
	}
	s.m[key] = x
}

// Len is how many keys are kept now.
func (s *Strikes[K]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.m)
}

func (s *Strikes[K]) tidy(now time.Time) {
	n := 0
	for key, x := range s.m {
		if now.Sub(x.since) >= s.window && !now.Before(x.blocked) {
			delete(s.m, key)
		}
		if n++; n == look {
			break
		}
	}
	if len(s.m) < s.max {
		return
	}
	for key := range s.m {
		delete(s.m, key)
		return
	}
}

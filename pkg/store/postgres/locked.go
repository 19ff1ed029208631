package postgres

import (
	"sync"
	"time"
)

const (
	// lockedPause is what senders to a locked conversation are asked to wait.
	lockedPause = 500 * time.Millisecond
	// lockedMemory is how long a conversation that was found locked is skipped
	// rather than waited for.
	lockedMemory = 2 * time.Second
)

// locked remembers conversations that another transaction was found to hold, so
// that only the first batch waits for one. The zero value is ready; safe for
// concurrent use.
type locked struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// any reports whether one of ids was found locked a moment ago.
func (l *locked) any(ids []string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.until) == 0 {
		return false
	}
	for _, id := range ids {
		if now.Before(l.until[id]) {
			return true
		}
	}
	return false
}

// add notes that one of ids is locked.
func (l *locked) add(ids []string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until == nil {
		l.until = map[string]time.Time{}
	}
	for _, id := range ids {
		l.until[id] = now.Add(lockedMemory)
	}
}

// settle forgets those of the batch that were not locked, and all whose time is
// over.
func (l *locked) settle(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.until) == 0 {
		return
	}
	still := b.locked()
	for _, id := range b.ids {
		if !still[id] {
			delete(l.until, id)
		}
	}
	now := time.Now()
	for id, t := range l.until {
		if now.After(t) {
			delete(l.until, id)
		}
	}
}

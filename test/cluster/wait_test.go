package cluster

import (
	"testing"
	"time"
)

// eventually waits until cond holds.
func eventually(t testing.TB, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(limit)
	defer end.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("waited %v in vain: %s", limit, what)
		}
	}
}

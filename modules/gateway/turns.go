package gateway

import (
	"context"
	"time"
)

// releasesAtOnce is how many routes are given back at once; what ends waits for as
// long as it takes.
const releasesAtOnce = 256

// turns lets so many work at once; the others wait in the order in which they
// came. Safe for concurrent use.
type turns chan struct{}

// take waits for a turn, at most for limit and while ctx lives; false = there is none,
// and nothing to give back.
func (t turns) take(ctx context.Context, limit time.Duration) bool {
	select {
	case t <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// give gives a turn back.
func (t turns) give() { <-t }

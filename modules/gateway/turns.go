package gateway

import (
	"context"
	"time"
)

const (
	// joinsAtOnce is how many logins are looked up and claimed at once, and
	// joinWait how long others wait for their turn. In a wave of reconnects all
	// would otherwise be late together, and come back to be late again.
	joinsAtOnce = 128
	joinWait    = 5 * time.Second
	// releasesAtOnce is the same for routes that are given back; what ends waits
	// for as long as it takes.
	releasesAtOnce = 256
)

// turns lets so many work at once; the others wait in the order in which they
// came. Safe for concurrent use.
type turns chan struct{}

// take waits for a turn, at most for limit and while ctx and the session live;
// false = there is none, and nothing to give back.
func (t turns) take(ctx context.Context, ended <-chan struct{}, limit time.Duration) bool {
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
	case <-ended:
	case <-ctx.Done():
	}
	return false
}

// give gives a turn back.
func (t turns) give() { <-t }

// Package backoff makes the pauses between attempts: exponential with full
// jitter, so that many processes that failed together do not come back
// together.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Policy is a family of growing pauses. The zero value pauses never.
type Policy struct {
	Base   time.Duration // upper bound of the first pause
	Max    time.Duration // upper bound of all pauses; 0 = Base
	Factor float64       // growth of the bound per attempt; below 1 = 2
	// Rand gives numbers in [0, 1); nil = the process's own source. It must be
	// safe for concurrent use if the Policy is used so.
	Rand func() float64
}

// Bound is the longest pause after the attempt-th failure, counted from 0.
// Negative attempts count as 0.
func (p Policy) Bound(attempt int) time.Duration {
	limit := max(p.Max, p.Base)
	factor := p.Factor
	if factor < 1 {
		factor = 2
	}
	d := float64(p.Base)
	for range attempt {
		if d *= factor; d >= float64(limit) {
			return limit
		}
		if factor == 1 {
			break
		}
	}
	return min(time.Duration(d), limit)
}

// Pause is a random pause below the bound of the attempt.
func (p Policy) Pause(attempt int) time.Duration {
	return p.PauseAt(attempt, p.random())
}

// PauseAt is the pause that the random number r in [0, 1) gives.
func (p Policy) PauseAt(attempt int, r float64) time.Duration {
	return time.Duration(r * float64(p.Bound(attempt)))
}

// Sleep pauses for the attempt. It returns early with the context's error if
// ctx ends.
func (p Policy) Sleep(ctx context.Context, attempt int) error {
	return Sleep(ctx, p.Pause(attempt))
}

func (p Policy) random() float64 {
	if p.Rand != nil {
		return p.Rand()
	}
	return rand.Float64()
}

// Sleep pauses for d. It returns early with the context's error if ctx ends,
// and at once if it has ended already.
func Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Spread moves d by up to the fraction part up or down: Spread(60*time.Second,
// 0.2, r) is 48 s for r = 0 and 72 s for r = 1. It keeps periodic work of many
// processes apart.
func Spread(d time.Duration, part, r float64) time.Duration {
	return time.Duration(float64(d) * (1 + part*(2*r-1)))
}

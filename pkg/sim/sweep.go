package sim

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

// Tally adds up schedules.
type Tally struct {
	Schedules int
	Events    uint64
	Sends     int
	Commits   int
	Faults    int
	// Failure is the one with the lowest seed among those found; nil = none.
	Failure *Failure
}

// Sweep runs schedules with the seeds from first on, on all processors, until
// there were count of them, ctx is done or one fails. A count of 0 is no bound.
func Sweep(ctx context.Context, first uint64, count int, bad Variant) Tally {
	var (
		mu   sync.Mutex
		all  Tally
		next atomic.Uint64
		stop atomic.Bool
		wg   sync.WaitGroup
	)
	work := func() {
		for !stop.Load() && ctx.Err() == nil {
			n := next.Add(1) - 1
			if count > 0 && n >= uint64(count) {
				return
			}
			rep, err := Run(Options{Seed: first + n, Bad: bad})
			mu.Lock()
			all.Schedules++
			all.Events += rep.Events
			all.Sends += rep.Sends
			all.Commits += rep.Commits
			all.Faults += rep.Faults
			var f *Failure
			if errors.As(err, &f) {
				stop.Store(true)
				if all.Failure == nil || f.Seed < all.Failure.Seed {
					all.Failure = f
				}
			}
			mu.Unlock()
		}
	}
	for range runtime.GOMAXPROCS(0) {
		wg.Go(work)
	}
	wg.Wait()
	return all
}

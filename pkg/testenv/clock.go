package testenv

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clockTick is how often a Clock looks at what wants to run.
const clockTick = 5 * time.Millisecond

// Clock tells the time of a machine that has nothing else to do: it goes more slowly
// while more wants to run than there are processors, as a Limit does, and stands
// still while this process is not run at all. What took long by it was slow by
// itself. Safe for concurrent use.
type Clock struct {
	now   atomic.Int64 // nanoseconds
	stood atomic.Int64 // the same
	crowd func() float64
}

// NewClock starts a clock, which stops with the test.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	c := &Clock{crowd: crowd}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { c.run(stop) })
	t.Cleanup(func() { close(stop); wg.Wait() })
	return c
}

// Now is the time since the clock began.
func (c *Clock) Now() time.Duration { return time.Duration(c.now.Load()) }

// Since is how long it is since then, which is a time of Now.
func (c *Clock) Since(then time.Duration) time.Duration { return c.Now() - then }

// Stood is the longest time in which this process was not run, so far.
func (c *Clock) Stood() time.Duration { return time.Duration(c.stood.Load()) }

func (c *Clock) run(stop <-chan struct{}) {
	tick := time.NewTicker(clockTick)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := time.Now()
		gap := now.Sub(last)
		c.stood.Store(max(c.stood.Load(), int64(gap-clockTick)))
		c.now.Add(int64(counted(gap, c.crowd())))
		last = now
	}
}

// counted is what a clock makes of the time between two looks. One that comes late
// says that this process did not run meanwhile.
func counted(gap time.Duration, crowd float64) time.Duration {
	return time.Duration(float64(min(gap, 2*clockTick)) / min(max(crowd, 1), slowest))
}

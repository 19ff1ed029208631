package testenv

import (
	"sync"
	"testing"
	"time"
)

// longestStep is what at most counts of the time between two looks at a clock that
// ticks every clockTick: what is longer, the process did not run.
const (
	clockTick   = 5 * time.Millisecond
	longestStep = 4 * clockTick
)

// Clock tells the time of a machine that has nothing else to do. It goes by more
// slowly while more wants to run than there are processors, and stands while this
// process does. What a test measures with it is what a mechanism took, and not what
// the machine let it wait. Safe for concurrent use.
type Clock struct {
	mu    sync.Mutex
	last  time.Time
	told  time.Duration
	stood time.Duration // the longest time without a look
}

// NewClock starts a clock that goes until the end of the test.
func NewClock(t testing.TB) *Clock {
	c := &Clock{last: time.Now()}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(clockTick)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				c.Now()
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	return c
}

// Now is the time since the clock was started.
func (c *Clock) Now() time.Duration {
	crowd := crowd()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.step(time.Now(), crowd)
}

// Since is the time since a former answer of Now.
func (c *Clock) Since(began time.Duration) time.Duration { return c.Now() - began }

// Stood is the longest time so far in which this process was not run.
func (c *Clock) Stood() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stood
}

// step counts the time until now, in which crowd threads wanted each processor.
func (c *Clock) step(now time.Time, crowd float64) time.Duration {
	if gap := now.Sub(c.last); gap > longestStep {
		c.stood = max(c.stood, gap)
	}
	c.told += min(time.Duration(float64(now.Sub(c.last))/min(max(crowd, 1), slowest)), longestStep)
	c.last = now
	return c.told
}

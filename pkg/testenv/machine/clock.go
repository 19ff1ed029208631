package machine

import (
	"sync"
	"testing"
	"time"
)

const (
	// clockTick is how often a Clock looks at the time.
	clockTick = 5 * time.Millisecond
	// longestStep is what it counts at most from one look to the next: for longer, this
	// process did not run.
	longestStep = 2 * clockTick
)

// Clock tells the time of a machine that has nothing else to do. It goes by more
// slowly while more wants to run than there are processors, and stands while this
// process does. So what a test measures with it is what a mechanism took, and not what
// the machine let it wait. Safe for concurrent use.
type Clock struct {
	crowd func() float64
	stop  func()

	mu    sync.Mutex
	last  time.Time
	told  time.Duration
	stood time.Duration
}

// NewClock starts a clock that goes until the end of the test.
func NewClock(t testing.TB) *Clock {
	c := newClock(Crowd)
	t.Cleanup(c.stop)
	return c
}

// newClock starts a clock that goes until stop, which may be called once.
func newClock(crowd func() float64) *Clock {
	c := &Clock{crowd: crowd, last: time.Now()}
	end, ended := make(chan struct{}), make(chan struct{})
	c.stop = func() { close(end); <-ended }
	go func() {
		defer close(ended)
		tick := time.NewTicker(clockTick)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				c.Now()
			}
		}
	}()
	return c
}

// Now is the time since the clock was started.
func (c *Clock) Now() time.Duration {
	crowd := c.crowd()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepLocked(time.Now(), crowd)
}

// Since is the time since an earlier answer of Now.
func (c *Clock) Since(began time.Duration) time.Duration { return c.Now() - began }

// Stood is the longest time so far in which this process did not run.
func (c *Clock) Stood() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stood
}

// stepLocked counts the time until now, in which crowd threads wanted each processor.
func (c *Clock) stepLocked(now time.Time, crowd float64) time.Duration {
	gap := now.Sub(c.last)
	c.told += time.Duration(float64(min(gap, longestStep)) / Slowdown(crowd))
	c.stood = max(c.stood, gap-clockTick)
	c.last = now
	return c.told
}

// Took is how long f takes by a Clock.
func Took(f func()) time.Duration { return tookAmong(Crowd, f) }

// tookAmong is Took with a look at what wants to run.
func tookAmong(crowd func() float64, f func()) time.Duration {
	c := newClock(crowd)
	defer c.stop() // also if f ends the test
	f()
	return c.Now()
}

package cluster

import (
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
)

// eventually waits until cond holds, and returns how many times slower than usual
// the machine was meanwhile. The limit is in the time of a machine of its own.
func eventually(t testing.TB, what string, limit time.Duration, cond func() bool) (slowness float64) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	l := testenv.NewLimit(limit)
	for !cond() {
		if l.Over() {
			t.Fatalf("waited %v in vain, of a machine %.1f times slower than usual: %s", limit, l.Slowness(), what)
		}
		<-tick.C
	}
	return l.Slowness()
}

// slowness is how many times slower than usual the machine was since the clock began,
// at that time. While this process was not run for long, nothing is as usual.
func slowness(clock *testenv.Clock, began time.Time) float64 {
	if clock.Stood() > 300*time.Millisecond {
		return 10
	}
	return float64(time.Since(began)) / float64(max(clock.Now(), 1))
}

// phases tells how slow the machine was in each part of a test that breaks things
// several times, so that a stop in one of them excuses nothing in all.
type phases struct {
	t      testing.TB
	clock  *testenv.Clock
	began  time.Time
	before float64 // slowness of the phase before
}

// newPhases begins the first phase.
func newPhases(t testing.TB) *phases {
	return &phases{t: t, clock: testenv.NewClock(t), began: time.Now(), before: 1}
}

// next ends a phase and begins another one. It returns how many times slower than usual
// the machine was in the one that ends, or in the one before: what a stop at its end
// does may show later.
func (p *phases) next() float64 {
	now := slowness(p.clock, p.began)
	slow := max(now, p.before)
	p.clock, p.began, p.before = testenv.NewClock(p.t), time.Now(), now
	return slow
}

// doubt reports what must not be, and only logs it if the machine was so much
// slower than usual that nothing promises it: an answer may take 300 ms, which
// is usually a hundred times more than it does.
func doubt(t testing.TB, slowness float64, format string, args ...any) {
	t.Helper()
	if slowness < 3 {
		t.Errorf(format, args...)
		return
	}
	t.Logf("on a machine %.1f times slower than usual: "+format, append([]any{slowness}, args...)...)
}

package testenv

import (
	"time"

	"github.com/imdhq/imd/pkg/testenv/machine"
)

// longestLook is what at most counts of the time between two calls of Over: what is
// longer, the process did not run. It leaves room for a look that takes its time, as
// a command does that is run for it.
const longestLook = time.Second

// Limit is a limit in the time of a machine that has nothing else to do: while
// more wants to run than there are processors, it goes by more slowly, and while this
// process stands still it does not go by. So it says what a mechanism promises, and
// also holds where other programs are at work. Not safe for concurrent use.
type Limit struct {
	began, last time.Time
	left, spent time.Duration
	crowd       func() float64
}

// NewLimit begins a limit.
func NewLimit(limit time.Duration) *Limit {
	return &Limit{began: time.Now(), last: time.Now(), left: limit, crowd: machine.Crowd}
}

// Over counts the time since the last call, and reports whether the limit is over.
// It looks at what wants to run at this moment, so call it every few milliseconds.
func (l *Limit) Over() bool {
	now := time.Now()
	counted := min(time.Duration(float64(now.Sub(l.last))/machine.Slowdown(l.crowd())), longestLook)
	l.last, l.left, l.spent = now, l.left-counted, l.spent+counted
	return l.left <= 0
}

// Slowness is how many times slower than usual the limit went by so far; 1 = as
// usual.
func (l *Limit) Slowness() float64 {
	if l.spent <= 0 {
		return 1
	}
	return float64(l.last.Sub(l.began)) / float64(l.spent)
}

package testenv

import (
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv/machine"
)

// Clock tells the time of a machine that has nothing else to do.
type Clock = machine.Clock

// NewClock starts a clock that goes until the end of the test.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	return machine.NewClock(t)
}

// Took is how long f takes by such a clock.
func Took(f func()) time.Duration { return machine.Took(f) }

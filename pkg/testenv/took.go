package testenv

import (
	"time"

	"github.com/imdhq/imd/pkg/testenv/machine"
)

// Took is how long f takes in the time of a machine that has nothing else to do, and
// that does not stand still.
func Took(f func()) time.Duration { return machine.Took(f) }

//go:build drill

package scheduler

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
)

// Outlives is for how long the jobs of a term go on behind its end, if the known-bad
// build leaves out the fence: that a leader stops itself would mostly hide it.
// Tests that end many terms set it before the first.
var Outlives = 6 * time.Second

// ofTerm is the context of a term's jobs: that of the term, or one that outlives it.
func ofTerm(ctx context.Context) context.Context {
	if !failpoint.Bad(failpoint.NoFence) {
		return ctx
	}
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(Outlives, cancel) })
	return longer
}

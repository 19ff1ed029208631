//go:build drill

package segment

import (
	"testing"

	"github.com/imdhq/imd/pkg/failpoint"
)

// Builds in which the fence is weaker than it must be are caught by the judge.
func TestKnownBadIsCaught(t *testing.T) {
	for defect, schedule := range map[failpoint.Defect]string{
		failpoint.PlainReadFence: "an owner's append waits behind its check",
		failpoint.EarlyHead:      "a process sees a ring before all others",
	} {
		t.Run(string(defect), func(t *testing.T) {
			t.Setenv(failpoint.BadVar, string(defect))
			for _, s := range schedules {
				if s.name != schedule {
					continue
				}
				c := newCluster(t, "segment", "a", "b", "c")
				broken := found(c.run(func() { s.run(c) }))
				if len(broken) == 0 {
					t.Error("not caught")
				}
				for _, v := range broken {
					t.Log(v)
				}
			}
		})
	}
}
